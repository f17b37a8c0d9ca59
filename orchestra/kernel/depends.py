"""What an outcome depends on besides its request, as the digest `depends_on` of a tape."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any
from uuid import uuid4

from orchestra.kernel.vocabulary import Task

OURS = "orchestra", "orchestra_min"
PLACES = "stdlib", "platstdlib", "purelib", "platlib"
INSTALLED = [Path(sysconfig.get_paths()[name]) for name in PLACES]


def anew() -> str:
    """A digest that never repeats: that of what no other run may reuse."""
    return uuid4().hex


def digest_of(*parts: object) -> str:
    text = "\0".join(map(str, parts))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def digest_of_files(files: Iterable[Path]) -> str:
    return digest_of(*(hashlib.sha256(f.read_bytes()).hexdigest() for f in files))


def of_user(function: Any, task: Task) -> str:
    """What a tool or a sub-agent of the user depends on: its source, and the files of the task,
    which it may open. "" for what is shipped.
    """
    if _is_ours(_owner(function).__module__):
        return ""
    return digest_of(source_of(function), *(media.sha256 for media in task.media))


@functools.cache
def source_of(function: Any) -> str:
    """A digest of the module of a function, of the modules that this imports, if they are not
    installed, and of the values that the function holds. It never repeats if there is no file.
    """
    found = _owner(function)
    try:
        held: object = ()
        if inspect.isfunction(found):
            values = inspect.getclosurevars(found).nonlocals
            held = (values, found.__defaults__, found.__kwdefaults__)
        files = sorted(_files_of(found.__module__, inspect.getsourcefile(found)))
        return digest_of(found.__qualname__, held, digest_of_files(files))
    except Exception:  # no file; or what the repr of a value raises
        return anew()


def _owner(function: Any) -> Any:
    """The function itself, without what is around it; of another callable, its class."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    return function if inspect.isroutine(function) else type(function)


def _files_of(module: str, file: str | None) -> set[Path]:
    """The file of a module, and those of all that it imports."""
    found: set[Path] = set()
    left = [(module, file)]
    while left:
        name, file = left.pop()
        path = Path(file or "")
        is_installed = _is_ours(name) or any(map(path.is_relative_to, INSTALLED))
        if path.suffix == ".py" and not is_installed and path not in found:
            found.add(path)
            left += [(n, _file_of(n)) for n in _imported(name, path)]
    return found


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in OURS


def _imported(module: str, file: Path) -> Iterator[str]:
    """The names of the modules that a file imports, anywhere in it."""
    package = getattr(sys.modules.get(module), "__package__", None) or ""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _file_of(module: str) -> str | None:
    loaded = sys.modules.get(module)
    if loaded is not None:
        return getattr(loaded, "__file__", None)
    try:
        spec = find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    return spec.origin if spec else None
