"""The tools that the program ships, one file each. A file is imported when a task can use it."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from orchestra.toolkit import Tool
from orchestra.vocabulary import SKILL_OF, Task

FILES = ("image", "audio", "video", "search", "visit", "code")


def tools_for(task: Task, code: bool = True) -> dict[str, Tool]:
    """The tools that a task can use: media tools need a file of their kind, code a sandbox."""
    kinds = {m.modality for m in task.media}
    kinds |= {"audio"} if "video" in kinds else set()
    unfit = SKILL_OF.keys() - kinds | (set() if code else {"code"})
    return all_tools([name for name in FILES if name not in unfit])


def all_tools(files: Iterable[str] = FILES) -> dict[str, Tool]:
    """T, by name, in the order that models see them."""
    modules = [import_module(f"orchestra.tools.{file}") for file in files]
    found = [
        value for m in modules for value in vars(m).values() if isinstance(value, Tool)
    ]
    return {tool.name: tool for tool in found}
