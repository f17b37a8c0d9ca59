"""The names that the program ships: methods, sub-agents and tools. What a name stands for is
imported when it is first used. The kernel knows no names; the command also resolves FILE.py:NAME.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from orchestra.kernel.folder import Options
from orchestra.kernel.job import Agent
from orchestra.kernel.method import Method
from orchestra.kernel.tool import Tool
from orchestra.kernel.vocabulary import ConfigError, Modality, Pool, Task

METHOD = "orchestra-o1"  # the default
AGENT = "react"
METHODS = {  # --method
    "orchestra-o1": "orchestra_o1:OrchestraO1",
    "aorchestra": "aorchestra:AOrchestra",
    "toolorchestra": "toolorchestra:ToolOrchestra",
    "mas-orchestra": "mas_orchestra:MasOrchestra",
    "react": "react_alone:ReactAlone",
}
SMALL_METHODS = {"orchestra-o1": "small_models:SmallModels"}  # --prompts small
AGENTS = {"react": "react:run"}  # SubTask.agent; a method has its own besides
TOOLS = (
    "image",
    "audio",
    "video",
    "file",
    "search",
    "visit",
    "code",
)  # as models see them


def method_class(options: Options) -> Any:
    """The class of a shipped method. Raises ConfigError."""
    names = METHODS
    if options.more.get("prompts") == "small":
        names = {**METHODS, **SMALL_METHODS}
    name = options.method or METHOD
    if name not in names:
        near = difflib.get_close_matches(name, METHODS, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(
            f"--method {name}: needs one of {', '.join(METHODS)}, or FILE.py:NAME{meant}"
        )
    return _object(f"orchestra.methods.{names[name]}")


def make_method(pool: Pool, tools: Mapping[str, Tool], options: Options) -> Method:
    """The shipped method that the options name. Raises ConfigError."""
    method: Method = method_class(options)(pool, tools, options)
    return method


class Agents(Mapping[str, Agent]):
    """The shipped sub-agents by name, imported when first used, and those that are given."""

    def __init__(self, given: Mapping[str, Agent]) -> None:
        self.found = dict(given)

    def __getitem__(self, name: str) -> Agent:
        if name not in self.found:
            self.found[name] = _object(f"orchestra.methods.{AGENTS[name]}")
        return self.found[name]

    def __iter__(self) -> Any:
        return iter({**AGENTS, **self.found})

    def __len__(self) -> int:
        return len({**AGENTS, **self.found})


def tools_for(task: Task, code: bool = True) -> dict[str, Tool]:
    """The shipped tools that a task can use: media tools need a file of their kind, and code a
    sandbox.
    """
    kinds = {media.modality for media in task.media}
    if "video" in kinds:
        kinds.add("audio")  # a video has a sound track
    useless: set[str] = {*get_args(Modality)} - kinds
    if not code:
        useless.add("code")
    return all_tools(name for name in TOOLS if name not in useless)


def all_tools(files: Iterable[str] = TOOLS) -> dict[str, Tool]:
    """T by name, in the order that models see them."""
    tools: dict[str, Tool] = {}
    for file in files:
        module = import_module(f"orchestra.tools.{file}")
        found = [value for value in vars(module).values() if isinstance(value, Tool)]
        tools |= {tool.name: tool for tool in found}
    return tools


def check_media(files: Sequence[Any]) -> list[tuple[Modality, Path]]:
    """Files, as paths or (modality, path), with their modality. Raises ConfigError."""
    found: list[tuple[Modality, Path]] = []
    if files:
        found = import_module("orchestra.tools.media").check(files)
    return found


def check_engines(files: Sequence[tuple[str, Any]], pool: Pool) -> None:
    """Raises ConfigError if files, as (modality, path), need a library that is not installed."""
    if files:
        check = import_module("orchestra.tools.media").check_engines
        check([modality for modality, _ in files], pool)


def can_run_code(options: Options) -> bool:
    """Whether code of models can run on this machine: in a sandbox, or because the user said so."""
    if options.more.get("unsafe_code"):
        return True
    return not import_module("orchestra.tools.sandbox").trouble()


def _object(spec: str) -> Any:
    module, _, name = spec.partition(":")
    return getattr(import_module(module), name)
