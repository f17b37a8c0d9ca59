"""Python code of the user. A setting names it as FILE.py:NAME or package.module:NAME:

    --method majority.py:Majority     --tools my_project.tools:library_hours

`load` imports what a setting names. `chosen` also checks that it fits the Protocol of its seam.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from orchestra.runtime.spelling import did_you_mean
from orchestra.vocabulary import ConfigError, EndOfRun

_loading = threading.RLock()  # parallel questions of a sweep load the same file


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


def source_file(spec: str, flag: str) -> Path:
    """The file of the module that a setting names. Raises ConfigError."""
    where, _, _ = spec.rpartition(":")
    if where.endswith(".py"):
        return Path(where)
    load(spec, flag)
    return Path(str(sys.modules[where].__file__))


def spec_of(chosen: object) -> str:
    """How a run names Python that it was given as an object: package.module:NAME if it is in a
    package, else FILE.py:NAME. A text is returned as it is.
    """
    if isinstance(chosen, str):
        return chosen
    has_name = inspect.isroutine(chosen) or inspect.isclass(chosen)
    named: Any = chosen if has_name else type(chosen)
    module = sys.modules.get(named.__module__)
    if module is not None and module.__package__:
        return f"{named.__module__}:{named.__name__}"
    try:
        file = inspect.getsourcefile(named)
    except TypeError:  # a builtin, or a class of an interactive session
        file = named.__module__
    return f"{file}:{named.__name__}"


def name_of(chosen: object) -> str:
    """The spec without the folder of its file, which may have moved."""
    where, colon, name = spec_of(chosen).rpartition(":")
    return f"{Path(where).name}{colon}{name}"


def one_line(error: BaseException) -> str:
    """The type and message of an error in one line; of a group, those of its first error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:1000]


def _module_of_file(path: Path, flag: str) -> ModuleType:
    """The module of a file, which finds the modules next to it first, as a script does. The file is
    executed once, and again after a change.
    """
    file = path.resolve()
    with _loading, _named_errors(flag):
        changed_ns = file.stat().st_mtime_ns
        known = sys.modules.get(str(file))
        if known is not None and getattr(known, "changed_ns", None) == changed_ns:
            return known
        module = ModuleType(str(file))
        module.__file__ = str(file)
        sys.modules[str(file)] = module  # dataclasses look there
        with _first_on_path(str(file.parent)):
            code = compile(file.read_bytes(), file, "exec", dont_inherit=True)
            exec(code, vars(module))
        # last: a file that could not be executed is executed again
        vars(module)["changed_ns"] = changed_ns
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


def chosen(
    value: object,
    shipped: Mapping[str, object],
    protocol: type,
    flag: str,
    /,
    *given: object,
    **settings: object,
) -> Any:
    """What an option names for a seam: something that the program ships, or the user's own, which
    is made from `given` and `settings`. Raises ConfigError.
    """
    if isinstance(value, str) and value in shipped:
        return shipped[value]
    flag = f"{flag} {spec_of(value)}"
    if isinstance(value, str) and not is_spec(value):
        known = ", ".join(shipped)
        hint = did_you_mean(value, shipped)
        raise ConfigError(
            f"{flag}: needs one of {known}, FILE.py:NAME or package.module:NAME{hint}"
        )
    return fitted(value, protocol, flag, *given, **settings)


def fitted(
    value: object,
    protocol: type,
    flag: str,
    /,
    *given: object,
    **settings: object,
) -> Any:
    """What the user chose for a seam, as an object with the methods of its Protocol.

    `value` names Python or is Python: a class, which is called with `given` and `settings`, an
    instance of one, or a function for a seam with one method. Raises ConfigError if it does not
    fit.
    """
    found = load(value, flag) if isinstance(value, str) else value
    methods = _methods_of(protocol)
    if inspect.isclass(found):
        found = _instance(found, flag, given, settings)
    elif settings:
        names = ", ".join(settings)
        raise ConfigError(f"{flag}: is not a class, so it takes no settings ({names})")
    elif inspect.isroutine(found) and len(methods) == 1:
        found = SimpleNamespace(**{methods[0]: found})
    wanted = [*getattr(protocol, "__annotations__", ()), *methods]
    missing = [name for name in wanted if not hasattr(found, name)]
    if missing:
        kind = "a function or a class" if len(wanted) == 1 else "a class"
        problem = f"is not {kind} with {', '.join(wanted)}"
        where = f"{protocol.__name__} in orchestra/seams.py; see CONTRIBUTING.md"
        raise ConfigError(f"{flag}: {problem}; missing: {', '.join(missing)} ({where})")
    for name in methods:
        _check_parameters(getattr(found, name), getattr(protocol, name), name, flag)
    return found


def _methods_of(protocol: type) -> list[str]:
    """The names of the public methods of a Protocol."""
    methods = []
    for name, value in vars(protocol).items():
        if inspect.isfunction(value) and not name.startswith("_"):
            methods.append(name)
    return methods


def _instance(
    kind: type, flag: str, given: tuple[object, ...], settings: Mapping[str, object]
) -> object:
    try:
        inspect.signature(kind).bind(*given, **settings)
    except TypeError as error:
        if settings:
            wanted = f"the settings {', '.join(settings)}"
        else:
            wanted = "(pool, tools, options)" if given else "no arguments"
        raise ConfigError(f"{flag}: must take {wanted} ({error})") from None
    try:
        return kind(*given, **settings)
    except SystemExit as stop:
        raise ConfigError(f"{flag}: ended the program ({one_line(stop)})") from None


def _check_parameters(method: Any, wanted: Any, name: str, flag: str) -> None:
    """Raises ConfigError if a method cannot be called with the Protocol's parameters."""
    names = [n for n in inspect.signature(wanted).parameters if n != "self"]
    try:
        inspect.signature(method).bind(*names)
    except (TypeError, ValueError) as error:  # ValueError: a builtin without signature
        needed = f"{name}({', '.join(names)})"
        problem = f"needs {needed} ({error}); see CONTRIBUTING.md"
        raise ConfigError(f"{flag}: {problem}") from None
