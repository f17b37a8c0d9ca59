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
TAG = re.compile(
    rf"<!\[CDATA\[.*?\]\]>|<(/?)({'|'.join(sorted(set.union(*CHILDREN.values())))}"
    r"|think(?:ing)?)\s*(/?)>",
    re.S,
)


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
    text = re.sub(r"\A(\s*)```(?:xml)?[ \t]*(?=\n|<)(.*)```\s*\Z", r"\1\2", reply, flags=re.S)
    root, position = Element("reply", 1), 0
    path = [root]
    while found := TAG.search(text, position):
        closing, tag, empty = found[1], found[2], found[3]
        line, here = text.count("\n", 0, found.start()) + 1, path[-1]
        thinking = tag in ("think", "thinking")
        if tag is None or (thinking and here is not root):  # CDATA, or a tag that is text here
            _add_text(here, text[position : found.end()], line)
        elif thinking and closing:  # some templates print no opening tag
            root.children.clear()
        else:
            _add_text(here, text[position : found.start()], line)
            if thinking:
                if (end := text.find(f"</{tag}>", found.end())) < 0:
                    fail("unclosed", tag=tag, line=line)
                position = end + len(tag) + 3
                continue
            if closing:
                _close(path, tag, line)
            else:
                _open(path, tag, line, text[found.end() :])
                if empty:
                    path.pop()
        position = found.end()
    if len(path) > 1:
        fail("unclosed", tag=path[-1].tag, line=path[-1].line)
    _add_text(root, text[position:], text.count("\n") + 1)
    return root


def _add_text(element: Element, text: str, line: int) -> None:
    if element.tag not in CHILDREN:
        plain = re.sub(r"<!\[CDATA\[(.*?)\]\]>", r"\1", text, flags=re.S)
        element.text += plain if plain != text else unescape(text, {"&quot;": '"', "&apos;": "'"})
    elif text.strip():
        line -= text.lstrip().count("\n")
        fail("stray_text", text=repr(text.strip()[:60]), parent=element.tag, line=line)


def _open(path: list[Element], tag: str, line: int, rest: str) -> None:
    here = path[-1]
    if tag not in CHILDREN.get(here.tag, ()):
        # Where it belongs to an element around this one, this one was probably never closed.
        around = any(tag in CHILDREN[e.tag] for e in path[:-1])
        if around and not re.match(rf"(?s)(?:(?!<{here.tag}>).)*?</{here.tag}>", rest):
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
