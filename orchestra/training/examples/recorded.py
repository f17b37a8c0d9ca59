"""A recorded run as decision examples, one a round.

Runs of orchestra-o1 and aorchestra are taken: learning (a) of arXiv 2602.03786 is SFT on its
successful runs. Both write the JSON decision that the rewards read; that of aorchestra is one flat
sub-task. The run is replayed, and what its main agent sees and replies is noted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from orchestra.evaluation.scores import Right, matches
from orchestra.kernel.folder import Event, Manifest, read_events
from orchestra.kernel.method import Ask
from orchestra.kernel.tape import TapeMiss
from orchestra.kernel.vocabulary import ConfigError, Decision, Messages, Reply, State
from orchestra.methods.replies import find_action
from orchestra.training.examples import Example, state_row
from orchestra.variation.fork import change_of
from orchestra_min import Parts, replay

METHODS = ("orchestra-o1", "aorchestra")


class Moment(NamedTuple):
    """An attempt at a decision: s_t, and what the main agent was sent and replied last."""

    state: State
    messages: Messages
    reply: str


class Watch:
    """Notes the decisions of a run that is replayed."""

    def __init__(self) -> None:
        self.newest: Moment | None = None  # attempt
        self.usable: list[Moment] = []

    def change(self, parts: Parts, manifest: Manifest) -> Parts:
        """The parts of the run, with a method that is watched."""
        decide = parts.method.decide

        def decide_and_note(
            state: State, ask: Ask, mistake: str, last_chance: bool
        ) -> Decision:
            def ask_and_note(messages: Messages, *how: Any, **named: Any) -> Reply:
                reply = ask(messages, *how, **named)
                self.newest = Moment(state, messages, reply.text)
                return reply

            return decide(state, ask_and_note, mistake, last_chance)

        parts.method.decide = decide_and_note  # type: ignore[method-assign]
        return parts

    def hear(self, event: Event) -> None:
        """Keep an attempt that was a decision, and drop one that was a mistake."""
        if event["event"] == "decision":
            if event.get("decision") and self.newest is not None:
                self.usable.append(self.newest)
            self.newest = None


def moments_of(folder: Path, **given: Any) -> list[Moment]:
    """The decisions of a run folder. `given`: what a replay of the run is given again, as tools.

    Raises ConfigError if the run was recorded with other prompts than the program has now.
    """
    watch = Watch()
    try:
        change = change_of(folder, given={**given, "change": watch.change})
        replay(folder, listeners=[watch.hear], change=change, **given)
    except TapeMiss as miss:
        if miss.differs:
            why = (
                "was recorded with other prompts than this version has; record it again"
            )
            raise ConfigError(
                f"{folder}: {why} ({str(miss).splitlines()[0]})"
            ) from None
    return watch.usable


def from_run(folder: Path, right: Right = "", **given: Any) -> list[Example]:
    """tau of a run folder -> one (s_t, y*_t) a round. `right` is the right answer, or each that is
    accepted; where none is known, it is the run's own. `given` and errors are those of
    `moments_of`.
    """
    answer = right if isinstance(right, str) else " or ".join(right)
    answer = answer or str(end_of(folder).get("answer", ""))
    found = []
    for moment in moments_of(folder, **given):
        meta = {"split": "recorded", "answer": answer, "state": state_row(moment.state)}
        example = Example(
            id=f"{folder.resolve().name}-r{moment.state.round}",
            messages=moment.messages,
            reference=reference_of(moment.reply),
            meta=meta,
        )
        found.append(example)
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
    events = read_events(folder)
    return events[-1] if events and events[-1]["event"] == "end" else {}


def succeeded(folder: Path, right: Right = "", question: str = "") -> bool:
    """Whether the run ended by completing, with a right answer where one is known."""
    end = end_of(folder)
    if not end or end["fallback"] or not end["answer"]:
        return False
    return not right or matches(end["answer"], right, question)
