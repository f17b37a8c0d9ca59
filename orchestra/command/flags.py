"""The flags of a run, and the errors of a command: each is one line on standard error."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from orchestra import methods as shipped
from orchestra.kernel.folder import Options
from orchestra.kernel.tape import Cancelled, DiskFull, TapeMiss
from orchestra.kernel.vocabulary import BudgetExceeded, ConfigError, EndpointError

KINDS = ("image", "audio", "video", "file")
HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+|[0-9a-fA-F:]+)(:\d{1,5})?")
MOST = 10_000  # of a count
MOST_S = 86_400.0
Read = Callable[[str], Any]

# ---- errors --------------------------------------------------------------------------------------

EXIT_CODES: dict[type[BaseException], int] = {
    BudgetExceeded: 1,
    ConfigError: 2,
    DiskFull: 2,
    OSError: 2,
    TapeMiss: 3,
    EndpointError: 4,
    MemoryError: 4,
    KeyboardInterrupt: 130,
    Cancelled: 130,
}
ENDS = tuple(EXIT_CODES)


def exit_code(error: BaseException) -> int:
    return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))


class OneLineParser(argparse.ArgumentParser):
    """Without the usage that argparse prints above an error."""

    def error(self, message: str) -> NoReturn:
        problem = " ".join(message.removeprefix("argument ").split())
        word = re.search(
            r"(?:unrecognized arguments: |invalid choice: ')([\w-]+)", problem
        )
        known = re.findall(r"--[\w-]+|\b[a-z-]+\b", self.format_usage())
        near = difflib.get_close_matches(word[1], known, n=1) if word else []
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{problem}{meant} (see --help)")


# ---- values --------------------------------------------------------------------------------------


def checked(
    read: Callable[[str], float], is_right: Callable[[Any], bool], wanted: str
) -> Read:
    """Reads a value. argparse and `option` show the error's text behind the flag."""

    def value(text: str) -> Any:
        try:
            if is_right(found := read(text)):
                return found
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")

    return value


count = checked(int, lambda n: 1 <= n <= MOST, f"a whole number from 1 to {MOST}")
money = checked(float, lambda n: 0 <= n <= 1e9, "an amount in USD")
seconds = checked(float, lambda n: 0 < n <= MOST_S, "a number of seconds")


def _host(text: str) -> str:
    if not HOST.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST or HOST:PORT")
    return text


def file_of(text: str) -> tuple[str, Path]:
    """[KIND:]PATH"""
    kind, colon, path = text.partition(":")
    return (kind, Path(path)) if colon and kind in KINDS else ("", Path(text))


def _folders(text: str) -> tuple[Path, ...]:
    return tuple(Path(name) for name in text.split(","))


# ---- the flags -----------------------------------------------------------------------------------

Row = tuple[str, str, Read, str]  # flag, metavar or ""; what reads it; help
GROUPS: dict[str, tuple[Row, ...]] = {
    "ask": (
        ("question", "TEXT", str, "the question, if not the first word; - reads stdin"),
        (
            "file",
            "[KIND:]PATH",
            file_of,
            f"a file; KIND: {', '.join(KINDS)}; repeatable",
        ),
        ("out", "RUN", Path, "folder of this run (default: runs/<time>)"),
        ("json", "", bool, "print one JSON object instead of the answer alone"),
        ("verbose", "", bool, "show each step: thought, action, observation and cost"),
        ("quiet", "", bool, "no progress on standard error, only what went wrong"),
    ),
    "models": (
        (
            "model",
            "NAME",
            str,
            "the main agent's model; not needed if only one is served",
        ),
        ("backends", "FILE", Path, "a pool of models (docs/models.md)"),
        (
            "prompts",
            "full|small",
            str,
            "the paper's prompts, or prompts for small models",
        ),
        (
            "timeout",
            "S",
            seconds,
            "time limit of one attempt of a call (default: 120, or as recorded)",
        ),
    ),
    "spend": (
        (
            "budget",
            "USD",
            money,
            "spending limit; calls that could exceed it are not started",
        ),
        ("rounds", "N", count, "most rounds (default: the method's own)"),
        ("steps", "N", count, "most steps of a sub-agent (default: 30)"),
        ("k-max", "N", count, "most sub-tasks of a round, K_max (default: no limit)"),
        ("parallel", "N", count, "sub-tasks that run at the same time (default: 8)"),
    ),
    "record and replay": (
        ("replay", "RUN", Path, "run again from the tape, offline"),
        ("resume", "RUN", Path, "continue a run; pays only for what is missing"),
        (
            "reuse",
            "RUN[,RUN]",
            _folders,
            "take the answers to equal requests from these runs",
        ),
    ),
    "swap": (
        (
            "method",
            "NAME",
            str,
            f"who decides: {', '.join(shipped.METHODS)} or FILE.py:NAME",
        ),
        ("agent", "NAME", str, "who does a sub-task: react, mini-swe or FILE.py:NAME"),
        ("tools", "FILE.py:NAME", str, "a tool of your own; repeatable"),
        ("mcp", "COMMAND", str, "command of an MCP server, or its URL; repeatable"),
        (
            "option",
            "NAME=VALUE",
            str,
            "an option without a flag (docs/options.md); repeatable",
        ),
        ("workdir", "REPO", Path, "mini-swe works in a copy of this git repository"),
    ),
    "safety": (
        (
            "allow-host",
            "HOST[:PORT]",
            _host,
            "internal host that pages may come from; repeatable",
        ),
        (
            "unsafe-code",
            "",
            bool,
            "run code of models without a sandbox (docs/security.md)",
        ),
    ),
}
OF_A_FORK = (
    ("from-round", "N", count, "a new run that keeps the rounds before N"),
    (
        "what-if",
        "PLACE=VALUE",
        str,
        "a new run in which this is decided, found or seen; repeatable",
    ),
)
REPEATED = ("file", "tools", "mcp", "option", "allow-host", "what-if")
# The option that a flag sets, if it has another name
OPTIONS = {
    "budget": "budget_usd",
    "timeout": "timeout_s",
    "allow_host": "allow_hosts",
    **{
        name: name
        for name in ("method", "agent", "prompts", "rounds", "steps", "k_max")
    },
    **{name: name for name in ("parallel", "tools", "mcp", "unsafe_code")},
}
# What may be given to a replay, and to a resume that is not a fork; the rest is in run.json
TO_A_REPLAY = (
    "replay",
    "json",
    "verbose",
    "quiet",
    "parallel",
    "method",
    "agent",
    "tools",
)
TO_A_RESUME = (
    *("resume", "json", "verbose", "quiet", "parallel", "method", "agent", "tools"),
    *(
        "backends",
        "timeout",
        "reuse",
        "mcp",
        "workdir",
        "allow_host",
        "unsafe_code",
        "option",
    ),
)
ABOUT = {
    "": "Answer a question over text, images, audio, video and other files.",
    "replay": "Run a recorded run again from its tape, offline.",
    "resume": "Continue a run. With --from-round or --what-if, begin a new one from it: only\n"
    "that takes --out, --model, --prompts, --budget, --rounds, --steps and --k-max.",
}
EPILOG = """commands, each with its own --help:
  replay RUN       run it again from its tape, offline
  resume RUN       continue it; with --from-round or --what-if, vary it
  runs [DIR]       list runs: why they ended, and what to do next
  report RUN|DIR   make an HTML page
  explain RUN      show the equations with the numbers of the run
  diff RUN RUN     show where two runs part
  evaluate         answer many questions, and score the answers
  curate           make training questions from others
  optimize-prompt  learn an instruction
example: orchestra-min "Which city is this?" city.jpg --method react
environment: OPENAI_API_KEY is the key, OPENAI_BASE_URL the endpoint (default: OpenAI's)
exit codes: 0 answer, 1 fallback or no answer, 2 usage, 3 replay differs, 4 endpoint,
  130, 143 or 129 interrupted (Ctrl-C, SIGTERM or SIGHUP)"""


def parser(program: str, verb: str = "") -> argparse.ArgumentParser:
    """Of a run, or of `replay` or `resume`, whose help shows the flags that they take."""
    p = OneLineParser(
        prog=f"{program} {verb} RUN" if verb else program,
        description=ABOUT[verb],
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    about = "the question in quotes, then files of any kind"
    hidden = argparse.SUPPRESS
    name = None if verb else "QUESTION [FILE ...]"
    p.add_argument("words", nargs="*", metavar=name, help=hidden if verb else about)
    fork = {"resume": OF_A_FORK} if verb == "resume" else {}
    stored = ("question", "file", "replay", "resume")
    shown = TO_A_REPLAY if verb == "replay" else {*names()} - {*stored}
    for title, rows in {**fork, **GROUPS}.items():
        group = p.add_argument_group(title)
        for flag, metavar, read, text in rows:
            how: dict[str, Any] = {"action": "store_true"}
            if metavar:
                how = {"metavar": metavar, "type": read}
            if flag in REPEATED:
                how["action"] = "append"
            if flag == "prompts":
                how["choices"] = metavar.split("|")
            is_shown = flag.replace("-", "_") in shown or title == "resume"
            if verb and (flag == verb or not is_shown):  # RUN stands for --resume RUN
                text = hidden
            group.add_argument(f"--{flag}", help=text, **how)
    p.add_argument("--version", action="version", version=_version())
    return p


def _version() -> str:
    from orchestra import __version__

    return __version__


def read(words: Sequence[str], program: str, verb: str = "") -> argparse.Namespace:
    """The flags, with `given`: the names of those on this command line, `set`: the options that
    they set, and `options`. The RUN of `replay` and `resume` is as if it were --replay or --resume.
    Raises ConfigError.
    """
    p = parser(program, verb)
    a = p.parse_intermixed_args(list(words))
    vars(a).setdefault("words", [])
    if verb and not a.words:
        raise ConfigError(f"{verb}: name a run, as in {program} {verb} runs/DIR")
    if verb:
        setattr(a, verb, Path(a.words.pop(0)))
    a.given = set(vars(a)) - {"words"}
    missing = {name: None for name in names() if name not in a.given}
    a.set = {OPTIONS[name]: vars(a)[name] for name in OPTIONS if name in a.given}
    for name, value in missing.items():
        setattr(a, name, value)
    for name in ("file", "reuse", "what_if", "option"):
        setattr(a, name, vars(a)[name] or ())
    _check_together(a)
    a.options = Options.of(**a.set)
    return a


def names() -> list[str]:
    rows = [row for group in (*GROUPS.values(), OF_A_FORK) for row in group]
    return [flag.replace("-", "_") for flag, *_ in rows]


def _check_together(a: argparse.Namespace) -> None:
    """Raises ConfigError for flags that do not go together."""
    folder = a.replay or a.resume
    if a.replay and a.resume:
        raise ConfigError("--replay and --resume: give one of them")
    if not folder:
        return
    if a.words:
        raise ConfigError(
            f"{a.words[0]}: the question is stored in {folder}; leave it out"
        )
    is_fork = a.from_round is not None or bool(a.what_if)
    allowed = TO_A_REPLAY if a.replay else TO_A_RESUME
    fixed = {"question", "file"} if is_fork else a.given - set(allowed)
    for name in sorted(fixed & a.given):
        advice = "leave it out"
        if a.resume and name not in ("question", "file", "out"):
            advice = "a new run from it can change it: add --from-round 1"
        flag = f"--{name.replace('_', '-')}"
        raise ConfigError(f"{flag}: is stored in {folder}; {advice}")
