"""The tools that the program ships, one file each. A file is imported when a task can use it."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import get_args

from orchestra.toolkit import Tool
from orchestra.vocabulary import Modality, Task

FILES = (
    "image",
    "audio",
    "video",
    "file",
    "search",
    "visit",
    "code",
)  # as models see them


def tools_for(task: Task, code: bool = True) -> dict[str, Tool]:
    """The tools that a task can use: media tools need a file of their kind, code a sandbox."""
    kinds = {media.modality for media in task.media}
    if "video" in kinds:
        kinds.add("audio")  # a video has a sound track
    useless: set[str] = {*get_args(Modality)} - kinds
    if not code:
        useless.add("code")
    return all_tools([name for name in FILES if name not in useless])


def all_tools(files: Iterable[str] = FILES) -> dict[str, Tool]:
    """T, by name, in the order that models see them."""
    tools: dict[str, Tool] = {}
    for file in files:
        module = import_module(f"orchestra.tools.{file}")
        for value in vars(module).values():
            if isinstance(value, Tool):
                tools[value.name] = value
    return tools
