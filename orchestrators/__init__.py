"""One file per paper: each is `decide(state, ask, ...) -> Decision`; everything else is shared."""

from __future__ import annotations

from collections.abc import Mapping

from orchestra.command_line import CHOICES, METHODS
from orchestra.main_agent import Orchestrator
from orchestra.pool import Pool
from orchestra.run_folder import Options
from orchestra.vocabulary import ConfigError
from tools import Tool


def make(options: Options, pool: Pool, tools: Mapping[str, Tool]) -> Orchestrator:
    """The orchestrator of a --method. Raises ConfigError for an option that it does not know."""
    for name, known in CHOICES.items():
        if (value := getattr(options, name)) not in known:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} {value}: is none of {', '.join(known)}")
    match options.method:
        case "orchestra-o1":
            from orchestrators.orchestra_o1 import OrchestraO1

            return OrchestraO1(pool.backends, tools, options.stop_threshold)
        case "aorchestra":
            from orchestrators.aorchestra import AOrchestra

            return AOrchestra(pool.backends, tools, options.context, options.sub_agent)
        case "toolorchestra" if options.mode == "prompted":
            from orchestrators.toolorchestra_prompted import PromptedToolOrchestra

            return PromptedToolOrchestra(pool, tuple(tools), options.budget_usd)
        case "toolorchestra":
            from orchestrators.toolorchestra import ToolOrchestra

            return ToolOrchestra(pool)
        case "mas-orchestra":
            from orchestrators.mas_orchestra import MasOrchestra

            return MasOrchestra(options.dom)
        case "react":
            from orchestrators.react import React

            return React(pool.main)
    raise ConfigError(f"--method {options.method}: is none of {', '.join(METHODS)}")
