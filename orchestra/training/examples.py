"""Decision examples (s_t, y*_t), end of section 3.3.1: JSONL with a schema version.

A recorded run becomes such examples, one a round.

    python -m orchestra.training.examples runs/a runs/b --out examples.jsonl \
        [--answers FILE] [--all]

takes runs of orchestra-o1 and aorchestra: learning (a) of arXiv 2602.03786 is SFT on its successful
runs. Both write the JSON decision that the rewards read; that of aorchestra is one flat sub-task.

Only runs that ended by completing are used, not those with a fallback answer. A run does not know
the right answer: `--answers FILE`, a JSON array of {"question", "answer"} as in OmniGAIA, leaves
out the runs that answered something else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from orchestra.contracts import adapter
from orchestra.evaluation.questions import load
from orchestra.evaluation.scores import matches
from orchestra.methods import make
from orchestra.runtime import jsonl, permission, run_folder, trajectory
from orchestra.runtime.command_line import OneLineParser, run_program
from orchestra.runtime.parsing import find_action
from orchestra.runtime.pool import Checked
from orchestra.runtime.retrace import Decided, decisions
from orchestra.runtime.run_folder import write_whole
from orchestra.runtime.tape import Tape
from orchestra.seams import Messages
from orchestra.tools.own import own_tools
from orchestra.tools.shipped import tools_for
from orchestra.vocabulary import ConfigError, Place, State

METHODS = ("orchestra-o1", "aorchestra")


class Message(TypedDict):
    role: str
    content: str


class Example(Checked):
    """One decision to learn.

    messages    s_t as the main agent saw it
    reference   y*_t as the JSON object that it should emit
    meta        `state`, s_t itself (see `state_of`); `answer`, the right one, or "" if it is not
                known; `split`; and for MiniGAIA `entities` and `world` (world.py)
    """

    version: Literal[2] = Field(2, alias="schema")
    id: str
    messages: Annotated[tuple[Message, ...], Field(min_length=1)]
    reference: dict[str, Any]
    meta: dict[str, Any]


def write(path: Path, examples: Sequence[Example]) -> None:
    """Write the examples as JSONL. After a kill the file is complete or absent."""
    lines = []
    for example in examples:
        row = example.model_dump(by_alias=True)
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(lines))


def read(path: Path) -> list[Example]:
    """The examples of a file. Raises ConfigError, which names the line, for one that is not."""
    text = path.read_text("utf-8-sig", errors="replace")
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found.append(Example(**json.loads(line)))
        except (ValueError, TypeError, ConfigError) as error:
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
    state: State = adapter(State).validate_python({**row, "task": task})
    return state


# ---- of recorded runs ----------------------------------------------------------------------------


def from_run(
    folder: Path, answer: str = "", tools: Sequence[str] = ()
) -> list[Example]:
    """tau of a run folder -> one (s_t, y*_t) a round. `answer` is the right one, if it is known;
    else it is the run's own. `tools` are the user's own tools that the run used, FILE.py:FUNCTION.

    Raises ConfigError if the prompt of s_t, rebuilt from the recorded events, is not the one on the
    tape: the run was recorded with other prompts.
    """
    manifest = permission.named_again(
        folder, run_folder.read_manifest(folder), {"tools": tools}
    )
    options = manifest.options
    task = manifest.task(folder)
    sent = _sent(folder / "tape.jsonl")
    end = trajectory.ended(trajectory.read(folder / "trajectory.jsonl"))
    if not answer and end is not None:
        answer = end["answer"]
    found = []
    answers = Tape(folder / "tape.jsonl", "replay")
    with own_tools(options.tools, options.mcp, answers) as own:
        known = {**tools_for(task, manifest.code), **own}
        main: Any = make(options, manifest.pool, known)
        psi = {name: tool.capabilities for name, tool in known.items()}
        for decided in decisions(folder, manifest, task, psi):
            messages = sent.get(decided.place, [])
            _check_prompt(folder, main, decided, messages)
            found.append(_example(folder, decided, messages, answer))
    return found


def _sent(path: Path) -> dict[Place, Messages]:
    """The last messages that the main agent sent in each attempt."""
    sent: dict[Place, Messages] = {}
    for row in jsonl.read(path):
        place = Place.parse(str(row.get("call")))
        if place is not None and place.subtask == 0 and "answer" in row:
            sent[place] = row["request"].get("messages", [])
    return sent


def _check_prompt(
    folder: Path, main: Any, decided: Decided, messages: Messages
) -> None:
    """Raises ConfigError if the main agent would now send other messages."""
    for last_chance in (False, True):
        if messages == main.prompt(decided.state, decided.mistake, last_chance):
            return
    where = f"round {decided.place.round}"
    why = f"other prompts than this version has ({where}); record it again"
    raise ConfigError(f"{folder}: was recorded with {why}")


def _example(
    folder: Path, decided: Decided, messages: Messages, answer: str
) -> Example:
    meta = {"split": "recorded", "answer": answer, "state": state_row(decided.state)}
    return Example(
        id=f"{folder.resolve().name}-r{decided.place.round}",
        messages=messages,
        reference=_reference(decided.reply),
        meta=meta,
    )


def _reference(reply: str) -> dict[str, Any]:
    """y*_t with its params in one object, even if the reply has them next to "action"."""
    decision = find_action(reply)
    params = decision.get("params")
    if not isinstance(params, dict):
        params = {k: v for k, v in decision.items() if k not in ("action", "reasoning")}
    reasoning = str(decision.get("reasoning") or "")
    return {"action": decision["action"], "reasoning": reasoning, "params": params}


def succeeded(folder: Path, answer: str = "", question: str = "") -> bool:
    """Whether the run ended by completing, with the right answer where that is known."""
    end = trajectory.ended(trajectory.read(folder / "trajectory.jsonl"))
    if end is None or end["fallback"] or not end["answer"]:
        return False
    return not answer or matches(end["answer"], answer, question)


# ---- the command ---------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the examples of the runs given. Returns the exit code."""
    parser = OneLineParser(
        prog="python -m orchestra.training.examples",
        description="Decision examples of recorded runs.",
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="a run folder"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSONL")
    parser.add_argument(
        "--answers", type=Path, metavar="FILE", help="right answers, by question"
    )
    parser.add_argument(
        "--all", action="store_true", help="runs that did not succeed too"
    )
    parser.add_argument(
        "--tools", action="append", default=[], help="FILE.py:FUNCTION of the run"
    )

    def work() -> None:
        flags = parser.parse_args(arguments)
        examples = _of_runs(flags.runs, flags.answers, flags.all, flags.tools)
        if not examples:
            raise ConfigError("no run of those given succeeded; give others, or --all")
        write(flags.out, examples)
        print(f"{len(examples)} decisions in {flags.out}")

    return run_program("training.examples", work)


def _of_runs(
    folders: Sequence[Path], answers: Path | None, every: bool, tools: Sequence[str]
) -> list[Example]:
    """The examples of the runs that succeeded, or of `every` run. Says which runs are left out."""
    known: dict[str, str] = {}
    if answers is not None:
        known = {q.question: q.answer for q in load(answers)}
    examples: list[Example] = []
    for folder in folders:
        manifest = run_folder.read_manifest(folder)
        right = known.get(manifest.question.strip(), "")
        left_out = ""
        if manifest.options.method not in METHODS:
            left_out = f"no {' or '.join(METHODS)}"
        elif not every and not succeeded(folder, right, manifest.question):
            left_out = "it did not succeed (--all takes it)"
        if left_out:
            print(f"{folder}: left out, {left_out}", file=sys.stderr)
        else:
            examples += from_run(folder, right, tools)
    return examples


if __name__ == "__main__":
    sys.exit(main())
