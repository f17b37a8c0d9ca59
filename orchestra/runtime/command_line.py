"""The command line: its flags (those of Options among them) and its commands."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast, get_args

from orchestra import __version__
from orchestra.runtime import console, pool, run_folder
from orchestra.runtime.options import METHODS, Options, flag_of
from orchestra.runtime.tape import Cancelled, TapeMiss, TapeWriteError
from orchestra.runtime.trajectory import Trajectory
from orchestra.vocabulary import BudgetExceeded, ConfigError, EndpointError

M = TypeVar("M", bound=pool.Checked)
MEDIA = "image", "audio", "video"
NEW_RUN_ONLY = "question", *MEDIA, "compare", "model", "perception"
TYPES: dict[str, type] = {"FILE": Path, "REPO": Path, "RUN": Path, "N": int}
FLAGS = {  # flag: metavar, help
    "question": ("TEXT", "same as QUESTION"),
    "image": ("FILE", "image file; repeatable"),
    "audio": ("FILE", "audio file; repeatable"),
    "video": ("FILE", "video file; repeatable"),
    "workdir": (
        "REPO",
        "mini-swe: git repository; sub-agents work in a copy; writes changes.diff",
    ),
    "compare": (
        "METHODS",
        "several, as in orchestra-o1,react, or all; each has the full budget",
    ),
    "model": (
        "NAME",
        "the main agent's model; not needed where the endpoint serves one",
    ),
    "backends": ("FILE", "a pool of models, as in orchestra/runtime/backends.toml"),
    "perception": (
        "endpoint|local",
        "what analyses images and sound (default: the pool file)",
    ),
    "out": ("RUN", "folder of this run (runs/<time>)"),
    "replay": ("RUN", "run again from the tape, offline"),
    "resume": ("RUN", "continue a run; pays only for what is missing"),
    "from-round": ("N", "with --resume: a new run that keeps the rounds before N"),
    "json": ("", "one JSON object instead of the answer alone"),
    "quiet": ("", "no progress and no notes on standard error"),
}
EPILOG = "exit codes: 0 answer, 1 fallback, 2 usage, 3 replay differs, 4 endpoint, 130 interrupted"
EXIT_CODES: dict[type[BaseException], int] = {
    BudgetExceeded: 1, ConfigError: 2, TapeWriteError: 2, OSError: 2, TapeMiss: 3, EndpointError: 4,
    KeyboardInterrupt: 130, Cancelled: 130,
}  # fmt: skip
ENDS = tuple(EXIT_CODES)


def exit_code(error: BaseException) -> int:
    return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))


def ended(program: str, work: Callable[[], int | None]) -> int:
    """Run `work` and return its exit code. An error is one line on standard error."""
    try:
        return work() or 0
    except ENDS as error:
        console.tell(f"{program}: {str(error) or 'interrupted; what is done is kept'}")
        return exit_code(error)


class OneLineParser(argparse.ArgumentParser):
    """Without the usage that argparse prints above an error."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(
            f"{' '.join(message.removeprefix('argument ').split())} (see --help)"
        )


def utf8_text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8-sig")


def parser() -> argparse.ArgumentParser:
    about = "Answer a question over text, images, audio and video."
    p = OneLineParser(
        prog=console.PROGRAM, description=about, epilog=EPILOG, allow_abbrev=False
    )
    p.add_argument(
        "words", nargs="*", metavar="QUESTION", help="the question; - reads stdin"
    )
    how: dict[str, Any]
    for flag, (metavar, text) in FLAGS.items():
        how = {"metavar": metavar, "type": TYPES.get(metavar, str)}
        how |= {"action": "append", "default": []} if flag in MEDIA else {}
        how |= {"choices": metavar.split("|")} if "|" in metavar else {}
        p.add_argument(
            f"--{flag}", help=text, **(how if metavar else {"action": "store_true"})
        )
    add_flags(p, Options)
    folder: dict[str, Any] = {
        "metavar": "DIR",
        "type": Path,
        "nargs": "?",
        "const": Path("runs"),
    }
    p.add_argument("--runs", **folder, help="list the runs in a folder (runs)")
    p.add_argument("--version", action="version", version=__version__)
    return p


def add_flags(p: argparse.ArgumentParser, model: type[pool.Checked]) -> None:
    """A flag for each field of a model that has a description."""
    for name, field in model.model_fields.items():
        if not field.description:
            continue
        default, metavar = (
            field.default,
            (cast(Any, field.json_schema_extra) or {}).get("metavar"),
        )
        choices = "|".join(c for c in get_args(field.annotation) if isinstance(c, str))
        how: dict[str, Any] = {
            "metavar": choices or metavar,
            "required": field.is_required(),
        }
        how |= {"action": "append"} if default == () else {}
        how |= {"type": utf8_text} if metavar == "FILE" else {}
        if isinstance(default, bool):
            how = {
                "action": argparse.BooleanOptionalAction if default else "store_true"
            }
        shown = f" ({default})" if type(default) in (int, float, str) else ""
        how |= {
            "dest": name,
            "default": argparse.SUPPRESS,
            "help": f"{field.description}{shown}",
        }
        p.add_argument(flag_of(name), **how)


def from_flags(model: type[M], given: Mapping[str, Any]) -> M:
    """The model with these fields. Raises ConfigError, which names the flag."""
    try:
        return model(**given)
    except pool.Invalid as error:
        where = f"{flag_of(str(error.loc[0]))}: " if error.loc else ""
        raise ConfigError(f"{where}{error.problem}") from None


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, with `options` (Options), `given` (its fields on this command line),
    `question` and `methods`. Raises ConfigError.
    """
    p = parser()
    a = p.parse_intermixed_args(argv)
    given = {k: getattr(a, k) for k in Options.model_fields if hasattr(a, k)}
    a.options = from_flags(Options, given)
    a.given = {k: getattr(a.options, k) for k in given}
    if a.words and a.question is not None:
        p.error("--question: the question is given twice")
    a.question = " ".join(a.words) if a.words else a.question
    if a.replay and a.resume:
        p.error("--replay and --resume: give one of them")
    folder = a.replay or a.resume
    if folder:
        fixed = NEW_RUN_ONLY if a.resume else (*NEW_RUN_ONLY, "workdir", "backends")
        for name in (name for name in fixed if getattr(a, name)):
            p.error(f"--{name}: is stored in {folder}; leave it out")
    elif a.question is None and not a.runs:
        p.error('the question is missing; try "..." --image FILE, or make demo')
    if a.from_round is not None and not a.resume:
        p.error("--from-round: needs --resume RUN")
    if a.out and folder and a.from_round is None:
        p.error(
            f"--out: the run stays in {folder}; leave it out, or add --from-round N"
        )
    if a.workdir and not folder and a.options.sub_agent != "mini-swe":
        p.error("--workdir: needs --sub-agent mini-swe")
    a.methods = _methods(p, a)
    if a.question == "-":
        a.question = sys.stdin.buffer.read().decode("utf-8", "replace")
    return a


def _methods(p: argparse.ArgumentParser, a: argparse.Namespace) -> tuple[str, ...]:
    names = (
        [n.strip() for n in a.compare.split(",")] if a.compare else [a.options.method]
    )
    methods = tuple(METHODS if a.compare == "all" else dict.fromkeys(names))
    if len({*map(_folder_name, methods)}) < len(methods):
        p.error("--compare: two classes have the same name; rename one")
    if a.compare and "method" in a.given:
        p.error("--compare: names the methods itself; leave --method out")
    for name in a.given:
        owners = {
            *str(Options.model_fields[name].description)
            .partition(": ")[0]
            .split(" or ")
        }
        own = any(".py:" in m for m in methods)  # it may use any option
        used = owners & {*methods} or own or a.replay or a.resume
        if owners <= {*METHODS} and not used:  # as its help says
            p.error(
                f"{flag_of(name)}: belongs to --method {' or '.join(sorted(owners))}"
            )
    return methods


def _folder_name(method: str) -> str:
    """The folder of a method in a comparison."""
    return method.rpartition(":")[2]


# ---- the commands --------------------------------------------------------------------------------


def run(argv: Sequence[str] | None, *functions: Callable[..., Any]) -> int:
    """One command, over `functions` of orchestra_min (see _runs). Returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    a, name, folder, done = None, "", Path(), dict[str, console.Outcome]()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
    for stream in ("stdin", "stdout", "stderr"):
        if (
            getattr(sys, stream) is None
        ):  # closed by the shell; no file may get its number
            setattr(sys, stream, Path(os.devnull).open("r+"))  # noqa: SIM115
    try:
        a = parse(argv)
        if a.runs:
            return console.list_runs(a.runs, a.json)
        if a.quiet:
            logging.getLogger("orchestra").setLevel(logging.ERROR)
        with contextlib.redirect_stdout(sys.stderr), console.listeners(a) as shown:
            for name, folder, start in [*_runs(a, *functions)]:  # noqa: B007  failure() needs it
                try:
                    done[name] = start(listeners=shown)
                except EndpointError as error:
                    if not a.compare:
                        raise
                    done[name] = error  # the others still run
        return console.report(done, a)
    except ENDS as error:
        console.tell_error(console.failure(error, name, folder, a), argv)
        return exit_code(error)


def _runs(
    a: argparse.Namespace,
    orchestrate: Callable[..., Trajectory],
    replay: Callable[..., Trajectory],
    resume: Callable[..., Trajectory],
    make: Callable[..., object],
) -> Iterator[tuple[str, Path, Callable[..., Trajectory]]]:
    """Name, folder and function of each run of this command."""
    out = a.out or run_folder.default_path()
    if a.replay:
        yield "replay", a.replay, partial(replay, a.replay, **a.given)
    elif a.resume:
        folder = a.resume if a.from_round is None else out
        again = {"pool": a.backends, "workdir": a.workdir, **a.given}
        yield "resume", folder, partial(resume, a.resume, a.from_round, out, **again)
    else:
        media = [(kind, path) for kind in MEDIA for path in getattr(a, kind)]
        models = pool.choose(
            a.backends, a.model, a.perception, [kind for kind, _ in media]
        )
        for method in a.methods:
            folder = out / _folder_name(method) if a.compare else out
            options = a.options.with_(method=method)
            make(options, models, {})  # raises ConfigError before the first run
            how = {
                "pool": models,
                "options": options,
                "out": folder,
                "workdir": a.workdir,
            }
            yield method, folder, partial(orchestrate, a.question, media, **how)
