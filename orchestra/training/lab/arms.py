"""The arms: what is compared.

Every seed has a base, which knows the language and no strategy, and a start, which imitates an
imperfect demonstrator. Then the arms part. All that is compared has had equal CPU seconds, except
where the name says otherwise. Imitation keeps its best checkpoint on validation tasks, and the
reinforcement-learning arms keep their last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestra.training.lab import grpo, imitation
from orchestra.training.lab.budget import Meter
from orchestra.training.lab.checkpoints import Checkpoints
from orchestra.training.lab.imitation import Lesson
from orchestra.training.lab.plan import Plan
from orchestra.training.policy import Policy
from orchestra.training.rewards import Reward


@dataclass(frozen=True)
class Training:
    """One training of an arm."""

    plan: Plan
    seed: int
    start: Path  # the folder of the policy as it was
    policy: Policy
    reward: Reward
    meter: Meter
    checkpoints: Checkpoints

    def note(self, _: grpo.Row) -> None:
        """After each step of reinforcement learning."""
        self.checkpoints.after_step()


Learn = Callable[[Training], None]


@dataclass(frozen=True)
class Arm:
    """`after` is the arm whose policy it continues from, `parts` the parts of the plan that its
    seconds are, and `as_few_as` an arm whose executed decisions limit its own.
    """

    name: str
    title: str
    after: str
    parts: tuple[str, ...]
    learn: Learn
    keep_best: bool = False
    as_few_as: str = ""

    def seconds(self, plan: Plan) -> float:
        return sum(float(getattr(plan, part)) for part in self.parts)


def _imitates(lessons: Callable[[Training], Iterator[Lesson]], lr: float) -> Learn:
    def learn(t: Training) -> None:
        after_step = t.checkpoints.after_step
        imitation.imitate(t.policy, lessons(t), t.meter, lr, after_step)

    return learn


def _reinforces(method: Callable[..., None], lr: float) -> Learn:
    def learn(t: Training) -> None:
        learner = grpo.trainer(t.policy, t.start, t.reward, lr, t.seed)
        method(learner, t.plan.tasks, t.meter, t.seed, t.note)

    return learn


def _all(t: Training) -> Iterator[Lesson]:
    return imitation.repeated(imitation.demonstrations(t.plan.tasks), t.seed)


def _successful(t: Training) -> Iterator[Lesson]:
    lessons = imitation.demonstrations(t.plan.tasks, only_successful=True)
    return imitation.repeated(lessons, t.seed)


def _perfect(t: Training) -> Iterator[Lesson]:
    return imitation.repeated(imitation.perfect_demonstrations(t.plan.tasks), t.seed)


def _babbled(t: Training) -> Iterator[Lesson]:
    return imitation.babbled(t.seed)


BOTH = ("start_s", "more_s")
MORE = ("more_s",)
ARMS = (
    Arm("base", "base: the language alone", "", ("base_s",), _imitates(_babbled, 2e-3)),
    Arm("start", "imitation (the start)", "base", ("start_s",), _imitates(_all, 2e-3)),
    Arm("longer", "imitation, longer", "start", MORE, _imitates(_all, 1e-3), True),
    Arm("da", "DA-GRPO", "start", MORE, _reinforces(grpo.on_policy, 6e-4)),
    Arm(
        "outcome_few",
        "GRPO, outcome, as few executed decisions as DA-GRPO",
        "start",
        MORE,
        _reinforces(grpo.by_outcome, 6e-4),
        as_few_as="da",
    ),
    Arm("outcome", "GRPO, outcome", "start", MORE, _reinforces(grpo.by_outcome, 6e-4)),
    Arm("offline", "DA-GRPO, offline", "start", MORE, _reinforces(grpo.offline, 6e-4)),
    Arm(
        "successful",
        "imitation of the successful games",
        "base",
        BOTH,
        _imitates(_successful, 2e-3),
        keep_best=True,
    ),
    Arm(
        "perfect",
        "upper bound: imitation of the expert",
        "base",
        BOTH,
        _imitates(_perfect, 2e-3),
        keep_best=True,
    ),
    Arm(
        "da_base",
        "DA-GRPO from the base",
        "base",
        BOTH,
        _reinforces(grpo.on_policy, 6e-4),
    ),
)
BY_NAME = {arm.name: arm for arm in ARMS}
