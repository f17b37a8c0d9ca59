"""One file per paper: each is `decide(state, ask, ...) -> Decision`; everything else is shared.

An orchestrator of your own is a class in any file, chosen by --method FILE.py:CLASS. It takes
(pool, tools, options) and follows orchestra.main_agent.Orchestrator.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from orchestra.runtime import user_code
from orchestra.runtime.options import METHODS, Options
from orchestra.runtime.pool import Pool
from orchestra.seams import Orchestrator
from orchestra.toolkit import Tool


def make(options: Options, pool: Pool, tools: Mapping[str, Tool]) -> Orchestrator:
    """The orchestrator of a --method. Raises ConfigError."""
    made: Orchestrator
    if options.method in METHODS:
        module = import_module(f"orchestra.methods.{options.method.replace('-', '_')}")
        made = getattr(module, METHODS[options.method])(pool, tools, options)
    else:
        made = user_code.chosen(
            options.method, METHODS, Orchestrator, "--method", pool, tools, options
        )
    return made
