"""The flags of orchestra_min.py, their checks, and nothing heavy: --help answers at once."""

from __future__ import annotations

import argparse
import importlib.util
import re
from pathlib import Path
from typing import Any, NoReturn

METHODS = ("orchestra-o1", "aorchestra", "toolorchestra", "mas-orchestra", "react")
CHOICES = {
    "context": ("curated", "none", "full"),
    "sub_agent": ("react", "mini-swe"),
    "mode": ("rl", "prompted"),
    "dom": ("low", "high"),
}
OWNERS = {
    "context": "aorchestra",
    "sub_agent": "aorchestra",
    "workdir": "aorchestra",
    "mode": "toolorchestra",
    "dom": "mas-orchestra",
    "stop_threshold": "orchestra-o1",
}  # flags of one method alone
PACKAGES = ("openai", "pydantic", "requests", "jsonlines", "vcr", "concurrent_log_handler")
INSTALL = "pip install -r requirements.txt, or . .venv/bin/activate"
DECIDE_ONCE = {"mas-orchestra", "react"}
EXIT_CODES = (
    "exit codes: 0 answered, 1 only a fallback answer, 2 usage or configuration, 3 tape miss, "
    "4 endpoint, 130 interrupted"
)


class OneLineParser(argparse.ArgumentParser):
    """argparse's own error prints the whole usage above the line that matters."""

    def error(self, message: str) -> NoReturn:
        line = " ".join(message.removeprefix("argument ").split())
        self.exit(2, f"{self.prog}: {line} (see --help)\n")


def _host(text: str) -> str:
    found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+|[0-9a-fA-F:]+?)(?::(\d{1,5}))?", text)
    if not found or int(found[2] or 1) not in range(1, 1 << 16):
        raise argparse.ArgumentTypeError(f"needs HOST or HOST:PORT, not {text!r}")
    return text


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("needs a path, and this one is empty")
    return Path(text)


def _methods(text: str) -> tuple[str, ...]:
    names = METHODS if text == "all" else tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in METHODS:
            known = ", ".join(METHODS)
            raise argparse.ArgumentTypeError(f"{name!r} is no method; known: {known}, or all")
    if len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r} names a method twice")
    return names


def _at_least_one(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if not 1 <= value <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 10000")
    return value


def _number(text: str, least: float, most: float, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value


def _money(text: str) -> float:
    return _number(text, 0.0, 1e9, "an amount of USD")


def _seconds(text: str) -> float:
    return _number(text, 0.001, 86_400, "a number of seconds")


def _probability(text: str) -> float:
    return _number(text, 0.0, 1.0, "a probability from 0 to 1")


MODALITY = {"metavar": "FILE", "type": _path, "action": "append", "default": []}
SEVERAL = {"action": "append", "default": []}
FLAGS: dict[str, dict[str, dict[str, Any]]] = {  # group -> flag -> what argparse is told
    "ask": {
        "question": {"metavar": "TEXT", "help": "the question; - reads it from standard input"},
        "image": {**MODALITY, "help": "image file; repeatable"},
        "audio": {**MODALITY, "help": "audio file; repeatable"},
        "video": {**MODALITY, "help": "video file; repeatable"},
        "method": {
            "choices": METHODS,
            "default": "orchestra-o1",
            "help": "the orchestrator (%(default)s)",
        },
        "compare": {
            "metavar": "METHODS",
            "type": _methods,
            "help": "several methods on the question, as in orchestra-o1,react, or all: one table; "
            "each has the whole --budget",
        },
        "side-by-side": {
            "action": "store_true",
            "help": "with --compare: all at once, not in turn",
        },
    },
    "of one method": {
        "context": {
            "choices": CHOICES["context"],
            "help": "aorchestra: what a sub-agent is told of the results so far (curated)",
        },
        "sub-agent": {
            "choices": CHOICES["sub_agent"],
            "help": "aorchestra: its executors (react)",
        },
        "workdir": {
            "metavar": "REPO",
            "type": _path,
            "help": "aorchestra with mini-swe: a git repository to work in a copy of; "
            "changes.diff out",
        },
        "mode": {
            "choices": CHOICES["mode"],
            "help": "toolorchestra: its trained tool calls, or numbered workers (rl)",
        },
        "dom": {
            "choices": CHOICES["dom"],
            "help": "mas-orchestra: one agent, or a graph (high)",
        },
        "stop-threshold": {
            "metavar": "P",
            "type": _probability,
            "help": "orchestra-o1: certainty that ends a run, Eq. 22 (off)",
        },
    },
    "models": {
        "model": {
            "metavar": "NAME",
            "help": "the main agent's model; needless where the endpoint serves one",
        },
        "backends": {
            "metavar": "FILE",
            "type": _path,
            "help": "a pool of models (see backends.toml); a run that is resumed keeps its own",
        },
        "perception": {
            "choices": ("endpoint", "local"),
            "help": "who looks and listens (default: the pool file says)",
        },
    },
    "tools": {
        "tools": {
            **SEVERAL,
            "metavar": "FILE:FUNCTION",
            "help": "a tool of your own: a typed function with a docstring; repeatable",
        },
        "mcp": {
            **SEVERAL,
            "metavar": "COMMAND",
            "help": "the tools of an MCP server that this command starts; repeatable",
        },
        "allow-host": {
            **SEVERAL,
            "metavar": "HOST[:PORT]",
            "type": _host,
            "help": "an internal host that pages may be fetched from; repeatable",
        },
    },
    "limits": {
        "rounds": {
            "metavar": "N",
            "type": _at_least_one,
            "help": "decisions of the main agent (10; toolorchestra 8, or 6 prompted)",
        },
        "steps": {
            "metavar": "N",
            "type": _at_least_one,
            "default": 30,
            "help": "steps of a sub-agent (%(default)s)",
        },
        "parallel": {"metavar": "N", "type": _at_least_one, "help": "sub-tasks side by side (8)"},
        "budget": {
            "metavar": "USD",
            "type": _money,
            "help": "no call starts that could pass it; with --compare it is each method's, not "
            "that of all",
        },
        "timeout": {
            "metavar": "S",
            "type": _seconds,
            "help": "seconds a try of a call may take (120)",
        },
    },
    "runs": {
        "out": {"metavar": "RUN", "type": _path, "help": "folder for this run (runs/<time>)"},
        "replay": {
            "metavar": "RUN",
            "type": _path,
            "help": "run again from its tape, without network",
        },
        "resume": {
            "metavar": "RUN",
            "type": _path,
            "help": "go on with a run; pays only for what is missing",
        },
        "from-round": {
            "metavar": "N",
            "type": _at_least_one,
            "help": "with --resume: a new run that keeps the rounds before N",
        },
    },
    "output": {
        "json": {"action": "store_true", "help": "one JSON object instead of the answer alone"},
        "quiet": {"action": "store_true", "help": "no progress on standard error"},
    },
}


def parser() -> argparse.ArgumentParser:
    p = OneLineParser(
        prog="orchestra_min.py",
        description="Answer a question over text, images, audio and video.",
        epilog=EXIT_CODES,
    )
    for title, flags in FLAGS.items():
        group = p.add_argument_group(title)
        for flag, told in flags.items():
            group.add_argument(f"--{flag}", **told)
    return p


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The arguments; exits with 2 and one line for what does not fit together."""
    p = parser()
    a = p.parse_args(argv)
    if missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        p.exit(2, f"{p.prog}: the package {missing[0]} is not installed; {INSTALL}\n")
    given = vars(a)
    stored = a.replay or a.resume
    if a.replay and a.resume:
        p.error("--replay and --resume: give one of them")
    if stored:
        own = {"replay", "resume", "from_round", "parallel", "out", "json", "quiet", "tools"}
        own |= {"timeout", "mcp", "allow_host", "backends"} if a.resume else set()
        for name in sorted(set(given) - own):
            if given[name] != p.get_default(name):
                p.error(
                    f"--{name.replace('_', '-')}: comes from the run folder {stored}; leave it out"
                )
    elif a.question is None:
        p.error(
            "--question is missing (or --replay RUN, --resume RUN); "
            'try --question "..." --image FILE, or make demo'
        )
    methods = a.compare or (a.method,)
    for name, method in OWNERS.items():
        if given[name] is not None and method not in methods and not stored:
            p.error(f"--{name.replace('_', '-')}: belongs to --method {method}")
    if a.rounds and set(methods) <= DECIDE_ONCE:
        p.error(f"--rounds: {' and '.join(sorted(methods))} decides once; leave it out")
    if a.compare and a.method != p.get_default("method"):
        p.error("--compare: names the methods itself; leave --method out")
    if a.side_by_side and not a.compare:
        p.error("--side-by-side: needs --compare METHODS")
    if a.workdir and a.sub_agent != "mini-swe":
        p.error("--workdir: needs --sub-agent mini-swe")
    if a.from_round and not a.resume:
        p.error("--from-round: needs --resume RUN")
    if a.out and stored and not a.from_round:
        p.error("--out: a replay or a resumed run has its folder; --out goes with --from-round")
    return a
