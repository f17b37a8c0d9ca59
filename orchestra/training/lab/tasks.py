"""The laboratory's tasks: all 17 shapes of MiniGAIA's, with a fifth of their compositions held out.

A composition is a shape with its operations, such as the sum of a read number and a searched one.
Held-out tasks are as large as those that are trained on, and have names of their own.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from functools import cache

from orchestra.kernel.prompts import say
from orchestra.kernel.vocabulary import Task
from orchestra.minigaia.shapes import HELD_OUT_SHAPES, SEEN_SHAPES, Shape, Tree, typed
from orchestra.minigaia.tasks import P_DISTRACTOR, WORDS, Composer, MiniTask
from orchestra.minigaia.world import P_TROUBLE, TROUBLE, World

SHAPES = (*SEEN_SHAPES, *HELD_OUT_SHAPES)
ONE_IN = 5  # compositions is held out


def is_held_out(tree: Tree) -> bool:
    """Whether a composition occurs in held-out tasks alone."""
    digest = hashlib.sha256(repr(tree).encode()).hexdigest()
    return int(digest, 16) % ONE_IN == 0


@cache
def compositions(shape: Shape, held_out: bool) -> Mapping[str, list[Tree]]:
    """The compositions of a shape, by their last operation."""
    found: dict[str, list[Tree]] = {}
    for tree in typed(shape):
        if is_held_out(tree) == held_out:
            found.setdefault(tree.label, []).append(tree)
    return found


def new_task(rng: random.Random, held_out: bool) -> World:
    """A task before its first round. Shapes are equally likely, as are their last operations."""
    shapes = [shape for shape in SHAPES if compositions(shape, held_out)]
    by_operation = compositions(rng.choice(shapes), held_out)
    last_operation = rng.choice(sorted(by_operation))
    tree = rng.choice(by_operation[last_operation])
    composer = Composer(rng, "held_out" if held_out else "train")
    if rng.random() < P_DISTRACTOR:
        composer.add_read("number")
    phrase = composer.add(tree).phrase
    mini = MiniTask(
        task=Task(say(WORDS, "question", what=phrase), tuple(composer.media)),
        facts=tuple(composer.facts),
        entities=tuple(composer.entities),
        group="held_out" if held_out else "seen",
    )
    unlucky = ""
    if rng.random() < P_TROUBLE:
        unlucky = rng.choice(sorted(mini.needed()))
    return World(mini, unlucky=unlucky, trouble=rng.choice(TROUBLE))


def training_task(number: int) -> World:
    """Training task `number`, the same for every seed."""
    return new_task(random.Random(f"lab train {number}"), held_out=False)


def held_out_task(number: int) -> World:
    """Held-out task `number`, the same for every arm."""
    return new_task(random.Random(f"lab held out {number}"), held_out=True)


def validation_task(number: int) -> World:
    """A task of the trained compositions that no arm trains on."""
    return new_task(random.Random(f"lab valid {number}"), held_out=False)
