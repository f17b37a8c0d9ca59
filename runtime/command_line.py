"""The flags: those of a run come from Options, so each has one definition."""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn, get_args

from orchestra.vocabulary import ConfigError
from runtime.pool import Invalid
from runtime.run_folder import Options

METHODS = ("orchestra-o1", "aorchestra", "toolorchestra", "mas-orchestra", "react")
OWNERS = {  # flags of one method
    "context": "aorchestra",
    "sub_agent": "aorchestra",
    "workdir": "aorchestra",
    "mode": "toolorchestra",
    "dom": "mas-orchestra",
    "stop_threshold": "orchestra-o1",
}
ONE_DECISION = {"mas-orchestra", "react"}
OF_REPLAY = {"parallel", "tools"}  # options that may be given with --replay
OF_RESUME = OF_REPLAY | {"timeout_s", "patience_s", "mcp", "allow_hosts"}
EPILOG = """exit codes: 0 answered, 1 only a fallback answer, 2 usage or configuration, 3 tape miss,
4 endpoint, 130 interrupted"""


class OneLineParser(argparse.ArgumentParser):
    """Errors are one line: argparse's own prints the whole usage above it."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{' '.join(message.removeprefix('argument ').split())} (see --help)")


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("needs a path")
    return Path(text)


def parser() -> argparse.ArgumentParser:
    p = OneLineParser(
        prog="orchestra_min.py",
        description="Answer a question over text, images, audio and video.",
        epilog=EPILOG,
    )
    ask = p.add_argument_group("the question")
    ask.add_argument(
        "words", nargs="*", metavar="QUESTION", help="the question; - reads it from stdin"
    )
    ask.add_argument("--question", metavar="TEXT", help="the same as a flag")
    for kind in ("image", "audio", "video"):
        ask.add_argument(
            f"--{kind}",
            metavar="FILE",
            type=_path,
            action="append",
            default=[],
            help=f"{kind} file; repeatable",
        )
    ask.add_argument(
        "--workdir",
        metavar="REPO",
        type=_path,
        help="mini-swe: git repository to copy; writes changes.diff",
    )
    ask.add_argument(
        "--compare",
        metavar="METHODS",
        help="several methods, as in orchestra-o1,react, or all; each has the whole --budget",
    )
    ask.add_argument("--side-by-side", action="store_true", help="with --compare: all in parallel")
    models = p.add_argument_group("models")
    models.add_argument(
        "--model",
        metavar="NAME",
        help="the main agent's model; not needed where the endpoint serves one",
    )
    models.add_argument(
        "--backends",
        metavar="FILE",
        type=_path,
        help="a pool of models, as in runtime/backends.toml",
    )
    models.add_argument(
        "--perception",
        choices=("endpoint", "local"),
        help="what analyses images and sound (default: the pool file)",
    )
    run = p.add_argument_group("the run")
    for name, field in Options.model_fields.items():
        extra: Any = field.json_schema_extra
        if extra:
            default = f" ({field.default})" if field.default else ""
            choices = get_args(field.annotation) if isinstance(field.default, str) else ()
            action = {"action": "append"} if field.default == () else {"choices": choices or None}
            run.add_argument(
                f"--{extra['flag']}", dest=name, metavar=None if choices else extra["metavar"],
                help=f"{field.description}{default}",
                default=argparse.SUPPRESS, **action,
            )  # fmt: skip
    stored = p.add_argument_group("run folders")
    stored.add_argument("--out", metavar="RUN", type=_path, help="folder of this run (runs/<time>)")
    stored.add_argument(
        "--replay", metavar="RUN", type=_path, help="run again from the tape, offline"
    )
    stored.add_argument(
        "--resume", metavar="RUN", type=_path, help="continue a run; pays only for what is missing"
    )
    stored.add_argument(
        "--from-round",
        metavar="N",
        type=int,
        help="with --resume: a new run that keeps the rounds before N",
    )
    stored.add_argument(
        "--runs",
        metavar="DIR",
        type=_path,
        nargs="?",
        const=Path("runs"),
        help="list the runs in a folder (runs)",
    )
    output = p.add_argument_group("output")
    output.add_argument(
        "--json", action="store_true", help="one JSON object instead of the answer alone"
    )
    output.add_argument(
        "--quiet", action="store_true", help="no progress and no notes on standard error"
    )
    output.add_argument("--version", action="version", version=_version())
    return p


def _version() -> str:
    try:
        return version("orchestra-min")
    except PackageNotFoundError:
        return "orchestra-min, not installed"


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The arguments, with `options` (Options), `question` and `methods`. Raises ConfigError."""
    p = parser()
    a = p.parse_intermixed_args(argv)
    given = {k: getattr(a, k) for k in Options.model_fields if hasattr(a, k)}
    try:
        a.options = Options(**given)
    except Invalid as error:
        flag = (Options.model_fields[str(error.loc[0])].json_schema_extra or {})["flag"]  # type: ignore[index]
        raise ConfigError(f"--{flag}: {str(error).partition(': ')[2]}") from None
    a.given = given
    if a.words and a.question is not None:
        p.error("the question is given twice")
    a.question = " ".join(a.words) if a.words else a.question
    folder = a.replay or a.resume
    if folder:
        _check_stored(p, a, folder)
    elif a.question is None and not a.runs:
        p.error('the question is missing; try "..." --image FILE, or make demo')
    a.methods = _methods(p, a)
    if a.from_round is not None and not a.resume:
        p.error("--from-round: needs --resume RUN")
    if a.workdir and a.options.sub_agent != "mini-swe":
        p.error("--workdir: needs --sub-agent mini-swe")
    if a.side_by_side and not a.compare:
        p.error("--side-by-side: needs --compare METHODS")
    return a


def _check_stored(p: argparse.ArgumentParser, a: argparse.Namespace, folder: Path) -> None:
    """A stored run has its own question, options and folder."""
    if a.replay and a.resume:
        p.error("--replay and --resume: give one of them")
    fixed = {"question", "image", "audio", "video", "workdir", "compare", "model", "perception"}
    fixed |= set() if a.resume else {"backends"}
    wrong = [k for k in fixed if getattr(a, k)]
    wrong += [k for k in a.given if k not in (OF_RESUME if a.resume else OF_REPLAY)]
    if wrong:
        p.error(f"--{sorted(wrong)[0].replace('_', '-')}: is stored in {folder}; leave it out")
    if a.out and a.from_round is None:
        p.error("--out: a stored run has its folder; --out goes with --from-round")


def _methods(p: argparse.ArgumentParser, a: argparse.Namespace) -> tuple[str, ...]:
    methods = (a.options.method,)
    if a.compare:
        names = [name.strip() for name in a.compare.split(",")]
        methods = METHODS if a.compare == "all" else tuple(dict.fromkeys(names))
        if "method" in a.given:
            p.error("--compare: names the methods itself; leave --method out")
    for name in methods:
        if name not in METHODS and ".py:" not in name:
            p.error(f"--method {name}: needs one of {', '.join(METHODS)}, or FILE.py:CLASS")
    for name, method in OWNERS.items():
        used = name in a.given or bool(getattr(a, name, None))
        if used and method not in methods and not (a.replay or a.resume):
            p.error(f"--{name.replace('_', '-')}: belongs to --method {method}")
    if "rounds" in a.given and set(methods) <= ONE_DECISION:
        p.error(f"--rounds: {', '.join(methods)} decides once; leave it out")
    return methods


def question(a: argparse.Namespace) -> str:
    """The question itself; - stands for standard input."""
    text = a.question
    return sys.stdin.buffer.read().decode("utf-8", "replace") if text == "-" else str(text)
