"""Reads a question of MiniGAIA into the facts that it asks for.

    At what time does the concert end?      start = the time at which the concert begins in #1
                                            minutes = the minutes that the concert lasts in #2
                                            answer = later(start, minutes)

The laboratory's policy reads slots and not sentences, so its question must be parsed. This parser
knows the forms in forms.toml and no other sentence: nothing here is learned, and no value is known.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from orchestra.kernel.prompts import say
from orchestra.kernel.vocabulary import ConfigError, Media, Task
from orchestra.minigaia.operations import OPERATIONS
from orchestra.minigaia.tasks import TOOL, WORDS, Fact
from orchestra.training.options import Checked

FILE = Path(__file__).with_name("forms.toml")
NAME = r"[A-Z]\w+(?: [A-Z]\w+)*"
COMPUTED = re.compile(r"(\w+)\(([\w, ]*)\)")
FOUND = re.compile(r"<(\w+)>")  # what was found for another fact
IN_FILE = re.compile(r"(.+) in #(\d)")


class Form(Checked):
    """A question with places for names, and the facts that it asks for, the answer last."""

    question: str
    facts: tuple[str, ...]

    def names_in(self, question: str) -> Mapping[str, str] | None:
        """The names in a question of this form; None for a question of another form.

        >>> Form(question="How old is {a}?", facts=()).names_in("How old is Greta Jansky?")
        {'a': 'Greta Jansky'}
        """
        pattern = re.escape(self.question)
        for place in "abc":
            pattern = pattern.replace(rf"\{{{place}\}}", rf"(?P<{place}>{NAME})")
        found = re.fullmatch(pattern, question)
        return found.groupdict() if found else None


@cache
def forms() -> tuple[Form, ...]:
    rows = tomllib.loads(FILE.read_text(encoding="utf-8"))["form"]
    return tuple(Form(**row) for row in rows)


def facts_of(task: Task) -> list[Fact]:
    """What a question asks for, each fact after those that it needs, without values. Raises
    ConfigError for a question of an unknown form, or with too few files.
    """
    for form in forms():
        names = form.names_in(task.question)
        if names is not None:
            return [_fact(line, names, task.media) for line in form.facts]
    raise ConfigError(
        "the laboratory's agent cannot parse this question; it knows those of "
        f"fixtures/minigaia and their like ({FILE.name} has the forms)"
    )


def with_answers(facts: Sequence[Fact], answers: Mapping[str, str]) -> list[Fact]:
    """The facts with the values that were found, also in the instructions of other facts."""

    def filled(instruction: str) -> str:
        return FOUND.sub(lambda at: answers.get(at[1], at[0]), instruction)

    return [
        replace(
            fact,
            value=answers.get(fact.id, ""),
            instruction=filled(fact.instruction),
        )
        for fact in facts
    ]


# ---- one fact ------------------------------------------------------------------------------------


def _fact(line: str, names: Mapping[str, str], media: Sequence[Media]) -> Fact:
    """The fact of a line `id = what`. Raises ConfigError if its file does not exist."""
    id, _, what = line.partition(" = ")
    for place, name in names.items():
        what = what.replace(f"{{{place}}}", name)
    computation = COMPUTED.fullmatch(what)
    if computation:
        needs = tuple(computation[2].split(", "))
        return _new(id, TOOL["compute"], needs, "", computation[1])
    in_file = IN_FILE.fullmatch(what)
    if in_file is None:
        needs = tuple(FOUND.findall(what))
        return _new(id, TOOL["search"], needs, say(WORDS, "search", what=what))
    number = int(in_file[2])
    if number > len(media):
        raise ConfigError(f"this question needs {number} files; it has {len(media)}")
    file = media[number - 1]
    phrase = say(WORDS, "in_file", what=in_file[1], place=file.name)
    return _new(id, TOOL[file.modality], (), say(WORDS, "read", what=phrase))


def _new(
    id: str, tool: str, needs: tuple[str, ...], instruction: str, operation: str = ""
) -> Fact:
    assert not operation or operation in OPERATIONS, operation
    return Fact(
        id=id,
        tool=tool,
        needs=needs,
        evidence=(),
        instruction=instruction,
        report="",
        value="",
        operation=operation,
    )
