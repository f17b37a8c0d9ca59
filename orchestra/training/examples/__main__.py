"""Decision examples of recorded runs.

    python -m orchestra.training.examples runs/a runs/b --out examples.jsonl \
        [--answers FILE] [--all]

takes runs of orchestra-o1 and aorchestra that ended by completing, not those with a fallback
answer. A run does not know the right answer: `--answers FILE`, a JSON array of
{"question", "answer"} as in OmniGAIA, leaves out the runs that answered something else. An answer
may be a list; each of its entries is right.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from orchestra.command import outside
from orchestra.command.flags import OneLineParser
from orchestra.command.names import LISTED, objects
from orchestra.command.programs import run_program
from orchestra.command.redact import Redact
from orchestra.command.terminal import tell
from orchestra.evaluation.questions import Question, load
from orchestra.kernel.folder import Options, read_manifest
from orchestra.kernel.vocabulary import ConfigError
from orchestra.training.examples import Example, write
from orchestra.training.examples.recorded import METHODS, from_run, succeeded

AGAIN: dict[str, dict[str, Any]] = {  # what a run folder needs again
    "tools": {"action": "append", "metavar": "FILE.py:FUNCTION"},
    "mcp": {"action": "append", "metavar": "COMMAND"},
    "agent": {"metavar": "FILE.py:NAME"},
}


def parser() -> OneLineParser:
    p = OneLineParser(
        prog="python -m orchestra.training.examples",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run folder")
    p.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSONL")
    p.add_argument(
        "--answers", type=Path, metavar="FILE", help="right answers, by question"
    )
    p.add_argument("--all", action="store_true", help="runs that did not succeed too")
    for name, how in AGAIN.items():
        p.add_argument(f"--{name}", help="as the run had it", **how)
    return p


def examples_of(a: argparse.Namespace) -> list[Example]:
    """The examples of the runs that succeeded, or of all. Raises ConfigError if there are none."""
    asked: dict[str, Question] = {}
    if a.answers is not None:
        asked = {q.question: q for q in load(a.answers)}
    examples: list[Example] = []
    for folder in a.runs:
        outside.check_run(folder)
        is_own = any(
            getattr(a, name) for name in AGAIN
        )  # the user's Python may raise anything
        damage = nullcontext() if is_own else outside.damage_is_one_line(folder)
        with damage:
            examples += _of_run(a, folder, asked)
    if not examples:
        raise ConfigError("no run of those given succeeded; give others, or --all")
    return examples


def _of_run(
    a: argparse.Namespace, folder: Path, asked: Mapping[str, Question]
) -> list[Example]:
    """The examples of a run; [] of one that is left out, which is said."""
    manifest = read_manifest(folder)
    question = manifest.question.strip()
    right = asked[question].accepted if question in asked else ()
    if manifest.options.method not in METHODS:
        tell(f"{folder}: left out, no {' or '.join(METHODS)}")
        return []
    if not a.all and not succeeded(folder, right, question):
        tell(f"{folder}: left out, it did not succeed (--all takes it)")
        return []
    again = Options.of(**{name: getattr(a, name) for name in AGAIN if getattr(a, name)})
    listed = manifest.more.get(LISTED)
    with objects(again, a.out.with_suffix(".log"), Redact([]), listed) as (given, _):
        return from_run(folder, right, **given)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the examples of the runs given. Returns the exit code."""

    def work() -> None:
        a = parser().parse_args(arguments)
        examples = examples_of(a)
        write(a.out, examples)
        print(f"{len(examples)} decisions in {a.out}")

    return run_program("training.examples", work)


if __name__ == "__main__":
    sys.exit(main())
