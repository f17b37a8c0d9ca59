"""The methods: one file per paper, and one class in it that decides what the main agent does next.

    orchestra_o1.py    parallel sub-tasks, round after round (the default)
    aorchestra.py      one sub-task a round: instruction, context, tools, model
    toolorchestra.py   one call of an expert a turn
    mas_orchestra.py   a whole graph of agents in one decision
    react.py           a single agent without a main agent (baseline)

Each file has the same sections: what the model reads, what the model may reply, the decision. The
other files here are what several of them share: decision.py (the JSON decision), state_prompt.py
(files, models, round and budget as text), files_as_text.py, mas_xml.py and mas_markup.py.

An orchestrator of your own is a class in any file, chosen by --method FILE.py:CLASS. It takes
(pool, tools, options) and follows `orchestra.seams.Orchestrator`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from orchestra import contracts
from orchestra.runtime import user_code
from orchestra.runtime.options import METHODS, Options
from orchestra.runtime.pool import Pool
from orchestra.seams import Orchestrator
from orchestra.toolkit import Tool


def make(options: Options, pool: Pool, tools: Mapping[str, Tool]) -> Orchestrator:
    """The orchestrator of a --method. Raises ConfigError."""
    made: Orchestrator
    if options.method in METHODS:
        module_name = options.method.replace("-", "_")
        module = import_module(f"orchestra.methods.{module_name}")
        method = getattr(module, METHODS[options.method])
        made = method(pool, tools, options)
    else:
        own: Orchestrator = user_code.chosen(
            options.method, METHODS, Orchestrator, "--method", pool, tools, options
        )
        made = contracts.orchestrator(own, f"--method {options.method}")
    return made
