"""What would have come of other decisions? Counterfactual examples of a recorded run.

In each state s_t the policy is asked for other decisions y_t. Each of them is played on in a fork
of the run (`resume(..., what_if=...)`): where a sub-task is the same, its sub-agent's calls are
taken from the tape of the run; where not, it works anew. The reward is that of the final answer.

    WORK/<run>/samples.jsonl    the tape of the decisions that were sampled
    WORK/<run>/r2-1/            a run folder: the first other decision of round 2, played on

The same command again pays only for what is missing. An example gets two more entries in `meta`:

    reward     1.0 if the run's own answer is right, else 0.0
    what_if    a list of outcomes (see `Outcome`)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from orchestra.agents.executor import runs_code
from orchestra.evaluation.scores import matches
from orchestra.minigaia.agent import WorldAgent
from orchestra.money import Ledger, Purse, add_usd
from orchestra.runtime import outside, permission, run_folder, trajectory
from orchestra.runtime import pool as pools
from orchestra.runtime.chat import Chat
from orchestra.runtime.openai_api import with_model
from orchestra.runtime.pool import Pool
from orchestra.runtime.run_folder import Manifest, read_manifest
from orchestra.runtime.secrets import Secrets
from orchestra.runtime.summary import Prices, Totals, summary
from orchestra.runtime.tape import Tape
from orchestra.runtime.tape_file import exchanges
from orchestra.runtime.trajectory import decision_row, usd
from orchestra.runtime.user_code import name_of
from orchestra.schedule import Graph, refine
from orchestra.seams import Messages
from orchestra.tools import sandbox
from orchestra.training.examples import Example
from orchestra.training.examples.recorded import (
    Moment,
    Recorded,
    examples_of,
    recorded_run,
    reference_of,
)
from orchestra.vocabulary import (
    ConfigError,
    Decision,
    Delegate,
    ModelMistake,
    Reply,
)
from orchestra_min import resume

DRAWS = 2  # at most so many samples for each decision that is wanted
SAMPLES = "samples.jsonl"


class Outcome(TypedDict):
    """Another decision of a state, and what came of it."""

    decision: dict[str, Any]  # as the `reference` of the example
    answer: str  # the final one
    state: str  # how the run ended, as in `--runs`
    reward: float  # 1.0 if the answer is right, else 0.0
    run: str  # the folder in which it was played on
    calls: int
    reused_calls: int  # of them, those that the recorded run had paid
    paid_usd: float | None
    saved_usd: float | None


class Other(NamedTuple):
    """A decision that the run did not make, and the reply that has it."""

    y_t: Decision
    reply: str


@dataclass(frozen=True)
class Plan:
    """What the runs of one command share. `given`: what a resume of them is given again."""

    count: int  # of other decisions in a state
    work: Path
    pool: Pool  # the endpoints
    temperature: float
    given: Mapping[str, Any]
    shared: Ledger  # what all of it pays
    tell: Callable[[str], None]


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


class WhatIf:
    """The other decisions of one run. `right`: its right answer, or "" if it is not known: then the
    run's own counts as right. `facts`: those of MiniGAIA, if its world plays the sub-agents.
    """

    def __init__(
        self, folder: Path, plan: Plan, right: str = "", facts: Sequence[Any] = ()
    ) -> None:
        """Raises ConfigError for what would fail only after the first paid call."""
        self.plan = plan
        self.facts = facts
        given = self.given()
        self.run: Recorded = recorded_run(folder, **given)
        stored = read_manifest(folder)
        self.manifest = permission.named_again(folder, stored, given, plan.pool)
        self.secrets = self._checked()
        self.right = right or self.run.answer
        self.folder = plan.work / self.run.name
        self.tally = Tally()
        self.outcomes: dict[int, list[Outcome]] = {}  # by round

    def _checked(self) -> Secrets:
        """Raises ConfigError for what a fork would refuse."""
        manifest = self.manifest
        pools.check(manifest.pool, self.plan.shared.limit_usd)
        if manifest.code and not runs_code(manifest.options):
            problem = f"the run may run code; {sandbox.missing()}"
            raise ConfigError(f"{self.run.folder}: {problem}")
        what = manifest.question, manifest.pool, manifest.options
        return run_folder.checked_secrets(*what)

    def given(self) -> dict[str, Any]:
        """What is given again to a resume. Each run needs a world of its own."""
        if not self.facts:
            return dict(self.plan.given)
        return {**self.plan.given, "agent": WorldAgent(self.facts)}

    def play(self) -> None:
        """Sample and play on what is missing. Raises LimitReached, EndpointError and ConfigError;
        what is done is kept.
        """
        options = self.manifest.options
        self.folder.mkdir(parents=True, exist_ok=True)
        outside.check(self.folder)
        with closing(Tape(self.folder / SAMPLES, "resume", self.secrets)) as tape:
            ledger = Ledger(shared=self.plan.shared)
            chat = Chat(tape, options.timeout_s, options.patience_s, ledger)
            sampler = Sampler(self.run, self.manifest, chat, self.plan, self.tally)
            for moment in self.run.moments:
                outcomes = self.outcomes.setdefault(moment.decided.place.round, [])
                for other in sampler.others(moment):
                    outcomes.append(self.played_on(moment, other, len(outcomes) + 1))

    def played_on(self, moment: Moment, other: Other, number: int) -> Outcome:
        """The outcome of another decision, in a fork of the run that may have begun."""
        t = moment.decided.place.round
        folder = self.folder / f"r{t}-{number}"
        place = f"r{t}"
        row = decision_row(other.y_t)
        how = {"pool": self.manifest.pool, "shared": self.plan.shared, **self.given()}
        if not run_folder.is_begun(folder):
            resume(self.run.folder, t, folder, what_if={place: row}, **how)
        else:
            _check_same(folder, place, row)
            events = trajectory.read_if_sound(folder / "trajectory.jsonl")
            if not trajectory.is_finished(events):
                resume(folder, reuse=[self.run.folder], **how)
        return self._outcome(folder, other)

    def _outcome(self, folder: Path, other: Other) -> Outcome:
        seen = summary(folder)
        self.tally.forks += 1
        self.tally.of_forks = self.tally.of_forks.plus(seen.totals)
        reward = self.reward(seen.answer)
        name = str(folder.relative_to(self.plan.work))
        self.plan.tell(f"{name} {seen.ending.state} {seen.answer!r}, reward {reward:g}")
        return {
            "decision": reference_of(other.reply),
            "answer": seen.answer,
            "state": seen.ending.state,
            "reward": reward,
            "run": name,
            "calls": seen.totals.calls,
            "reused_calls": seen.reused_calls,
            "paid_usd": paid_usd(seen.totals),
            "saved_usd": seen.saved_usd,
        }

    def reward(self, answer: str) -> float:
        """That of a final answer: whether it is right."""
        return float(matches(answer, self.right, self.manifest.question))

    def examples(self) -> list[Example]:
        """The examples of the run, with the outcomes so far."""
        found = examples_of(self.run, self.right)
        for moment, example in zip(self.run.moments, found, strict=True):
            outcomes = self.outcomes.get(moment.decided.place.round, [])
            example.meta["reward"] = self.reward(self.run.answer)
            example.meta["what_if"] = list(outcomes)
        return found

    def paid_before(self) -> float:
        """What earlier commands have paid, in USD. Raises ConfigError if nobody knows."""
        of_samples = Prices(self.manifest).total(exchanges(self.folder / SAMPLES))
        of_forks = Totals()
        if self.folder.is_dir():
            for folder in outside.folders_in(self.folder):
                if run_folder.is_begun(folder):
                    of_forks = of_forks.plus(summary(folder).totals)
        usd = add_usd(of_samples.cost_usd, paid_usd(of_forks))
        if usd is None:
            problem = "has calls of unknown cost, so no --budget can be kept"
            raise ConfigError(f"{self.folder} {problem}")
        return usd


class Sampler:
    """Draws decisions of the policy, the main agent of a run, in the states of this run."""

    def __init__(
        self,
        run: Recorded,
        manifest: Manifest,
        chat: Chat,
        plan: Plan,
        tally: Tally,
    ) -> None:
        self.run = run
        self.plan = plan
        self.chat = chat
        self.tally = tally
        self.agent = name_of(manifest.options.agent)
        self.backend = with_model(chat, manifest.pool[manifest.pool.main])

    def others(self, moment: Moment) -> Iterator[Other]:
        """Decisions that differ from that of the run and from one another: as many as are wanted,
        unless the policy repeats itself.
        """
        seen = [self._compared(moment.decided.y_t)]
        for number in range(1, DRAWS * self.plan.count + 1):
            if len(seen) > self.plan.count:
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
            named["temperature"] = self.plan.temperature
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


def _check_same(folder: Path, place: str, row: Mapping[str, Any]) -> None:
    """Raises ConfigError if a fork has another decision than this one."""
    as_stored = json.loads(json.dumps(row))
    if read_manifest(folder).what_if.get(place) != as_stored:
        problem = "has played on another decision; use another --out"
        raise ConfigError(f"{folder} {problem}")
