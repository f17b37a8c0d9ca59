"""Imitation: demonstrations, and the cross-entropy of their decisions."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from orchestra.training.lab.budget import MILLION, Meter
from orchestra.training.lab.demonstrators import Planner, babble, demonstrator, perfect
from orchestra.training.lab.language import Game
from orchestra.training.lab.model import encode
from orchestra.training.lab.play import carry_out
from orchestra.training.lab.tasks import new_task, training_task
from orchestra.training.policy import Ids, Policy
from orchestra.training.steps import learning_rate

Lesson = tuple[Ids, Ids]  # a state and the decision in it, as tokens
NOT_LEARNED = -100  # marks the tokens of the state
BATCH = 32
SORTED = 16  # batches are made at once, of about equal lengths each


# ---- demonstrations ------------------------------------------------------------------------------


def demonstration(game: Game, planner: Planner) -> tuple[list[Lesson], bool]:
    """The decisions of one game, and whether it was solved."""
    lessons = []
    end = None
    while end is None:
        text = planner(game)
        lessons.append(encode(game.prompt(), text))
        end = carry_out(game, text)
    return lessons, end


def demonstrations(tasks: int, only_successful: bool = False) -> list[Lesson]:
    """What the imperfect demonstrator does in the training tasks."""
    lessons = []
    for n in range(tasks):
        planner = demonstrator(random.Random(f"lab demonstrator {n}"))
        of_game, solved = demonstration(Game(training_task(n)), planner)
        if solved or not only_successful:
            lessons += of_game
    return lessons


def perfect_demonstrations(tasks: int) -> list[Lesson]:
    """What the perfect planner does in the training tasks."""
    games = [Game(training_task(n)) for n in range(tasks)]
    return [lesson for game in games for lesson in demonstration(game, perfect)[0]]


def babbled(seed: int) -> Iterator[Lesson]:
    """Random decisions in new tasks, without end: the language without a strategy."""
    rng = random.Random(f"lab babble {seed}")
    while True:
        game = Game(new_task(rng, held_out=False))
        yield from demonstration(game, babble(rng))[0]


def repeated(lessons: Sequence[Lesson], seed: int) -> Iterator[Lesson]:
    """The lessons without end, each time in another order."""
    rng = random.Random(f"lab order {seed}")
    while True:
        yield from rng.sample(lessons, len(lessons))


# ---- learning ------------------------------------------------------------------------------------


def imitate(
    policy: Policy,
    lessons: Iterator[Lesson],
    meter: Meter,
    lr: float,
    after_step: Callable[[], None] = lambda: None,
) -> None:
    """Learn the decisions until the budget ends."""
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.01
    )
    batches = _batches(lessons)
    for place in meter.places():
        ids, targets = _padded(next(batches))
        logits = policy.model(input_ids=ids).logits[:, :-1]  # (N, L - 1, V)
        learned = targets[:, 1:] != NOT_LEARNED
        loss = cross_entropy(logits[learned], targets[:, 1:][learned])
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(place, MILLION, lr, warmup=0.02, floor=0.1)
        optimizer.step()
        optimizer.zero_grad()
        after_step()


def _batches(lessons: Iterator[Lesson]) -> Iterator[list[Lesson]]:
    rng = random.Random(0)
    while True:
        drawn = sorted(islice(lessons, BATCH * SORTED), key=_length)
        batches = [drawn[k : k + BATCH] for k in range(0, len(drawn), BATCH)]
        rng.shuffle(batches)
        yield from batches


def _length(lesson: Lesson) -> int:
    return len(lesson[0]) + len(lesson[1])


def _padded(batch: Sequence[Lesson]) -> tuple[Tensor, Tensor]:
    """ids and targets, (N, L) each, padded on the right: a causal model needs no mask."""
    ids = [torch.tensor(state + decision) for state, decision in batch]
    targets = [
        torch.tensor([NOT_LEARNED] * len(state) + decision) for state, decision in batch
    ]
    padded_ids = pad_sequence(ids, batch_first=True)
    return padded_ids, pad_sequence(targets, True, padding_value=NOT_LEARNED)
