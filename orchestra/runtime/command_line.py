"""The command line of a run: its flags, those of Options among them, and how they go together."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast, get_args

from pydantic.fields import FieldInfo

from orchestra import __version__
from orchestra.ending import ending_of, exhausted
from orchestra.runtime import console, pool, texts
from orchestra.runtime.interruption import of_process as interruption
from orchestra.runtime.jsonl import TapeWriteError
from orchestra.runtime.options import METHODS, Options, check_use, flag_of
from orchestra.runtime.spelling import did_you_mean
from orchestra.runtime.tape import Cancelled, TapeMiss
from orchestra.runtime.trajectory import printable
from orchestra.vocabulary import BudgetExceeded, ConfigError, EndpointError

M = TypeVar("M", bound=pool.Checked)
MEDIA = ("image", "audio", "video", "file")
NEW_RUN_ONLY = ("question", "files", *MEDIA, "compare", "model")


def _folders(text: str) -> tuple[Path, ...]:
    return tuple(Path(name) for name in text.split(","))


TYPES: dict[str, Callable[[str], Any]] = {
    "FILE": Path,
    "REPO": Path,
    "RUN": Path,
    "RUN[,RUN]": _folders,
    "N": int,
}
FLAGS = {  # flag: metavar, help
    "question": ("TEXT", "same as QUESTION"),
    "image": ("FILE", "image file; repeatable"),
    "audio": ("FILE", "audio file; repeatable"),
    "video": ("FILE", "video file; repeatable"),
    "file": ("FILE", "any other file, as a table, a document or code; repeatable"),
    "workdir": (
        "REPO",
        "mini-swe: git repository; agents work in a copy; writes changes.diff",
    ),
    "compare": (
        "METHODS",
        "several, as in orchestra-o1,react, or all; each has the full budget",
    ),
    "model": (
        "NAME",
        "the main agent's model; not needed where the endpoint serves one",
    ),
    "backends": ("FILE", "a pool of models, as docs/models.md describes it"),
    "perception": (
        "endpoint|local",
        "what analyses images and sound (default: the pool file)",
    ),
    "out": ("RUN", "folder of this run (default: runs/<time>)"),
    "replay": ("RUN", "run again from the tape, offline"),
    "resume": ("RUN", "continue a run; pays only for what is missing"),
    "from-round": ("N", "with --resume: a new run that keeps the rounds before N"),
    "reuse": (
        "RUN[,RUN]",
        "take answers to equal requests from these runs, and pay only for the rest",
    ),
    "what-if": (
        "PLACE=JSON|@FILE",
        "with --resume: a fork in which this is decided, found or seen; repeatable",
    ),
    "only": ("tools|models", "with --reuse: what is taken, the rest is made anew"),
    "json": ("", "one JSON object instead of the answer alone"),
    "live": ("", "a page on this machine that follows the run; its address is printed"),
    "verbose": ("", "each step: thought, action, observation and cost"),
    "quiet": ("", "no progress and no notes on standard error"),
}
EPILOG = """commands, each with its own --help: report, explain, diff, evaluate, masbench,
  curate, optimize_prompt, texts
environment: OPENAI_API_KEY is the key, OPENAI_BASE_URL the endpoint (default: OpenAI's)
exit codes: 0 answer, 1 fallback, 2 usage, 3 replay differs, 4 endpoint,
  130, 143 or 129 interrupted (Ctrl-C, SIGTERM or SIGHUP)"""
EXIT_CODES: dict[type[BaseException], int] = {
    BudgetExceeded: 1,
    ConfigError: 2,
    TapeWriteError: 2,
    OSError: 2,
    TapeMiss: 3,
    EndpointError: 4,
    KeyboardInterrupt: 130,
    Cancelled: 130,
}
ENDS = tuple(EXIT_CODES)
EXHAUSTED = 4  # the exit code if the machine lacks memory or threads


def exit_code(error: BaseException) -> int:
    codes = (code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
    return next(codes, EXHAUSTED)


def run_program(name: str, work: Callable[[], int | None]) -> int:
    """Run `work` and return its exit code. An error is one line on standard error."""

    def stopped(error: BaseException) -> int:
        ending = ending_of(error)
        kept = ending.cause in ("signal", "machine")
        note = "; what is done is kept" if kept else ""
        why = ending.why
        if isinstance(error, ConfigError):
            why = printable(why)  # it may have names of a folder from someone else
        console.tell(f"{name}: {why}{note}")
        return exit_code(error)

    interruption.last_words = lambda: stopped(Cancelled())
    try:
        return work() or 0
    except ENDS as error:
        return stopped(Cancelled() if interruption.requested else error)
    except Exception as error:
        if exhausted(error):
            return stopped(error)
        raise


class OneLineParser(argparse.ArgumentParser):
    """Without the usage that argparse prints above an error."""

    def error(self, message: str) -> NoReturn:
        problem = " ".join(message.removeprefix("argument ").split())
        hint = ""
        if problem.startswith("unrecognized arguments: "):
            flag, _, _ = problem.split()[2].partition("=")
            hint = did_you_mean(flag, self._option_string_actions)
        raise ConfigError(f"{problem}{hint} (see --help)")


def utf8_text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8-sig")


# What is read of an option that names a file or a folder: run.json has the texts, not the paths
READ = {"FILE": utf8_text, "FOLDER": lambda path: texts.read(Path(path))}


def parser() -> argparse.ArgumentParser:
    p = OneLineParser(
        prog=console.PROGRAM,
        description="Answer a question over text, images, audio, video and other files.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    p.add_argument(
        "words",
        nargs="*",
        metavar="QUESTION [FILE ...]",
        help="the question in quotes (- reads stdin), then files of any kind",
    )
    for flag, (metavar, text) in FLAGS.items():
        _add_flag(p, flag, metavar, text)
    add_flags(p, Options)
    p.add_argument(
        "--runs",
        metavar="DIR",
        type=Path,
        nargs="?",
        const=Path("runs"),
        help="list the runs in a folder (runs)",
    )
    p.add_argument("--version", action="version", version=__version__)
    return p


def _add_flag(p: argparse.ArgumentParser, flag: str, metavar: str, text: str) -> None:
    """A flag of FLAGS."""
    if not metavar:
        p.add_argument(f"--{flag}", help=text, action="store_true")
        return
    how: dict[str, Any] = {"metavar": metavar, "type": TYPES.get(metavar, str)}
    if flag in MEDIA:
        how |= {"action": "append", "default": []}
    if flag == "reuse":
        how["default"] = ()
    if flag == "what-if":
        how |= {"action": "append", "default": []}
    elif "|" in metavar:
        how["choices"] = metavar.split("|")
    p.add_argument(f"--{flag}", help=text, **how)


def add_flags(p: argparse.ArgumentParser, model: type[pool.Checked]) -> None:
    """A flag for each field of a model that has a description."""
    for name, field in model.model_fields.items():
        if not field.description:
            continue
        extra = cast(dict[str, Any], field.json_schema_extra or {})
        how: dict[str, Any] = {
            "dest": name,
            "default": argparse.SUPPRESS,
            "help": _help_of(field, extra),
        }
        if isinstance(field.default, bool):
            both = argparse.BooleanOptionalAction
            how["action"] = both if field.default else "store_true"
        else:
            values = [c for c in get_args(field.annotation) if isinstance(c, str)]
            how["metavar"] = "|".join(values) or extra.get("metavar")
            how["required"] = field.is_required()
            if field.default == ():
                how["action"] = "append"
            if extra.get("metavar") in READ:
                how["type"] = READ[extra["metavar"]]
        p.add_argument(flag_of(name), **how)


def _help_of(field: FieldInfo, extra: Mapping[str, Any]) -> str:
    """The description, the default, and the methods that use the field if not all do."""
    notes: list[str] = []
    if type(field.default) in (int, float, str):
        notes.append(f"default: {field.default}")
    methods = extra.get("methods", ())
    if methods:
        notes.append(f"only with {', '.join(methods)}")
    return (
        f"{field.description} ({'; '.join(notes)})" if notes else str(field.description)
    )


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
    given = {name: getattr(a, name) for name in Options.model_fields if name in a}
    later = {}
    if "texts" in given and (a.replay or a.resume or a.compare):
        later["texts"] = given.pop("texts")  # checked when the method is known
    a.options = from_flags(Options, given)
    a.given = {name: getattr(a.options, name) for name in given} | later
    a.files = []
    if a.words:
        _read_words(p, a)
    _check_run(p, a)
    a.methods = _methods(p, a)
    if not (a.replay or a.resume):
        check_use(a.given, a.methods)
    if a.question == "-":
        a.question = sys.stdin.buffer.read().decode("utf-8", "replace")
    return a


def _read_words(p: argparse.ArgumentParser, a: argparse.Namespace) -> None:
    """Set `question` and `files` from the words without a flag: after a question in quotes, and
    with --question, they are files. Without quotes they are the question; those at its end that are
    files belong to it. A single word before files is a question.
    """
    words = list(a.words)
    are_files = all(Path(word).is_file() for word in words[1:])
    is_quoted = len(words[0].split()) > 1 or (len(words) > 1 and are_files)
    if a.question is None and not is_quoted:
        a.question = " ".join(words)
        while len(words) > 1 and Path(words[-1]).is_file():
            a.files.insert(0, Path(words.pop()))
        return
    if a.question is None:
        a.question = words.pop(0)
    for word in words:
        if not Path(word).is_file():
            advice = "put the whole question into one pair of quotes"
            p.error(f"{word}: there is no such file; or, {advice}")
        a.files.append(Path(word))


def _check_run(p: argparse.ArgumentParser, a: argparse.Namespace) -> None:
    """Raises ConfigError for flags that do not go together."""
    if a.replay and a.resume:
        p.error("--replay and --resume: give one of them")
    folder = a.replay or a.resume
    is_fork = a.resume and (a.from_round is not None or a.what_if)
    if folder:
        given_again = ("workdir", "backends", "perception")
        fixed = NEW_RUN_ONLY if a.resume else (*NEW_RUN_ONLY, *given_again)
        for name in fixed:
            if is_fork and name == "model":
                continue
            if getattr(a, name):
                p.error(f"--{name}: is stored in {folder}; leave it out")
    elif a.question is None and not a.runs:
        p.error('the question is missing; try "..." --image FILE, or make demo')
    if a.live and a.replay:
        p.error("--live: a replay makes no calls; leave it out")
    if a.reuse and a.replay:
        p.error("--reuse: a replay is exact, from its own tape; leave it out")
    if a.only and not (a.reuse and a.question):
        p.error("--only: needs --reuse RUN, and a question")
    if a.from_round is not None and not a.resume:
        p.error("--from-round: needs --resume RUN")
    if a.what_if and not a.resume:
        p.error("--what-if: needs --resume RUN")
    if a.out and folder and not is_fork:
        p.error(
            f"--out: the run stays in {folder}; leave it out, or add --from-round N"
        )
    if a.workdir and not folder and a.options.agent != "mini-swe":
        p.error("--workdir: needs --agent mini-swe")


def _methods(p: argparse.ArgumentParser, a: argparse.Namespace) -> tuple[str, ...]:
    if not a.compare:
        return (a.options.method,)
    if "method" in a.given:
        p.error("--compare: names the methods itself; leave --method out")
    if a.compare == "all":
        return tuple(METHODS)
    names = [name.strip() for name in a.compare.split(",")]
    methods = tuple(dict.fromkeys(names))
    if len({folder_name(method) for method in methods}) < len(methods):
        p.error("--compare: two classes have the same name; rename one")
    return methods


def folder_name(method: str) -> str:
    """The folder of a method in a comparison."""
    return method.rpartition(":")[2]
