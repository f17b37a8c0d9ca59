"""The compact language of the laboratory's policy: slots in place of sentences.

    state      Q k1: sum k2 k3 k2: img k3: search k4 k4: page also k5: wav F k2 ok k4 failed r 2
    decision   k4: page                  sub-tasks: a slot, and how it is found
               k3: search k4 ; k4: page
               k1: sum k2 k3
               done k1                   complete with the value of k1

A slot stands for a fact, numbered in the order in which the question mentions it. The state lists
how each is found: k1, the answer, is a sum, k3 is searched for by the name in k4, k5 is not
needed; k2 was found. So the question is parsed already, which a model of sentences has to learn.

`Game.expand` makes the JSON decision that the program reads of it, and `Game.compact` turns one
back. Prompts have about 30 tokens and decisions about 6, in place of 300 and 60.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from orchestra.kernel.prompts import say
from orchestra.minigaia.operations import ANY_ORDER, OPERATIONS
from orchestra.minigaia.tasks import TOOL, WORDS, Fact
from orchestra.minigaia.world import World

TOOLS = {
    "img": TOOL["image"],
    "wav": TOOL["audio"],
    "mp4": TOOL["video"],
    "page": TOOL["page"],
    "search": TOOL["search"],
}
SHORT = {tool: word for word, tool in TOOLS.items()}
SLOTS = [f"k{number}" for number in range(1, 13)]
STATUS = {"done": "ok", "failed": "failed", "blocked": "blocked", "partial": "partial"}
END, REPLY = "<e>", "<a>"  # of a decision, and what comes before it
VOCABULARY = [
    *(END, REPLY, "Q", "also", "F", *STATUS.values(), "r"),
    *map(str, range(1, 9)),
    *(";", "done"),
    *TOOLS,
    *OPERATIONS,
    *SLOTS,
    *(f"{slot}:" for slot in SLOTS),
]
MAX_SUBTASKS = 12
MAX_TOKENS = 40  # of a decision
UNKNOWN = "what is not known"  # the value of a slot whose fact was not found
BLIND = "Search for it."  # for a fact whose name is not known yet


class Game:
    """A task in the compact language, and what the policy has seen of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.facts = {fact.id: fact for fact in world.mini.facts}
        self.slots = _slots(world.mini.facts)
        self.of_slot = {slot: self.facts[id] for id, slot in self.slots.items()}
        self.seen: list[str] = []  # slots and their status, in the order of the reports

    # ---- the state -------------------------------------------------------------------------------

    def prompt(self) -> str:
        """s_t."""
        number = str(min(self.world.round, 8))
        return " ".join([self._question, "F", *self.seen, "r", number])

    @cached_property
    def _question(self) -> str:
        needed = self.world.mini.needed()
        parts = [self.subtask_for(f) for f in self.of_slot.values() if f.id in needed]
        extra = [
            self.subtask_for(f) for f in self.of_slot.values() if f.id not in needed
        ]
        return " ".join(["Q", *parts, *(f"also {part}" for part in extra)])

    def note(self, slots: Sequence[str], since: int) -> None:
        """Show the policy how the sub-tasks for these slots ended: the history from `since` on."""
        for slot, evidence in zip(slots, self.world.history[since:], strict=False):
            if slot:
                self.seen += [slot, STATUS[evidence.status]]

    # ---- a decision ------------------------------------------------------------------------------

    def expand(self, text: str) -> str:
        """The JSON decision that a text stands for; "" if it stands for none."""
        words = text.split()
        if len(words) == 2 and words[0] == "done" and words[1] in SLOTS:
            return _decision("complete", answer=self._value(words[1]))
        tasks = [self._subtask(part) for part in subtasks(text)]
        if not 0 < len(tasks) <= MAX_SUBTASKS or None in tasks:
            return ""
        return _decision("delegate_task", tasks=tasks)

    def meant(self, text: str) -> list[str]:
        """The slot that each sub-task of a decision is for; "" for no slot of this task."""
        return [self._slot(part) for part in subtasks(text)]

    def compact(self, decision: Mapping[str, Any]) -> str:
        """The text that stands for a decision of the expert's kind."""
        params = decision["params"]
        if decision["action"] == "complete":
            return f"done {self._slot_of_value(params['answer'])}"
        by_instruction = {fact.instruction: fact for fact in self.facts.values()}
        texts = []
        for task in params["tasks"]:
            instruction = task["task_instruction"].removeprefix(_again_prefix())
            texts.append(self.subtask_for(by_instruction[instruction]))
        return " ; ".join(texts)

    def subtask_for(self, fact: Fact) -> str:
        """The sub-task that finds a fact: its slot, how it is found, and with which slots."""
        how = fact.operation or SHORT[fact.tool]
        operands = [self.slots[id] for id in fact.needs]
        return " ".join([f"{self.slots[fact.id]}:", how, *operands])

    def _subtask(self, part: Sequence[str]) -> dict[str, Any] | None:
        """The sub-task that words stand for, as JSON. None: they stand for none."""
        if len(part) < 2 or not part[0].endswith(":"):
            return None
        slot, how, *operands = part[0][:-1], *part[1:]
        if slot not in self.of_slot or not set(operands) <= set(SLOTS):
            return None
        if how in TOOLS and len(operands) <= 1:
            return {
                "task_instruction": self._request(slot, operands),
                "tools": [TOOLS[how]],
            }
        if how not in OPERATIONS or len(operands) != len(OPERATIONS[how].takes):
            return None
        values = dict(zip("ab", map(self._value, operands), strict=False))
        what = say(WORDS, how, **values).splitlines()[0]
        instruction = say(WORDS, "compute", what=what)
        return {"task_instruction": instruction, "tools": [TOOL["compute"]]}

    def _request(self, slot: str, operands: Sequence[str]) -> str:
        """What the sub-task that reads a slot or searches for it says."""
        fact = self.of_slot[slot]
        is_known = self.world.found.keys() >= set(fact.needs)
        named = [self.slots[id] for id in fact.needs] == list(operands)
        return fact.instruction if is_known and named else BLIND

    def _slot(self, part: Sequence[str]) -> str:
        """The slot of a computation is that of its operation and operands, whatever it says."""
        if part[1] in TOOLS:
            return part[0][:-1]
        orders = [list(part[1:])]
        if part[1] in ANY_ORDER:
            orders.append([part[1], *reversed(part[2:])])
        for fact in self.facts.values():
            if self.subtask_for(fact).split()[1:] in orders:
                return self.slots[fact.id]
        return ""

    def _value(self, slot: str) -> str:
        fact = self.of_slot.get(slot)
        if fact is None or fact.id not in self.world.found:
            return UNKNOWN
        return fact.value

    def _slot_of_value(self, value: str) -> str:
        """The slot of a known value, the answer's first."""
        for fact in reversed(self.world.mini.facts):
            if fact.value == value and fact.id in self.world.found:
                return self.slots[fact.id]
        raise ValueError(f"no slot has the value {value!r}")


def subtasks(text: str) -> list[list[str]]:
    """The sub-tasks of a decision, as words.

    >>> subtasks("k2: img ; k1: sum k3 k4")
    [['k2:', 'img'], ['k1:', 'sum', 'k3', 'k4']]
    """
    return [part.split() for part in f" {text} ".split(" ; ")]


def _slots(facts: Sequence[Fact]) -> dict[str, str]:
    """fact -> slot. First those that the answer needs, as the question mentions them."""
    by_id = {fact.id: fact for fact in facts}
    order: dict[str, None] = {}

    def mention(id: str) -> None:
        order.setdefault(id)
        for needed in by_id[id].needs:
            mention(needed)

    mention(facts[-1].id)
    for fact in facts:
        order.setdefault(fact.id)
    return dict(zip(order, SLOTS, strict=False))


def _again_prefix() -> str:
    return say(WORDS, "again", instruction="#").split("#")[0]


def _decision(action: str, **params: Any) -> str:
    return json.dumps({"action": action, "reasoning": "", "params": params})
