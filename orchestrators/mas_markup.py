"""A reply of MAS-Orchestra (arXiv 2601.14652, App. H) as a tree of elements, each with its line.

Nothing is repaired: an unclosed tag is an error, never a smaller graph. Only the format's own tags
are markup; every other `<` and `&` is text, because models write prose in their inputs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn
from xml.sax.saxutils import unescape

from orchestra.vocabulary import ModelMistake

CHILDREN = {
    "reply": {"agent", "edge", "answer"},
    "agent": {
        "agent_id", "agent_name", "agent_description", "required_arguments", "agent_output_id",
        "debate_roles",
    },
    "required_arguments": {"agent_input", "debate_roles"},
    "edge": {"from", "to"},
}  # fmt: skip
TAGS = "|".join(sorted(set.union(*CHILDREN.values())))
TAG = re.compile(rf"<!\[CDATA\[|<(/?)({TAGS}|think(?:ing)?)\s*(/?)>")
THOUGHT = re.compile(r"\s*<think(?:ing)?>|(?!\s*(?:```\w*\s*)?<(?:agent|answer|edge)>)")
THOUGHT_END = re.compile(r"</think(?:ing)?>")


def fail(rule: str, **values: object) -> NoReturn:
    raise ModelMistake(rule, "mas_orchestra/mistakes", **values)


@dataclass
class Element:
    tag: str
    line: int
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def one(self, tag: str) -> Element | None:
        """The child of that name. A second one is an error."""
        found = [e for e in self.children if e.tag == tag]
        if len(found) > 1:
            fail("field_twice", tag=tag, parent=self.tag, line=found[1].line)
        return found[0] if found else None


def as_tree(reply: str) -> Element:
    """The elements of a reply under one root, each where the format wants it. Thinking beside them
    is left out; inside one it is text.
    """
    text = _without_fence(_without_first_thoughts(reply))
    root, position, line = Element("reply", 1), 0, 1
    path = [root]
    while found := TAG.search(text, position):
        closing, tag, empty = found.groups()
        here, end = path[-1], found.end()
        _add_text(here, text[position : found.start()], line)
        line += text.count("\n", position, found.start())
        if tag is None or tag.startswith("think"):
            last = "]]>" if tag is None else f"</{tag}>"
            if tag and (here is not root or closing):  # a tag that is text here
                _add_text(here, found[0], line)
            else:
                if (stop := text.find(last, end)) < 0:
                    fail("unclosed", tag=tag or "![CDATA[", line=line)
                here.text += text[end:stop] if tag is None and here.tag not in CHILDREN else ""
                end = stop + len(last)
        elif closing:
            _close(path, tag, line)
        else:
            _open(path, tag, line, text, end)
            if empty:
                path.pop()
        line += text.count("\n", found.start(), end)
        position = end
    if len(path) > 1:
        fail("unclosed", tag=path[-1].tag, line=path[-1].line)
    _add_text(root, text[position:], line)
    return root


def _without_first_thoughts(text: str) -> str:
    """The text with the thinking that it begins with made into blank lines; some templates print
    only its closing tag.
    """
    position = 0
    while THOUGHT.match(text, position) and (end := THOUGHT_END.search(text, position)):
        position = end.end()
    return "\n" * text.count("\n", 0, position) + text[position:]


def _without_fence(text: str) -> str:
    """Without a ```xml fence around it all."""
    opened, closed = re.match(r"(\s*)```(?:xml)?[ \t]*(?=\n|<)", text), text.rstrip()
    if opened and closed.endswith("```"):
        return opened[1] + closed[opened.end() : -3]
    return text


def _add_text(element: Element, text: str, line: int) -> None:
    if element.tag not in CHILDREN:
        element.text += unescape(text, {"&quot;": '"', "&apos;": "'"})
    elif text.strip():
        line += text[: len(text) - len(text.lstrip())].count("\n")
        fail("stray_text", text=repr(text.strip()[:60]), parent=element.tag, line=line)


def _open(path: list[Element], tag: str, line: int, text: str, end: int) -> None:
    here = path[-1]
    if tag not in CHILDREN.get(here.tag, ()):
        # Where it belongs to an element around this one, this one was probably never closed.
        around = any(tag in CHILDREN[e.tag] for e in path[:-1])
        closings, openings = (text.count(f"<{slash}{here.tag}>", end) for slash in ("/", ""))
        if around and closings < openings + 1 + (tag == here.tag):
            fail("unclosed", tag=here.tag, line=here.line)
        fail("misplaced", tag=tag, parent=here.tag, line=line)
    here.children.append(Element(tag, line))
    path.append(here.children[-1])


def _close(path: list[Element], tag: str, line: int) -> None:
    if len(path) == 1:
        fail("not_opened", tag=tag, line=line)
    if path[-1].tag != tag:
        fail("unclosed", tag=path[-1].tag, line=path[-1].line)
    path.pop()
