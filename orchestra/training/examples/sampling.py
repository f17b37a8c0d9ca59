"""Other decisions of the policy, sampled in the states of a recorded run, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from orchestra.money import Purse
from orchestra.runtime.chat import Chat
from orchestra.runtime.openai_api import with_model
from orchestra.runtime.run_folder import Manifest
from orchestra.runtime.summary import Totals
from orchestra.runtime.trajectory import usd
from orchestra.runtime.user_code import name_of
from orchestra.schedule import Graph, refine
from orchestra.seams import Messages
from orchestra.training.examples.recorded import Moment, Recorded
from orchestra.vocabulary import Decision, Delegate, ModelMistake, Reply

DRAWS = 2  # at most so many samples for each decision that is wanted


class Other(NamedTuple):
    """A decision that the run did not make, and the reply that has it."""

    y_t: Decision
    reply: str


@dataclass
class Tally:
    """Samples and calls, and what they cost."""

    forks: int = 0
    samples: int = 0
    unusable: int = 0
    repeated: int = 0
    of_samples: Totals = Totals()
    of_forks: Totals = Totals()

    def plus(self, other: Tally) -> Tally:
        return Tally(
            forks=self.forks + other.forks,
            samples=self.samples + other.samples,
            unusable=self.unusable + other.unusable,
            repeated=self.repeated + other.repeated,
            of_samples=self.of_samples.plus(other.of_samples),
            of_forks=self.of_forks.plus(other.of_forks),
        )

    def __str__(self) -> str:
        forks = self.of_forks
        samples = f"{self.samples} samples ({usd(self.of_samples.cost_usd)}"
        made = forks.calls - forks.reused_calls
        return (
            f"{samples}; {self.repeated} repeated, {self.unusable} unusable), "
            f"{self.forks} played on: reused {forks.reused_calls} calls "
            f"(saved {usd(forks.saved_usd)}), made {made} ({usd(paid_usd(forks))})"
        )


def paid_usd(totals: Totals) -> float | None:
    """What calls cost without those that were reused."""
    if totals.cost_usd is None or totals.saved_usd is None:
        return None
    return totals.cost_usd - totals.saved_usd


class Sampler:
    """Draws decisions of the policy, the main agent of a run, in the states of this run."""

    def __init__(
        self,
        run: Recorded,
        manifest: Manifest,
        chat: Chat,
        temperature: float,
        tally: Tally,
    ) -> None:
        self.run = run
        self.temperature = temperature
        self.chat = chat
        self.tally = tally
        self.agent = name_of(manifest.options.agent)
        self.backend = with_model(chat, manifest.pool[manifest.pool.main])

    def others(self, moment: Moment, count: int) -> Iterator[Other]:
        """`count` decisions that differ from that of the run and from one another; fewer if the
        policy repeats itself.
        """
        seen = [self._compared(moment.decided.y_t)]
        for number in range(1, DRAWS * count + 1):
            if len(seen) > count:
                return
            try:
                other = self.drawn(moment, number)
            except ModelMistake:
                self.tally.unusable += 1
                continue
            compared = self._compared(other.y_t)
            if compared in seen:
                self.tally.repeated += 1
                continue
            seen.append(compared)
            yield other

    def drawn(self, moment: Moment, number: int) -> Other:
        """y_t ~ pi_theta(. | s_t), Eq. 3, from the tape if it was drawn before. Raises ModelMistake
        for a reply that the run could not use.
        """
        decided = moment.decided
        replies: list[Reply] = []
        purse = Purse(decided.state.budget_usd)

        def ask(messages: Messages, *rest: Any, **named: Any) -> Reply:
            named["temperature"] = self.temperature
            reply = self.chat(self.backend, messages, purse, *rest, **named)
            replies.append(reply)
            return reply

        place = decided.place._replace(part=f"p{number}")
        try:
            with self.chat.tape.call(place):
                decide = self.run.main.decide
                y_t = decide(decided.state, ask, decided.mistake, moment.last_chance)
        finally:
            self.tally.samples += len(replies)
            cost = Totals(purse.calls, purse.tokens, purse.spent_usd)
            self.tally.of_samples = self.tally.of_samples.plus(cost)
        if isinstance(y_t, Delegate):
            refine(Graph() if y_t.whole_graph else decided.graph, y_t)
        return Other(y_t, replies[-1].text)

    def _compared(self, y_t: Decision) -> Decision:
        """What makes a decision: its reasons do not, nor whether it names the run's --agent."""
        if not isinstance(y_t, Delegate):
            return replace(y_t, reasoning="")
        subtasks = (replace(u, agent=u.agent or self.agent) for u in y_t.subtasks)
        return replace(y_t, reasoning="", subtasks=tuple(subtasks))
