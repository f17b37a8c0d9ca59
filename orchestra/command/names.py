"""Python of the user. A setting names it as FILE.py:NAME or package.module:NAME:

    --method majority.py:Majority     --tools my_project.tools:library_hours

`objects` imports what the options of a run name, and starts its MCP servers.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import re
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import orchestra
from orchestra.command.redact import Redact
from orchestra.kernel.folder import Options
from orchestra.kernel.tape import EndOfRun
from orchestra.kernel.vocabulary import ConfigError, Pool

LISTED = "mcp_tools"  # the key of run.json with what each MCP server lists
OURS = Path(orchestra.__file__).parent
_loading = threading.RLock()  # parallel questions of a sweep load the same file


@contextlib.contextmanager
def objects(
    options: Options,
    log: Path,
    redact: Redact,
    listed: Mapping[str, Any] | None = None,
    where: Mapping[str, str] | None = None,
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """What the names in the options stand for: `given` of orchestrate, replay and resume. And what
    belongs into run.json: what each MCP server lists, which is `listed` later. The servers end with
    the block. `where`: the names as they are spelled now, by their short ones. Raises ConfigError.
    """

    def found(spec: str, flag: str) -> Any:
        return load((where or {}).get(short_name(spec), spec), f"{flag} {spec}")

    given: dict[str, Any] = {}
    if ":" in options.method:
        given["method"] = _method(found(options.method, "--method"), options.method)
    if ":" in options.agent:
        given["agents"] = {
            options.agent: _agent(found(options.agent, "--agent"), options.agent)
        }
    functions = [found(spec, "--tools") for spec in options.more.get("tools", ())]
    servers = options.more.get("mcp", ())
    if not functions and not servers:
        yield given, {}
        return
    from orchestra.methods import all_tools
    from orchestra.tools.own import own_tools

    with own_tools(functions, servers, log, set(all_tools()), listed, redact) as own:
        given["tools"] = own.tools
        yield given, {LISTED: own.listed} if own.listed else {}


def short_name(spec: str) -> str:
    """FILE.py:NAME without the folder of the file, which may have moved."""
    where, colon, name = spec.rpartition(":")
    return f"{Path(where).name}{colon}{name}"


def _method(found: Any, spec: str) -> Any:
    """The class of an orchestrator, or a function that makes one."""
    has_decide = hasattr(found, "decide") if inspect.isclass(found) else callable(found)
    if not has_decide:
        where = "orchestra/kernel/method.py; see docs/contributing.md"
        raise ConfigError(f"--method {spec}: is not a class with decide ({where})")
    return found


def _agent(found: Any, spec: str) -> Any:
    if not callable(found):
        raise ConfigError(
            f"--agent {spec}: is not a function (job) -> Result; see docs/contributing.md"
        )
    return found


def variables(commands: Iterable[str]) -> list[str]:
    """The environment variables that commands use, as $NAME or ${NAME}.

    >>> variables(["python server.py --key $MY_KEY --home $HOME"])
    ['MY_KEY']
    """
    names = [
        name for command in commands for name in re.findall(r"\$\{?(\w+)", command)
    ]
    return [name for name in names if name not in ("HOME", "PATH", "PWD", "USER")]


def redact_of(pool: Pool, more: Mapping[str, Any]) -> Redact:
    """What redacts the keys of a run: those of its pool, and the variables in its MCP commands.
    `more`: its options. Raises ConfigError for an option with a key in it.
    """
    servers = more.get("mcp", ())
    keys = [b.api_key_env for b in pool.backends if b.api_key_env]
    redact = Redact([*keys, *variables(servers)])
    for text, flag in [(server, "--mcp") for server in servers] + [
        (str(value), f"--option {name}") for name, value in more.items()
    ]:
        if redact.finds(text):
            advice = "name its variable instead: '$MY_KEY'"
            raise ConfigError(f"{flag}: has a key in it; {advice}")
    return redact


# ---- a name --------------------------------------------------------------------------------------


def load(spec: str, flag: str) -> Any:
    """What FILE.py:NAME or package.module:NAME names. Raises ConfigError whose text begins with
    `flag`, the setting that names it.
    """
    where, _, name = spec.rpartition(":")
    if not where or not name:
        raise ConfigError(
            f"{flag}: needs FILE.py:NAME or package.module:NAME; add :NAME"
        )
    with _loading, _errors_named(flag):
        if where.endswith(".py"):
            module = _module_of_file(Path(where).resolve())
        else:
            with _first_on_path(str(Path.cwd())):
                module = import_module(where)
    if not hasattr(module, name):
        near = difflib.get_close_matches(name, vars(module), n=1)
        meant = f"did you mean {near[0]}?" if near else "check the name"
        raise ConfigError(f"{flag}: {where} has no {name!r}; {meant}")
    return getattr(module, name)


def source_file(spec: str, flag: str) -> Path:
    """The file of the module that a setting names. Raises ConfigError."""
    where, _, _ = spec.rpartition(":")
    if where.endswith(".py"):
        return Path(where)
    load(spec, flag)
    return Path(str(sys.modules[where].__file__))


def _module_of_file(file: Path) -> ModuleType:
    """The module of a file, which finds the modules next to it first, as a script does. The file is
    executed once, and again after a change.
    """
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
    vars(module)["changed_ns"] = changed_ns  # last: what failed is executed again
    return module


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
def _errors_named(flag: str) -> Iterator[None]:
    """Turns whatever the user's code raises into a ConfigError that names the setting."""
    try:
        yield
    except (EndOfRun, KeyboardInterrupt):
        raise
    except BaseException as error:  # the user's code may raise anything
        why = f"{one_line(error)}{_line_of(error)}"
        if isinstance(error, FileNotFoundError) and error.filename:
            why = f"there is no file {error.filename}"
        raise ConfigError(f"{flag}: cannot be loaded ({why})") from None


def _line_of(error: BaseException) -> str:
    """The line of the user's code that raised an error, as in ", at mine.py:12"."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if not f.filename.startswith(("<", str(OURS)))]
    return f", at {theirs[-1].filename}:{theirs[-1].lineno}" if theirs else ""


def one_line(error: BaseException) -> str:
    """The type and message of an error in one line; of a group, those of its first error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(f"{type(error).__name__}: {error}".split())[:1000]
