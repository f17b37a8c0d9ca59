"""The tags in a reply of MAS-Orchestra as a tree of elements, each with its line.

Only the format's own tags are markup. Every other `<` and `&` is text, because models write prose
in their inputs. Nothing is repaired: an unclosed tag is an error, never a smaller graph.

    >>> root = as_tree("<edge>\\n<from>A</from>\\n<to>B</to>\\n</edge>")
    >>> [(child.tag, child.text, child.line) for child in root.children[0].children]
    [('from', 'A', 2), ('to', 'B', 3)]
    >>> as_tree("<edge><from>A</edge>")
    Traceback (most recent call last):
    orchestra.vocabulary.ModelMistake: ('unclosed', {'tag': 'from', 'line': 1})
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import chain
from typing import NoReturn
from xml.sax.saxutils import unescape

from orchestra.vocabulary import ModelMistake

CHILDREN = {  # which tags may be in which; the others have text
    "reply": ("agent", "edge", "answer"),
    "agent": (
        "agent_id",
        "agent_name",
        "agent_description",
        "required_arguments",
        "agent_output_id",
    ),
    "required_arguments": ("agent_input", "debate_roles"),
    "edge": ("from", "to"),
}
TAGS = "|".join(chain(*CHILDREN.values()))
TAG = re.compile(rf"<(/?)({TAGS})[ \t]*(/?)>")
# An <answer> in one of these is text: it tells the agent to use this tag.
PROSE = ("agent_input", "agent_description")
# The end of the thinking: a tag of the graph follows, and no other thinking before it.
THOUGHT_END = re.compile(
    r"</think(?:ing)?>"
    r"(?=(?:[^<]|<(?!/?think|(?:agent|answer|edge)[\s/>]))*<(?:agent|answer|edge)\b)"
)
QUOTES = {"&quot;": '"', "&apos;": "'"}


def fail(rule: str, **values: object) -> NoReturn:
    raise ModelMistake(rule, "mas_orchestra/mistakes", **values)


def without_thinking(reply: str) -> str:
    """The reply without its thinking, of which only the line breaks are kept; the same object if it
    has none. Some templates print only the closing tag: then all text before it is thinking.
    """
    thought = THOUGHT_END.search(reply)
    if thought is None:
        return reply
    opened = reply.find("<think", 0, thought.start())
    start = max(opened, 0)
    breaks = reply.count("\n", start, thought.start())
    return reply[:start] + "\n" * breaks + reply[thought.end() :]


@dataclass
class Element:
    """A tag with what is between it and its closing tag. `line` is that of the opening tag."""

    tag: str
    line: int
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def one(self, tag: str, needed: bool = True) -> Element:
        """The only child with this tag; an empty Element if it is missing and not `needed`."""
        found = [e for e in self.children if e.tag == tag]
        if len(found) > 1:
            fail("field_twice", tag=tag, parent=self.tag, line=found[1].line)
        if needed and not found:
            fail("field_missing", tag=tag, line=self.line)
        return found[0] if found else Element(tag, self.line)


def as_tree(reply: str) -> Element:
    """The elements of a reply under one root. Text around them is ignored. Raises ModelMistake for
    an element in the wrong place.
    """
    tree = _Tree()
    position = 0
    for found in TAG.finditer(reply):
        closing, tag, empty = found.groups()
        if tag == "answer" and tree.here.tag in PROSE:
            continue
        tree.add_text(reply[position : found.start()])
        position = found.end()
        if not closing:
            tree.open(tag)
        if closing or empty:
            tree.close(tag)
    return tree.whole()


class _Tree:
    """The tree of a reply while it is read, tag by tag."""

    def __init__(self) -> None:
        self.root = Element("reply", line=1)
        self.path = [self.root]  # the open elements
        self.line = 1

    @property
    def here(self) -> Element:
        return self.path[-1]

    def add_text(self, text: str) -> None:
        here = self.here
        if here.tag not in CHILDREN:
            here.text += unescape(text, QUOTES)
        elif here is not self.root and text.strip():
            shown = repr(text.strip()[:60])
            fail("stray_text", text=shown, parent=here.tag, line=self.line)
        self.line += text.count("\n")

    def open(self, tag: str) -> None:
        here = self.here
        if tag not in CHILDREN.get(here.tag, ()):
            fits_outside = any(tag in CHILDREN[e.tag] for e in self.path[:-1])
            if fits_outside:
                fail("unclosed", tag=here.tag, line=here.line)
            fail("misplaced", tag=tag, parent=here.tag, line=self.line)
        child = Element(tag, self.line)
        here.children.append(child)
        self.path.append(child)

    def close(self, tag: str) -> None:
        here = self.here
        if here is self.root:
            fail("not_opened", tag=tag, line=self.line)
        if here.tag != tag:
            fail("unclosed", tag=here.tag, line=here.line)
        self.path.pop()

    def whole(self) -> Element:
        """The root, if all elements are closed."""
        here = self.here
        if here is not self.root:
            fail("unclosed", tag=here.tag, line=here.line)
        return self.root
