"""Decision examples (s_t, y*_t), end of section 3.3.1: JSONL with a schema version. Recorded runs
become such examples, one a round.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from orchestra.evaluation.questions import load
from orchestra.evaluation.scores import matches
from orchestra.memory import compress
from orchestra.methods import make
from orchestra.runtime import jsonl, permission, run_folder, trajectory
from orchestra.runtime.command_line import OneLineParser, ended
from orchestra.runtime.parsing import find_action
from orchestra.runtime.pool import Checked
from orchestra.runtime.prompts import WORDING
from orchestra.runtime.run_folder import write_whole
from orchestra.runtime.tape import Tape, adapter
from orchestra.runtime.trajectory import Event
from orchestra.seams import Messages
from orchestra.tools.own import own_tools
from orchestra.tools.shipped import tools_for
from orchestra.vocabulary import ConfigError, Evidence, State, Task

METHODS = "orchestra-o1", "aorchestra"


class Message(TypedDict):
    role: str
    content: str


class Example(Checked):
    """One decision to learn. `messages` is s_t as the main agent saw it, `reference` is y*_t as the
    JSON object that it should emit. `meta` has `state` (s_t itself, see `state_of`), `answer` (the
    right one, or "" if it is not known), `split`, and of MiniGAIA `world` (world.py).
    """

    version: Literal[2] = Field(2, alias="schema")
    id: str
    messages: Annotated[tuple[Message, ...], Field(min_length=1)]
    reference: dict[str, Any]
    meta: dict[str, Any]


def write(path: Path, examples: Sequence[Example]) -> None:
    """Write the examples as JSONL. After a kill the file is complete or absent."""
    rows = [
        json.dumps(e.model_dump(by_alias=True), ensure_ascii=False) for e in examples
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(f"{row}\n" for row in rows))


def read(path: Path) -> list[Example]:
    """The examples of a file. Raises ConfigError, which names the line, for one that is not."""
    found = []
    for n, line in enumerate(
        path.read_text("utf-8-sig", errors="replace").split("\n"), 1
    ):
        try:
            found += [Example(**json.loads(line))] if line.strip() else []
        except (ValueError, TypeError, ConfigError) as error:
            raise ConfigError(
                f"{path}, line {n}: is not an example ({error})"
            ) from None
    if not found:
        raise ConfigError(f"{path}: has no examples")
    return found


# ---- s_t as JSON and back ------------------------------------------------------------------------


def state_row(state: State) -> dict[str, Any]:
    """s_t as JSON, without the paths of files."""
    media = [{"modality": m.modality, "name": m.name} for m in state.task.media]
    row = asdict(state)
    return {**row, "task": {**row["task"], "media": media}}


def state_of(row: Mapping[str, Any]) -> State:
    """s_t of a row that `state_row` made, before or after JSON. Raises ValueError or KeyError."""
    media = [{**m, "path": "", "sha256": ""} for m in row["task"]["media"]]
    s_t: State = adapter(State).validate_python(
        {**row, "task": {**row["task"], "media": media}}
    )
    return s_t


# ---- of recorded runs ----------------------------------------------------------------------------


def from_run(
    folder: Path, answer: str = "", tools: Sequence[str] = ()
) -> list[Example]:
    """tau of a run folder -> one (s_t, y*_t) a round. `answer`: the right one, if it is known, else
    the run's own. `tools`: the user's own tools that the run used, FILE.py:FUNCTION.

    Raises ConfigError if the prompt of s_t, rebuilt from the recorded events, is not the one on the
    tape: the run was recorded with other prompts.
    """
    manifest = permission.named_again(
        folder, run_folder.read_manifest(folder), {"tools": tools}
    )
    options, task = manifest.options, manifest.task(folder)
    events = trajectory.read(folder / "trajectory.jsonl")
    sent, found = _sent(folder / "tape.jsonl"), list[Example]()
    end = trajectory.ended(events)
    answer = answer or (end["answer"] if end else "")
    answers = Tape(folder / "tape.jsonl", "replay")
    with own_tools(options.tools, options.mcp, answers) as own:
        known = {**tools_for(task, manifest.code), **own}
        main: Any = make(options, manifest.pool, known)
        for state, event, mistake in states(events, task, tuple(known)):
            round, _, attempt = event["at"]
            asked = sent.get(f"r{round}/main/a{attempt}", [])
            if asked not in [
                main.prompt(state, mistake, last) for last in (False, True)
            ]:
                why = f"other prompts than this version has (round {round}); record it again"
                raise ConfigError(f"{folder}: was recorded with {why}")
            meta = {"split": "recorded", "answer": answer, "state": state_row(state)}
            id, reference = (
                f"{folder.resolve().name}-r{round}",
                _reference(event["reply"]),
            )
            found.append(Example(id=id, messages=asked, reference=reference, meta=meta))
    return found


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
    given = "" if end is None or end["fallback"] else end["answer"]
    return bool(given) and (not answer or matches(given, answer, question))


def states(
    events: Iterable[Event], task: Task, tools: tuple[str, ...]
) -> Iterator[tuple[State, Event, str]]:
    """s_t of each decision, rebuilt from the events of a run (Eq. 1, 21), with its event and the
    mistake of the attempt before it, as the main agent was told.
    """
    run, mistake, history = {}, "", list[Evidence]()
    placed = dict[tuple[int, ...], Mapping[str, Any]]()
    for e in trajectory.in_order(events):
        place = tuple(e["at"][:2])
        if e["event"] == "run":
            run = e
        elif e["event"] == "subtask":
            placed[place] = e["subtask"]
        elif e["event"] == "result":
            u, report = (
                placed[place],
                {k: e[k] for k in ("status", "answer", "summary", "error")},
            )
            about = place[0], u["id"], u["instruction"], u["backend"], tuple(u["tools"])
            history.append(Evidence(*about, **report, media=tuple(e["media"])))
        elif e["event"] == "decision" and "decision" not in e:
            mistake = e["mistake"]
        elif e["event"] == "decision":
            backends = tuple(b["name"] for b in run["pool"]["backend"])
            waits = {id: tuple(needs) for id, needs in e["waiting"].items()}
            now = (e["at"][0], e["rounds"], e["budget_usd"], waits)
            limit = run["options"]["context_tokens"]
            context = (
                compress(task.question, history, WORDING, limit) if history else ""
            )
            told = mistake if e["at"][2] > 1 else ""
            yield State(task, context, tuple(history), backends, tools, *now), e, told


def _sent(path: Path) -> dict[str, Messages]:
    """The last messages that each call of the main agent sent, by the name of the call."""
    calls = (
        e for e in jsonl.read(path) if "/main/" in str(e.get("call")) and "answer" in e
    )
    return {e["call"]: e["request"]["messages"] for e in calls}


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
        a = parser.parse_args(arguments)
        known = {q.question: q.answer for q in load(a.answers)} if a.answers else {}
        kept: list[Example] = []
        for folder in a.runs:
            manifest = run_folder.read_manifest(folder)
            right = known.get(manifest.question.strip(), "")
            if manifest.options.method not in METHODS:
                print(f"{folder}: left out, no {' or '.join(METHODS)}", file=sys.stderr)
            elif a.all or succeeded(folder, right, manifest.question):
                kept += from_run(folder, right, a.tools)
            else:
                print(
                    f"{folder}: left out, it did not succeed (--all takes it)",
                    file=sys.stderr,
                )
        if not kept:
            raise ConfigError("no run of those given succeeded; give others, or --all")
        write(a.out, kept)
        print(f"{len(kept)} decisions in {a.out}")

    return ended("training.examples", work)


if __name__ == "__main__":
    sys.exit(main())
