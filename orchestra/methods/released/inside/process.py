"""The process of a clone: it runs a function of a file of this folder.

Modules that are not Python's, pydantic's or the clone's, as openai and torch, are absent and have
every attribute: no prompt needs them.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

CLONE = str(Path("media").absolute())
LEFT_OUT = "LLM_CALL", "verl"  # of a clone: they need what is absent
PYDANTIC = "annotated_types pydantic pydantic_core typing_extensions typing_inspection"
PRESENT = {*sys.stdlib_module_names, *PYDANTIC.split()}


class Absent(ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


class Finder:
    """Finds the modules that are absent."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        root = name.partition(".")[0]
        folders = [str(folder) for folder in sys.path if str(folder).startswith(CLONE)]
        is_of_clone = root not in LEFT_OUT and PathFinder.find_spec(root, folders)
        if is_of_clone or root in PRESENT:
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def main() -> None:
    """Read a source text, the name of a function in it, and what it is given. The last line printed
    is what it returns, or the error of the clone's code. What that prints is left out.
    """
    sys.meta_path.insert(0, Finder())
    sys.path.insert(0, CLONE)
    asked = json.load(sys.stdin)
    scope: dict[str, Any] = {"__name__": "inside"}
    silence = io.StringIO()
    with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
        try:
            exec(asked["source"], scope)
            row = {"value": scope[asked["function"]](asked["given"])}
        except Exception as error:
            row = {"error": f"{type(error).__name__}: {error}"}
    print("\n" + json.dumps(row, default=str))


if __name__ == "__main__":
    main()
