"""How near a decision comes to the reference, by rule and not by a model: the offline stand-in for
the judge of App. B.4.

What a sub-task is for is told by its evidence, `meta["evidence"]`: for each sub-task of the
reference the file names, numbers and words that whoever does it must be given ("sum|add" stands for
either). Sub-tasks of the decision and of the reference are paired one to one, so whatever is given
twice, or for nothing, only dilutes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import permutations

from pydantic import TypeAdapter, ValidationError

from orchestra.vocabulary import (
    Complete,
    ConfigError,
    Decision,
    Delegate,
    ModelMistake,
    State,
    SubTask,
)
from orchestrators.orchestra_o1 import parse_decision
from runtime.prompts import told
from training.calculations import values
from training.evidence import evidence_of, found, numbers, subjects
from training.examples import Example
from training.reading import same_answer, state_at

CHARS, TIMES = 400, 4  # an instruction may be this long, or this often as long as the reference's
EXACTLY = 6  # sub-tasks of a decision, up to which every pairing is tried
BEYOND = 1 / 3  # going on where the reference completes: 1 of the judge's 3, not wrong but for less

# ---- sub-tasks -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Match:
    """`tool` and `decision` in [0, 1]. `exact`: the reference's decision in all that matters: its
    action and answer, or its sub-tasks one for one, each with the same evidence, tools and needs.
    `right`: exact, or the right answer sooner than the reference.
    """

    tool: float
    decision: float
    exact: bool
    right: bool


NOTHING = Match(0.0, 0.0, False, False)


def compare(example: Example, state: State, decision: Decision) -> Match:
    """How near `decision` comes to the reference of `example` in the state s_t. Raises ConfigError
    where that is no decision.
    """
    reference = _reference(example, state)
    if isinstance(decision, Complete):
        answer = right_answer(example, reference)
        right = same_answer(decision.answer, answer, state.task.question)
        if isinstance(reference, Complete):  # it was time to complete
            return Match(1.0, float(right), right, right)
        return Match(1.0, 1.0, False, True) if right else NOTHING  # sooner, or wrong
    if isinstance(reference, Complete):
        return _going_on(decision, state)
    return _Pairs(example, state, reference.subtasks, decision.subtasks).match()


def check(example: Example) -> None:
    """Raises ConfigError for an example that no decision could be compared with: not even its own
    reference is exact.
    """
    state = state_at(example)
    try:
        _kind_of_state().validate_json(json.dumps(asdict(state), default=str), strict=True)
        exact = compare(example, state, _reference(example, state)).exact
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"example {example.id}: its meta has no usable state "
            f"({'.'.join(map(str, first['loc']))}: {first['msg']}); make the file again"
        ) from None
    except (TypeError, AttributeError) as error:
        raise ConfigError(
            f"example {example.id}: its meta has no usable evidence ({error}); make the file again"
        ) from None
    if not exact:
        raise ConfigError(
            f"example {example.id}: its reference is not exact by its own evidence or answer; make "
            "the file again"
        )


@lru_cache(maxsize=1)
def _kind_of_state() -> TypeAdapter[State]:
    return TypeAdapter(State)


def _reference(example: Example, state: State) -> Decision:
    try:
        return parse_decision(json.dumps(example.reference), state)
    except ModelMistake as mistake:
        where = f"example {example.id}: its reference is no decision"
        raise ConfigError(f"{where} ({told(mistake)}); make the file again") from None


def right_answer(example: Example, reference: Decision) -> str:
    """The answer as `meta` knows it, else as the reference gives it; "" if neither does."""
    known = str(example.meta.get("answer") or "")
    return known or (reference.answer if isinstance(reference, Complete) else "")


def _going_on(decision: Delegate, state: State) -> Match:
    """Delegating where all is known: what it costs grows with the number of sub-tasks."""
    about = subjects(state)
    asked = [bool(found(about, u.instruction.lower())) for u in decision.subtasks]
    able = [a and u.tools != () for a, u in zip(asked, decision.subtasks, strict=True)]
    share = BEYOND / max(1, len(asked)) ** 2
    return Match(share * sum(able), share * sum(asked), False, False)


class _Pairs:
    """The sub-tasks of the reference (i) and of the decision (j), paired one to one."""

    def __init__(
        self, example: Example, state: State, right: Sequence[SubTask], said: Sequence[SubTask]
    ) -> None:
        self.right, self.said = right, said
        self.files = frozenset(m.name.lower() for m in state.task.media)
        given = example.meta.get("evidence") or [evidence_of(u, state) for u in right]
        self.evidence = [frozenset(str(e).lower() for e in row) for row in given]
        if len(given) != len(right):
            counts = f"evidence for {len(given)} sub-tasks, and {len(right)} in its reference"
            raise ConfigError(f"example {example.id}: has {counts}; make the file again")
        texts = [state.task.question, *(f"{h.answer} {h.summary}" for h in state.history)]
        self.known = self.files.union(*map(numbers, texts), *self.evidence)
        self.apt = [self._apt(i) for i in range(len(right))]
        self.worth = [values(u.instruction) for u in right]  # what its calculations come to
        self.own = [
            wanted.difference(*(self._told(u) for u in right if u is not right[i]))
            for i, wanted in enumerate(self.evidence)
        ]  # what no other sub-task of the reference is told
        self.named = [self._told(u) | numbers(u.instruction) for u in said]
        self.room = len(state.context)
        self.near = {(i, j): self._near(i, j) for i in range(len(right)) for j in range(len(said))}
        self.pairs = self._assign()

    def _apt(self, i: int) -> set[str]:
        """What may be told to whoever does i: also the files that its evidence speaks of; and where
        that is a place and no more, as of one that only distracts, what the others are asked.
        """
        wanted, u = self.evidence[i], self.right[i]
        meant = {f for f in self.files if any(f in e.split("|") for e in wanted)}
        apt = wanted | self._told(u) | numbers(u.instruction) | meant
        if all(map(self._is_place, wanted)):
            others = (row for row in self.evidence if row is not wanted)
            apt |= {e for row in others for e in row if not self._is_place(e)}
        return set(apt)

    def _is_place(self, evidence: str) -> bool:
        return evidence in self.files or evidence.startswith(("http://", "https://"))

    def _told(self, u: SubTask) -> set[str]:
        """What it is told of all that is known: a file only where its instruction names it."""
        context = found(self.known - self.files, u.context.lower())
        return context | found(self.known, u.instruction.lower())

    def _near(self, i: int, j: int) -> float:
        """How well j is told what i needs: the share that it is told, of it the share that is to
        the point, and less for what is far too long. Nothing, where it is told no more of it than
        any other sub-task of the reference. A calculation is told in full by any that comes to the
        same, and not at all by one that does not.
        """
        wanted, named = self.evidence[i], self.named[j]
        if self.worth[i] and (said := self._calculated(j)):
            if said != self.worth[i]:
                return 0.0
            named = named | wanted
        if self.own[i] and not self.own[i] & named:
            return 0.0
        share = len(named & wanted) / max(1, len(wanted))
        to_the_point = len(named & self.apt[i]) / len(named) if named else 1.0
        room = max(CHARS, TIMES * _length(self.right[i])) + self.room
        return share * to_the_point * min(1.0, room / max(1, _length(self.said[j])))

    def _calculated(self, j: int) -> set[Fraction]:
        """What the calculations come to that j is told: in its instruction, else in its context."""
        return values(self.said[j].instruction) or values(self.said[j].context)

    def _assign(self) -> dict[int, int]:
        """Reference -> decision: the pairs that get most done, on a tie the earlier ones."""
        if max(len(self.right), len(self.said)) > EXACTLY:
            return self._assign_greedily()
        done = {p: self._done(*p) for p, near in self.near.items() if near}

        def sum_of(chosen: Sequence[int]) -> float:  # without the noise of the order of a sum
            return round(sum(done.get(pair, 0.0) for pair in enumerate(chosen)), 9)

        places = range(max(len(self.right), len(self.said)))
        best = max(permutations(places, len(self.right)), key=sum_of)
        return {i: j for i, j in enumerate(best) if (i, j) in done}

    def _assign_greedily(self) -> dict[int, int]:
        """The best pair first; on a tie the earlier one."""
        order = sorted(self.near, key=lambda p: (-self.near[p] - self._tools(*p), p))
        pairs: dict[int, int] = {}
        for i, j in order:
            if i not in pairs and j not in pairs.values() and self.near[i, j]:
                pairs[i] = j
        return pairs

    def _tools(self, i: int, j: int) -> float:
        """F1 of the tools; half of it where Eq. 7 is left to choose."""
        wanted, given = set(self.right[i].tools or ()), self.said[j].tools
        if given is None or not wanted:
            return 0.5 if given is None and wanted else float(not given)
        return 2 * len(wanted & set(given)) / (len(wanted) + len(set(given)))

    def _done(self, i: int, j: int) -> float:
        """How far j does the work of i: half hangs on the tools, unless Eq. 7 is to choose them."""
        able = 1.0 if self.said[j].tools is None else self._tools(i, j)
        return self.near[i, j] * (1 + able) / 2

    def match(self) -> Match:
        most = max(len(self.right), len(self.said))
        if not self.right:  # what waits is to go on
            return Match(1 / (1 + most), 1 / (1 + most), not most, not most)
        tool = sum(self._tools(i, j) for i, j in self.pairs.items()) / most
        done = sum(self._done(i, j) for i, j in self.pairs.items()) / most
        needs, side_by_side = self._needs(), self._side_by_side()
        decision = done * (0.6 + 0.2 * needs + 0.2 * side_by_side)
        exact = min(tool, done, needs, side_by_side) == 1.0
        return Match(tool, decision, exact, exact)

    def _needs(self) -> float:
        """Jaccard overlap of the needs inside of the decision, named by the reference."""
        name: dict[str, int | str] = {u.id: u.id for u in self.said}
        name |= {self.said[j].id: i for i, j in self.pairs.items()}
        said = {(name[n], name[u.id]) for u in self.said for n in u.needs if n in name}
        at: dict[str, int | str] = {u.id: i for i, u in enumerate(self.right)}
        right = {(at[n], at[u.id]) for u in self.right for n in u.needs if n in at}
        return len(said & right) / len(said | right) if said | right else 1.0

    def _side_by_side(self) -> float:
        """The share of what can run now in the reference that runs now in the decision."""

        def free(subtasks: Sequence[SubTask]) -> set[int]:
            ids = {u.id for u in subtasks}
            return {n for n, u in enumerate(subtasks) if not ids & set(u.needs)}

        right, said = free(self.right), free(self.said)
        both = sum(i in right and j in said for i, j in self.pairs.items())
        return both / max(1, len(right), len(said))


def _length(u: SubTask) -> int:
    return len(u.instruction) + len(u.context)
