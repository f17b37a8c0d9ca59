"""The flags. Those of a run come from Options, so each has one definition."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NoReturn, get_args

from orchestra.vocabulary import ConfigError
from runtime import __version__
from runtime.options import Options, flag_of
from runtime.pool import Invalid

PROGRAM = "orchestra-min" if Path(sys.argv[0]).name == "orchestra-min" else "orchestra_min.py"
METHODS = ("orchestra-o1", "aorchestra", "toolorchestra", "mas-orchestra", "react")
OWNERS = {  # flags of one method, or of some
    "context": "aorchestra", "sub_agent": "aorchestra", "workdir": "aorchestra",
    "dom": "mas-orchestra", "stop_threshold": "orchestra-o1",
    "instruction": "aorchestra or orchestra-o1",
}  # fmt: skip
ONE_DECISION = {"mas-orchestra", "react"}
OF_REPLAY = {"method", "parallel", "tools"}  # options that may be given with --replay
OF_RESUME = OF_REPLAY | {"timeout_s", "patience_s", "mcp", "allow_hosts", "unsafe_code"}
OF_NEW_RUN = {"question", "image", "audio", "video", "workdir", "compare", "model", "perception"}
FLAGS = {  # flag: metavar, help; FILE, REPO and RUN are paths
    "question": ("TEXT", "same as QUESTION"),
    "image": ("FILE", "image file; repeatable"),
    "audio": ("FILE", "audio file; repeatable"),
    "video": ("FILE", "video file; repeatable"),
    "workdir": ("REPO", "mini-swe: git repository; sub-agents work in a copy; writes changes.diff"),
    "compare": ("METHODS", "several, as in orchestra-o1,react, or all; each has the full budget"),
    "model": ("NAME", "the main agent's model; not needed where the endpoint serves one"),
    "backends": ("FILE", "a pool of models, as in runtime/backends.toml"),
    "perception": ("endpoint|local", "what analyses images and sound (default: the pool file)"),
    "out": ("RUN", "folder of this run (runs/<time>)"),
    "replay": ("RUN", "run again from the tape, offline"),
    "resume": ("RUN", "continue a run; pays only for what is missing"),
    "from-round": ("N", "with --resume: a new run that keeps the rounds before N"),
    "json": ("", "one JSON object instead of the answer alone"),
    "quiet": ("", "no progress and no notes on standard error"),
}
EPILOG = (
    "exit codes: 0 answered, 1 only a fallback answer, 2 usage or configuration, 3 replay differs, "
    "4 endpoint, 130 interrupted"
)


class OneLineParser(argparse.ArgumentParser):
    """Errors are one line: argparse's own prints the whole usage above it."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{' '.join(message.removeprefix('argument ').split())} (see --help)")


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("needs a path")
    return Path(text)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        problem = f"{path} cannot be read ({error}); give a text file"
        raise argparse.ArgumentTypeError(problem) from None


def parser() -> argparse.ArgumentParser:
    about = "Answer a question over text, images, audio and video."
    p = OneLineParser(prog=PROGRAM, description=about, epilog=EPILOG, allow_abbrev=False)
    p.add_argument(
        "words", nargs="*", metavar="QUESTION", help="the question; - reads it from stdin"
    )
    for flag, (metavar, text) in FLAGS.items():
        kind: Any = {"FILE": _path, "REPO": _path, "RUN": _path, "N": int}.get(metavar, str)
        how: dict[str, Any] = {"metavar": metavar, "type": kind}
        if flag in ("image", "audio", "video"):
            how |= {"action": "append", "default": []}
        p.add_argument(f"--{flag}", help=text, **(how if metavar else {"action": "store_true"}))
    for name, field in Options.model_fields.items():
        if field.json_schema_extra:
            extra: Any = field.json_schema_extra
            shown = f" ({field.default:g})" if isinstance(field.default, float) else ""
            shown = f" ({field.default})" if field.default and not shown else shown
            choices = "|".join(get_args(field.annotation)) if isinstance(field.default, str) else ""
            how = {"dest": name, "default": argparse.SUPPRESS}
            how |= {"help": f"{field.description}{shown}"}
            how |= {"action": "append" if field.default == () else "store"}
            how |= {"metavar": choices or extra["metavar"]}
            if extra["metavar"] == "FILE":
                how["type"] = _text
            if field.default is False:
                how = {**how, "action": "store_true"}
                del how["metavar"]
            p.add_argument(flag_of(name), **how)
    folder: dict[str, Any] = {"metavar": "DIR", "type": Path, "nargs": "?", "const": Path("runs")}
    p.add_argument("--runs", **folder, help="list the runs in a folder (runs)")
    p.add_argument("--version", action="version", version=__version__)
    return p


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The arguments, with `options` (Options), `given` (its fields on this command line),
    `question` and `methods`. Raises ConfigError.
    """
    p = parser()
    a = p.parse_intermixed_args(argv)
    given = {k: getattr(a, k) for k in Options.model_fields if hasattr(a, k)}
    try:
        a.options = Options(**given)
    except Invalid as error:
        problem = str(error).partition(": ")[2]
        raise ConfigError(f"{flag_of(str(error.loc[0]))}: {problem}") from None
    a.given = {k: getattr(a.options, k) for k in given}
    if a.words and a.question is not None:
        p.error("--question: the question is given twice")
    a.question = " ".join(a.words) if a.words else a.question
    folder = a.replay or a.resume
    if a.replay and a.resume:
        p.error("--replay and --resume: give one of them")
    if folder:
        fixed = OF_NEW_RUN - {"workdir"} if a.resume else OF_NEW_RUN | {"backends"}
        allowed = OF_RESUME if a.resume else OF_REPLAY
        wrong = {k for k in fixed if getattr(a, k)} | (a.given.keys() - allowed)
        for name in sorted(wrong):
            p.error(f"{flag_of(name)}: is stored in {folder}; leave it out")
    elif a.question is None and not a.runs:
        p.error('the question is missing; try "..." --image FILE, or make demo')
    a.methods = _methods(p, a)
    for wrong_use, problem in (
        (a.from_round is not None and not a.resume, "--from-round: needs --resume RUN"),
        (
            a.workdir and not folder and a.options.sub_agent != "mini-swe",
            "--workdir: needs --sub-agent mini-swe",
        ),
        (a.perception not in (None, "endpoint", "local"), "--perception: needs endpoint or local"),
        (folder and a.out and a.from_round is None, "--out: goes with a new run or --from-round"),
    ):
        if wrong_use:
            p.error(problem)
    return a


def _methods(p: argparse.ArgumentParser, a: argparse.Namespace) -> tuple[str, ...]:
    names = [name.strip() for name in (a.compare or a.options.method).split(",")]
    methods = METHODS if a.compare == "all" else tuple(dict.fromkeys(names))
    if a.compare and "method" in a.given:
        p.error("--compare: names the methods itself; leave --method out")
    for name in methods:
        if name not in METHODS and ".py:" not in name:
            flag = "--compare" if a.compare else "--method"
            p.error(f"{flag} {name}: needs one of {', '.join(METHODS)}, or FILE.py:CLASS")
    for name, method in OWNERS.items():
        used = name in a.given or bool(getattr(a, name, None))
        if used and not {*method.split(" or ")} & {*methods} and not (a.replay or a.resume):
            p.error(f"{flag_of(name)}: belongs to --method {method}")
    if "rounds" in a.given and set(methods) <= ONE_DECISION:
        p.error(f"--rounds: {', '.join(methods)} decides once; leave it out")
    return methods


def question(a: argparse.Namespace) -> str:
    """The question itself; - stands for standard input."""
    if a.question == "-":
        return sys.stdin.buffer.read().decode("utf-8", "replace")
    return str(a.question)
