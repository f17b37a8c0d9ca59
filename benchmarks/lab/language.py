"""The laboratory's world, and the compact language in which a policy reads and writes.

A question asks for what one kind of source says. The way there is a row of stages, and each stage
offers two to four leads, with their prices:

    state      asks memo all k1 chart 2 k2 joke 1 k3 film 4 failed k1 see found song atlas
    decision   k1 see k3 watch       delegate: a sub-task opens a lead with a tool
               done memo             complete, with what the memo says

One tool alone opens a lead, and two in five leads have nothing to say. No prompt says which:
that is knowledge about 30 kinds of sources (SOURCES), which has to be learned. `all`: a stage ends
when every lead is open that has something to say. `any`: when one of them is, and the cheapest will
do. After the last stage the question can be answered; what is asked need not be the newest.

A round costs 1, and a sub-task the price of its lead. A game ends with an answer, or lost when
less than 0 is left after a delegation. A lead may be in trouble: the right tool fails once. So a
failure means trouble, the wrong tool, or a lead that has nothing to say.

No stage of a held-out task occurs in training, whatever its prices and the order of its leads. What
is left of a larger, partly opened stage can have the same leads.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SOURCES = {  # by the tool that opens them
    "see": "map chart photo atlas poster ticket",
    "hear": "song siren podcast forecast auction choir",
    "watch": "film newsreel webinar vlog trailer match",
    "read": "memo letter diary contract almanac logbook",
    "": "rumour hunch dream legend horoscope gossip",  # nothing
}
TOOLS = tuple(filter(None, SOURCES))
LEADS = ("k1", "k2", "k3", "k4")
PRICES = range(1, len(LEADS) + 1)
END, REPLY = "<e>", "<a>"  # of a decision, and what comes before it
TOOL = {source: tool for tool, sources in SOURCES.items() for source in sources.split()}
VOCABULARY = (
    *(END, REPLY, "asks", "all", "any", "failed", "found", "done"),
    *map(str, PRICES),
    *(*LEADS, *TOOLS, *TOOL),
)
MAX_TOKENS = 2 * len(LEADS) + 1  # of a decision, with its end
ONE_IN = 5  # one stage in so many is held out
Pairs = tuple[tuple[str, str], ...]  # leads and tools


# ---- tasks ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lead:
    """`trouble`: the right tool fails once."""

    kind: str
    price: int
    trouble: bool


@dataclass(frozen=True)
class Stage:
    needs_all: bool
    leads: tuple[Lead, ...]


@dataclass(frozen=True)
class Task:
    """`asked`: the kind of source that has the answer, which only the last stage has."""

    asked: str
    stages: tuple[Stage, ...]


def new_task(rng: random.Random, rounds: int, trouble: float, held_out: bool) -> Task:
    """A task whose best play without trouble has `rounds` rounds, that of the answer included.
    `trouble`: the share of leads that are in trouble.
    """
    last = _stage(rng, trouble, held_out, asked="")
    asked = rng.choice([x.kind for x in last.leads if TOOL[x.kind]])
    first = [_stage(rng, trouble, held_out, asked) for _ in range(rounds - 2)]
    return Task(asked, (*first, last))


def _stage(rng: random.Random, trouble: float, held_out: bool, asked: str) -> Stage:
    """A stage without the kind `asked`. If that is "", the last stage, which needs all."""
    while True:
        kinds = [_kind(rng) for _ in range(rng.randint(2, len(LEADS)))]
        is_worth = any(TOOL[kind] for kind in kinds)
        differ = len(set(kinds)) == len(kinds)
        is_of_split = is_held_out(kinds) == held_out
        if is_worth and differ and is_of_split and asked not in kinds:
            break
    prices = rng.sample(PRICES, len(kinds))
    leads = tuple(
        Lead(kind, price, rng.random() < trouble)
        for kind, price in zip(kinds, prices, strict=True)
    )
    return Stage(not asked or rng.random() < 0.5, leads)


def _kind(rng: random.Random) -> str:
    """A kind of source: as likely worth opening as not."""
    is_worth = rng.random() < 0.5
    return rng.choice([kind for kind, tool in TOOL.items() if bool(tool) == is_worth])


def is_held_out(kinds: Sequence[str]) -> bool:
    """Whether a stage with these leads occurs in held-out tasks alone."""
    text = " ".join(sorted(kinds))
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % ONE_IN == 0


# ---- games ---------------------------------------------------------------------------------------


class Game:
    """A task that is played. `left`: what may still be spent; by default 1.2 times the cost of the
    best play, plus 2. `solved` is None until the game has ended.
    """

    def __init__(self, task: Task, left: int | None = None) -> None:
        self.task = task
        self.stage = 0
        self.opened: set[str] = set()  # leads of this stage
        self.failed: list[tuple[str, str]] = []  # leads of this stage, and tools
        self.found: list[str] = []  # kinds of sources, in order
        self.calls = 0  # sub-tasks so far
        self.solved: bool | None = None
        self.left = _allowed(task) if left is None else left

    @property
    def leads(self) -> dict[str, Lead]:
        """The leads of this stage by their names; {} after the last one."""
        if self.stage == len(self.task.stages):
            return {}
        return dict(zip(LEADS, self.task.stages[self.stage].leads, strict=False))

    def prompt(self) -> str:
        """s_t."""
        words = ["asks", self.task.asked]
        if leads := self.leads:
            words.append("all" if self.task.stages[self.stage].needs_all else "any")
            for name, lead in leads.items():
                if name not in self.opened:
                    words += [name, lead.kind, str(lead.price)]
        for name, tool in self.failed:
            words += ["failed", name, tool]
        return " ".join([*words, "found", *self.found])

    def best(self) -> str:
        """y*_t: all that this stage still needs; after the last one, the answer."""
        if not self.leads:
            return f"done {self.task.asked}"
        kinds = {name: self.leads[name].kind for name in self._needed()}
        return written([(n, TOOL[k]) for n, k in kinds.items()])

    def _needed(self) -> list[str]:
        """The leads that are still to be opened: all that are worth it, or the cheapest of them."""
        leads = self.leads
        worth = [n for n, lead in leads.items() if TOOL[lead.kind]]
        if self.task.stages[self.stage].needs_all:
            return [name for name in worth if name not in self.opened]
        return [] if self.opened else [min(worth, key=lambda n: leads[n].price)]

    def carry_out(self, text: str) -> None:
        """Play a decision. One that cannot be carried out costs its round."""
        decision = read(text)
        self.left -= 1
        if isinstance(decision, str):
            self.solved = not self.leads and decision == self.task.asked
            return
        for name, tool in decision:
            self._open(name, tool)
        if self.left < 0:
            self.solved = False
        elif self.leads and not self._needed():
            self.stage += 1
            self.opened, self.failed = set(), []

    def _open(self, name: str, tool: str) -> None:
        lead = self.leads.get(name)
        if lead is None or name in self.opened:
            return
        self.calls += 1
        self.left -= lead.price
        is_right = tool == TOOL[lead.kind]
        if is_right and (not lead.trouble or (name, tool) in self.failed):
            self.opened.add(name)
            self.found.append(lead.kind)
        else:
            self.failed.append((name, tool))


def _allowed(task: Task) -> int:
    plenty = 1_000_000
    game = Game(task, plenty)
    while game.solved is None:
        game.carry_out(game.best())
    cost = plenty - game.left
    return cost + cost // 5 + 2


# ---- settings, and the tasks of each -------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """`rounds` of the best play without trouble; shares of leads in `trouble` and of wrong y*."""

    rounds: int = 4
    trouble: float = 0.3
    wrong: float = 0.0

    @property
    def name(self) -> str:
        return f"rounds {self.rounds}, trouble {self.trouble}, wrong {self.wrong}"


SETTINGS = (
    Setting(),
    *(Setting(rounds=rounds) for rounds in (2, 6, 12)),
    *(Setting(trouble=trouble) for trouble in (0.0, 0.6)),
    *(Setting(wrong=wrong) for wrong in (0.1, 0.2)),
)


@dataclass(frozen=True)
class Tasks:
    """The first tasks of a name, the same for all arms."""

    name: str
    count: int
    held_out: bool

    def games(self, setting: Setting) -> list[Game]:
        rngs = [random.Random(f"lab {self.name} {n}") for n in range(self.count)]
        return [
            Game(new_task(r, setting.rounds, setting.trouble, self.held_out))
            for r in rngs
        ]


VALIDATION = Tasks("validation", 300, held_out=False)
CHECK = Tasks("validation", 100, held_out=False)  # the first of them, along the way
HELD_OUT = Tasks("held out", 300, held_out=True)


# ---- decisions -----------------------------------------------------------------------------------


def read(text: str) -> Pairs | str:
    """A decision: leads and tools, or the kind of source that has the answer. () if it is neither.

    >>> read("k2 see k1 read"), read("done memo"), read("k1 see k1 read"), read("k1")
    ((('k2', 'see'), ('k1', 'read')), 'memo', (), ())
    """
    words = text.split()
    if len(words) == 2 and words[0] == "done" and words[1] in TOOL:
        return words[1]
    names, tools = words[::2], words[1::2]
    is_usable = len(names) == len(tools) == len(set(names))
    if is_usable and set(names) <= set(LEADS) and set(tools) <= set(TOOLS):
        return tuple(zip(names, tools, strict=True))
    return ()


def written(pairs: Sequence[tuple[str, str]]) -> str:
    return " ".join(word for pair in pairs for word in pair)


def reward(text: str, reference: str) -> float:
    """r of Eq. 29 in [0, 1], by comparison with a reference decision: 0.1 if the decision can be
    carried out; and recall times precision of its leads (0.2), and of its leads with their tools
    (0.7). An answer gets 1 or 0.1.

    >>> [round(reward(y, "k1 see k3 read"), 2) for y in ("k3 read k1 see", "k1 see", "k1 hear")]
    [1.0, 0.55, 0.2]
    """
    mine, theirs = read(text), read(reference)
    if mine == ():
        return 0.0
    if isinstance(mine, str) or isinstance(theirs, str):
        return 1.0 if mine == theirs else 0.1
    leads = overlap({name for name, _ in mine}, {name for name, _ in theirs})
    return 0.1 + 0.2 * leads + 0.7 * overlap(set(mine), set(theirs))  # Eq. 29


def overlap(mine: set[Any], theirs: set[Any]) -> float:
    """Recall times precision."""
    both = len(mine & theirs)
    return both / len(theirs) * both / len(mine)
