"""The methods: one file per paper, and one class in it that decides what the main agent does next.

    orchestra_o1.py    parallel sub-tasks, round after round (the default)
    aorchestra.py      one sub-task a round: instruction, context, tools, model
    toolorchestra.py   one call of an expert a turn
    mas_orchestra.py   a whole graph of agents in one decision
    react.py           a single agent without a main agent (baseline)

    toolorchestra_prompted.py   of a port and not of a paper, so --method has no name for it:
                                a numbered worker a turn, by JSON actions

Each file has the same sections: what the model reads, what the model may reply, the decision. The
other files here are what several of them share: decision.py (the JSON decision), state_prompt.py
(files, models, round and budget as text), files_as_text.py, mas_xml.py and mas_markup.py. For
--lenient there are mas_lenient.py and function_markup.py.

An orchestrator of your own is a class in any file, chosen by --method FILE.py:CLASS. It takes
(pool, tools, options) and follows `orchestra.seams.Orchestrator`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from orchestra import contracts
from orchestra.runtime import user_code
from orchestra.runtime.options import METHODS, METHODS_OF_AGENT, Options
from orchestra.runtime.pool import Pool
from orchestra.seams import Orchestrator
from orchestra.toolkit import Tool
from orchestra.vocabulary import ConfigError


def check(options: Options, pool: Pool) -> None:
    """What can be checked before a run has its tools. Raises ConfigError."""
    if options.method in METHODS:
        make(options, pool, {})
    elif user_code.is_spec(options.method):
        user_code.load(options.method, f"--method {options.method}")
    else:
        user_code.chosen(options.method, METHODS, Orchestrator, "--method")


def make(options: Options, pool: Pool, tools: Mapping[str, Tool]) -> Orchestrator:
    """The orchestrator of a --method. Raises ConfigError."""
    made: Orchestrator
    if options.method in METHODS:
        _check_agent(options)
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


def _check_agent(options: Options) -> None:
    """Raises ConfigError for mini-swe with a method that has several sub-tasks at a time."""
    users = METHODS_OF_AGENT["mini-swe"]
    if options.agent == "mini-swe" and options.method not in users:
        owners = ", ".join(users)
        raise ConfigError(f"--agent mini-swe: belongs to --method {owners}")
