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
from orchestra.vocabulary import ConfigError


def make(options: Options, pool: Pool, tools: Mapping[str, Tool]) -> Orchestrator:
    """The orchestrator of a --method. Raises ConfigError."""
    flag = f"--method {options.method}"
    if options.method in METHODS:
        module = import_module(f"orchestra.methods.{options.method.replace('-', '_')}")
        made = getattr(module, METHODS[options.method])(pool, tools, options)
    else:
        if not user_code.is_spec(options.method):
            known = ", ".join(METHODS)
            raise ConfigError(f"{flag}: needs one of {known}, or FILE.py:CLASS")
        own = user_code.load(options.method, flag)
        try:
            made = own(pool, tools, options) if callable(own) else None
        except TypeError as error:
            raise ConfigError(
                f"{flag}: takes no (pool, tools, options) ({error})"
            ) from None
    if not isinstance(made, Orchestrator):
        raise ConfigError(
            f"{flag}: is not a class with rounds, shares_context and decide; see CONTRIBUTING.md"
        )
    return made
