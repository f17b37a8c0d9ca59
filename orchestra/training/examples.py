"""Decision examples (s_t, y*_t), end of section 3.3.1: JSONL with a schema version. Those
of recorded runs come from here, one a round:

    python -m orchestra.training.examples runs/a runs/b --out examples.jsonl \
        [--answers FILE]

takes runs of orchestra-o1 and aorchestra that ended by completing, not those with a fallback
answer. Learning (a) of arXiv 2602.03786 is SFT on such runs. Both methods write the JSON decision
that the rewards read; that of aorchestra is one flat sub-task. A run is replayed, and what its main
agent sees and replies is noted. A run does not know the right answer: `--answers FILE`, a JSON
array of {"question", "answer"} as in OmniGAIA, leaves out the runs that answered something else. An
answer may be a list; each of its entries is right.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from orchestra.command import outside
from orchestra.command.flags import OneLineParser
from orchestra.command.programs import run_program
from orchestra.command.terminal import tell
from orchestra.evaluation.questions import Question, load
from orchestra.evaluation.scores import Right, matches
from orchestra.kernel import folder as folders
from orchestra.kernel.folder import Event, Manifest
from orchestra.kernel.method import Ask
from orchestra.kernel.tape import TapeMiss
from orchestra.kernel.vocabulary import ConfigError, Decision, Messages, Reply, State
from orchestra.methods.replies import find_action
from orchestra.training.options import Checked
from orchestra.variation.fork import change_of
from orchestra_min import Parts, replay

STATE = TypeAdapter(State)
METHODS = ("orchestra-o1", "aorchestra")


class Message(TypedDict):
    role: str
    content: str


class Example(Checked):
    """One decision to learn.

    messages    s_t as the main agent saw it
    reference   y*_t as the JSON object that it should emit
    meta        `state`, s_t itself (see `state_of`); `answer`, the right one (several with " or "
                between them), or "" if it is not known; `split`; what else a reward
                of your own reads, as benchmarks/minigaia/reward.py does
    """

    version: Literal[2] = Field(2, alias="schema")
    id: str
    messages: Annotated[tuple[Message, ...], Field(min_length=1)]
    reference: dict[str, Any]
    meta: dict[str, Any]


def write(path: Path, examples: Sequence[Example]) -> None:
    """Write the examples as JSONL. After a kill the file is complete or absent."""
    rows = [example.model_dump(by_alias=True) for example in examples]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    folders.write_whole(path, "".join(lines))


def read(path: Path) -> list[Example]:
    """The examples of a file. Raises ConfigError, which names the line, for one that is not."""
    text = path.read_text("utf-8-sig", errors="replace")
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            example = Example(**json.loads(line))
            read_by_tokenizer = [example.messages, example.reference]
            json.dumps(
                read_by_tokenizer, ensure_ascii=False
            ).encode()  # no half surrogate pair
            found.append(example)
        except (ValueError, TypeError, RecursionError, ConfigError) as error:
            why = f"is not an example ({error})"
            raise ConfigError(f"{path}, line {number}: {why}") from None
    if not found:
        raise ConfigError(f"{path}: has no examples")
    return found


# ---- s_t as JSON and back ------------------------------------------------------------------------


def state_row(state: State) -> dict[str, Any]:
    """s_t as JSON, without the paths of files and without what only a run needs."""
    row = asdict(state)
    del row["capabilities"], row["refused"]
    row["task"]["media"] = [
        {"modality": m.modality, "name": m.name} for m in state.task.media
    ]
    return row


def state_of(row: Mapping[str, Any]) -> State:
    """s_t of a row that `state_row` made, before or after JSON. Raises ValueError, TypeError or
    KeyError for another row.
    """
    task = dict(row["task"])
    task["media"] = [{**m, "path": "", "sha256": ""} for m in task["media"]]
    return STATE.validate_python({**row, "task": task})


# ---- a recorded run ------------------------------------------------------------------------------


class Moment(NamedTuple):
    """An attempt at a decision: s_t, and what the main agent was sent and replied last."""

    state: State
    messages: Messages
    reply: str


def moments_of(folder: Path, **given: Any) -> list[Moment]:
    """The decisions of a run folder. `given`: what a replay of the run is given again, as tools.

    Raises ConfigError if the run was recorded with other prompts than the program has now.
    """
    attempts: list[Moment] = []  # at the decision that is being made
    moments: list[Moment] = []

    def watched(parts: Parts, manifest: Manifest) -> Parts:
        decide = parts.method.decide

        def decide_and_note(state: State, ask: Ask, *how: Any) -> Decision:
            def ask_and_note(messages: Messages, *how: Any, **named: Any) -> Reply:
                reply = ask(messages, *how, **named)
                attempts.append(Moment(state, messages, reply.text))
                return reply

            return decide(state, ask_and_note, *how)

        parts.method.decide = decide_and_note  # type: ignore[assignment, method-assign]
        return parts

    def hear(event: Event) -> None:
        """Keep an attempt that was a decision, and drop one that was a mistake."""
        if event["event"] == "decision":
            moments.extend(attempts[-1:] if event.get("decision") else [])
            attempts.clear()

    try:
        change = change_of(folder, given={**given, "change": watched})
        replay(folder, listeners=[hear], change=change, **given)
    except TapeMiss as miss:
        if miss.differs:
            problem = "was recorded with other prompts than this version has"
            first = str(miss).splitlines()[0]
            why = f"{problem}; record it again ({first})"
            raise ConfigError(f"{folder}: {why}") from None
    return moments


def from_run(folder: Path, right: Right = "", **given: Any) -> list[Example]:
    """tau of a run folder -> one (s_t, y*_t) a round. `right` is the right answer, or each that is
    accepted; where none is known, it is the run's own. `given` and errors are those of
    `moments_of`.
    """
    answer = right if isinstance(right, str) else " or ".join(right)
    answer = answer or str(end_of(folder).get("answer", ""))
    found = []
    for state, messages, reply in moments_of(folder, **given):
        meta = {"split": "recorded", "answer": answer, "state": state_row(state)}
        id = f"{folder.resolve().name}-r{state.round}"
        reference = reference_of(reply)
        found.append(Example(id=id, messages=messages, reference=reference, meta=meta))
    return found


def reference_of(reply: str) -> dict[str, Any]:
    """y*_t with its params in one object, even if the reply has them next to "action"."""
    decision = find_action(reply)
    params = decision.get("params")
    if not isinstance(params, dict):
        params = {k: v for k, v in decision.items() if k not in ("action", "reasoning")}
    reasoning = str(decision.get("reasoning") or "")
    return {"action": decision["action"], "reasoning": reasoning, "params": params}


def end_of(folder: Path) -> Event:
    """The last row of a run; {} of one that has not ended."""
    events = folders.read_events(folder)
    return events[-1] if events and events[-1]["event"] == "end" else {}


def succeeded(folder: Path, right: Right = "", question: str = "") -> bool:
    """Whether the run ended by completing, with a right answer where one is known."""
    end = end_of(folder)
    if not end or end["fallback"] or not end["answer"]:
        return False
    return not right or matches(end["answer"], right, question)


# ---- the command ---------------------------------------------------------------------------------


def examples_of(a: argparse.Namespace) -> list[Example]:
    """The examples of the runs that succeeded. Raises ConfigError if there are none."""
    asked = {} if a.answers is None else {q.question: q for q in load(a.answers)}
    examples: list[Example] = []
    for folder in a.runs:
        outside.check_run(folder)
        with outside.damage_is_one_line(folder):
            examples += _of_run(folder, asked)
    if not examples:
        raise ConfigError("no run of those given succeeded; give others")
    return examples


def _of_run(folder: Path, asked: Mapping[str, Question]) -> list[Example]:
    """The examples of a run; [] of one that is left out, which is said."""
    manifest = folders.read_manifest(folder)
    question = manifest.question.strip()
    right = asked[question].accepted if question in asked else ()
    why = ""
    if manifest.options.method not in METHODS:
        why = f"no {' or '.join(METHODS)}"
    elif not succeeded(folder, right, question):
        why = "it did not succeed"
    if why:
        tell(f"{folder}: left out, {why}")
        return []
    return from_run(folder, right)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the examples of the runs given. Returns the exit code."""
    parser = OneLineParser(
        prog="python -m orchestra.training.examples",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flag = parser.add_argument
    flag("runs", nargs="+", type=Path, metavar="RUN", help="a run folder")
    flag("--out", type=Path, required=True, metavar="FILE", help="JSONL")
    flag("--answers", type=Path, metavar="FILE", help="right answers, by question")

    def work() -> None:
        a = parser.parse_args(arguments)
        examples = examples_of(a)
        write(a.out, examples)
        print(f"{len(examples)} decisions in {a.out}")

    return run_program("training.examples", work)


if __name__ == "__main__":
    sys.exit(main())
