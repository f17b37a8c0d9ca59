"""Recorded run folders -> one decision example a round (Eq. 26 and the end of section 3.3.1).

    python -m training.examples runs/a runs/b --out examples.jsonl [--answers FILE] [--all]

A run is used where it ended by completing, not with a fallback answer. What would have been right
no run knows: `--answers FILE`, a JSON array of {"question", "answer"} as OmniGAIA has it, leaves
out the runs that answered something else.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from orchestra import lines, run_folder, trajectory
from orchestra.parsing import find_action
from orchestra.replay import Tape
from orchestra.run_folder import Manifest
from orchestra.trajectory import Event
from orchestra.vocabulary import ConfigError, Delegate
from orchestrators.orchestra_o1 import OrchestraO1, parse_decision
from orchestrators.showing import Messages
from tools import tools_for
from tools.own import own_tools
from training.evidence import evidence_of
from training.examples import Example, state_row, state_with, write
from training.reading import same_answer


def from_run(folder: Path, answer: str = "") -> list[Example]:
    """tau of a run folder -> one (s_t, y*_t) a round. `answer`: the right one, if it is known, else
    the run's own.

    s_t is rendered anew from the recorded state, and is what the tape says was sent: a recording
    that differs (made with other prompts) raises ConfigError, as does one of another method.
    """
    manifest = run_folder.read_manifest(folder)
    if manifest.options.method != "orchestra-o1":
        raise ConfigError(
            f"{folder}: was recorded with --method {manifest.options.method}; decision examples "
            "are made of runs with --method orchestra-o1"
        )
    events = trajectory.read(folder / "trajectory.jsonl")
    sent = _sent(folder / "tape.jsonl")
    ended = next((e for e in events if e["event"] == "end"), {})
    with contextlib.ExitStack() as stack:
        tape = stack.enter_context(contextlib.closing(Tape(folder / "tape.jsonl", "replay")))
        options = manifest.options
        own = stack.enter_context(own_tools(options.tools, options.mcp, tape))
        main = OrchestraO1(manifest.pool.backends, {**tools_for(manifest.task), **own})
        return [
            _decision(
                folder, manifest, main, event, mistake, sent, answer or ended.get("answer", "")
            )
            for event, mistake in _taken(events)
        ]


def succeeded(folder: Path, answer: str = "", question: str = "") -> bool:
    """Whether the run ended by completing, with the right answer where that is known."""
    ended = next(
        (e for e in trajectory.read(folder / "trajectory.jsonl") if e["event"] == "end"), None
    )
    if ended is None or ended["fallback"] or not ended["answer"]:
        return False
    return not answer or same_answer(ended["answer"], answer, question)


def _taken(events: Sequence[Event]) -> Iterator[tuple[Event, str]]:
    """The decision of each round, with the mistake of the attempt before it that was told back."""
    mistake = ""
    for event in events:
        if event["event"] == "decision" and "decision" in event:
            yield event, mistake if event["at"][2] > 1 else ""
        elif event["event"] == "decision":
            mistake = event["mistake"]


def _sent(tape: Path) -> dict[str, Messages]:
    """The messages of each call of the main agent, by its name: the last ones of the call."""
    calls = (e for e in lines.read(tape) if "/main/" in str(e.get("call")) and "response" in e)
    return {e["call"]: json.loads(e["request"]["body"])["messages"] for e in calls}


def _decision(
    folder: Path,
    manifest: Manifest,
    main: OrchestraO1,
    event: Event,
    mistake: str,
    sent: Mapping[str, Messages],
    answer: str,
) -> Example:
    state = state_with(event["state"], manifest.task)
    round, _, attempt = event["at"]
    asked = sent.get(f"r{round}/main/a{attempt}")
    tries = [main.render(state, mistake, last_chance) for last_chance in (False, True)]
    if asked not in tries:
        raise ConfigError(
            f"{folder}: what its main agent read in round {round} is not what the prompts of "
            "this program say; use the version that recorded it, or record it again"
        )
    decision = find_action(event["reply"])
    params = decision.get("params")
    if not isinstance(params, dict):  # one task, flat
        params = {k: v for k, v in decision.items() if k not in ("action", "reasoning")}
    reasoning = str(decision.get("reasoning") or "")
    reference = {"action": decision["action"], "reasoning": reasoning, "params": params}
    taken = parse_decision(json.dumps(reference), state)
    tasks = taken.subtasks if isinstance(taken, Delegate) else ()
    meta = {
        "level": 0,
        "template": folder.resolve().name,
        "split": "recorded",
        "answer": answer,
        "evidence": [evidence_of(u, state) for u in tasks],
        "state": state_row(state),
    }
    return Example(f"{folder.resolve().name}-r{round}", tuple(asked), reference, meta)


# ---- the command ---------------------------------------------------------------------------------


def read_answers(path: Path) -> dict[str, str]:
    """Question -> right answer, of a JSON array of objects with both. Raises ConfigError."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return {str(row["question"]).strip(): str(row["answer"]) for row in rows}
    except OSError as error:
        raise ConfigError(
            f"--answers {path}: can not be read ({error.strerror}); check the path"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"--answers {path}: is no JSON array of objects with a question and an answer"
        ) from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the examples of the runs given. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m training.examples",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSONL")
    parser.add_argument(
        "--answers", type=Path, metavar="FILE", help="the right answers, by question"
    )
    parser.add_argument("--all", action="store_true", help="runs that did not succeed too")
    a = parser.parse_args(arguments)
    try:
        known = read_answers(a.answers) if a.answers else {}
        kept: list[Example] = []
        for folder in a.runs:
            question = run_folder.read_manifest(folder).task.question
            right = known.get(question.strip(), "")
            if a.all or succeeded(folder, right, question):
                kept += from_run(folder, right)
            else:
                print(f"{folder}: left out, it did not succeed (--all takes it)", file=sys.stderr)
        if not kept:
            raise ConfigError("no run of those given succeeded; give others, or --all")
        write(a.out, kept)
    except ConfigError as error:
        print(f"training.examples: {error}", file=sys.stderr)
        return 2
    print(f"{len(kept)} decisions in {a.out}")
    return 0
