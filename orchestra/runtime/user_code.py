"""Python code of the user, which a setting names as FILE.py:NAME or package.module:NAME.

--method majority.py:Majority     --tools my_project.tools:library_hours
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

from orchestra.vocabulary import ConfigError, EndOfRun


def is_spec(text: str) -> bool:
    """Whether a setting names Python of the user, and not something that the program ships."""
    return ":" in text


def load(spec: str, flag: str) -> object:
    """What FILE.py:NAME or package.module:NAME names. Raises ConfigError whose text begins with
    `flag`, the setting that names it.
    """
    where, _, name = spec.rpartition(":")
    if not where or not name:
        raise ConfigError(
            f"{flag}: needs FILE.py:NAME or package.module:NAME; add :NAME"
        )
    if where.endswith(".py"):
        module = _module_of_file(Path(where), flag)
    else:
        module = _module_of_name(where, flag)
    try:
        found: object = getattr(module, name)
    except AttributeError:
        raise ConfigError(f"{flag}: {where} has no {name!r}; check the name") from None
    return found


def one_line(error: BaseException) -> str:
    """The type and message of an error in one line; of a group, those of its first error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:1000]


def _module_of_file(path: Path, flag: str) -> ModuleType:
    """The module of a file, which finds the modules next to it first, as a script does."""
    file = path.resolve()
    module = ModuleType(str(file))
    module.__file__ = str(file)
    sys.modules[str(file)] = module  # so that its classes can be pickled
    with _named_errors(flag), _first_on_path(str(file.parent)):
        code = compile(file.read_bytes(), file, "exec", dont_inherit=True)
        exec(code, vars(module))
    return module


def _module_of_name(name: str, flag: str) -> ModuleType:
    """A module that this Python can import, or one in the current folder."""
    with _named_errors(flag), _first_on_path(str(Path.cwd())):
        return import_module(name)


@contextlib.contextmanager
def _first_on_path(folder: str) -> Iterator[None]:
    """Imports look in `folder` first; afterwards last, so that it hides nothing of ours."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)


@contextlib.contextmanager
def _named_errors(flag: str) -> Iterator[None]:
    """Turns whatever the user's code raises into a ConfigError that names the setting."""
    try:
        yield
    except (EndOfRun, KeyboardInterrupt):
        raise
    except BaseException as error:  # the user's code may raise anything
        raise ConfigError(f"{flag}: cannot be loaded ({one_line(error)})") from None
