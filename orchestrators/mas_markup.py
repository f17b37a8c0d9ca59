"""A reply of MAS-Orchestra (arXiv 2601.14652, App. H) as a tree of elements, each with its line.

The structure is expat's, with nothing mended: an unclosed tag is an error, never a smaller graph.
Only a `<` or `&` that begins none of the format's own tags is text: models write prose in their
inputs. Thinking goes where it stands beside the elements; within one it is text. Every error is a
ModelMistake that names the rule and the line of the reply.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

from orchestra.prompts import say
from orchestra.vocabulary import ModelMistake

AGENT = "agent_id agent_name agent_description required_arguments agent_output_id debate_roles"
CHILDREN = {
    "reply": {"agent", "edge", "answer"},
    "agent": set(AGENT.split()),
    "required_arguments": {"agent_input", "debate_roles"},
    "edge": {"from", "to"},
}
TAGS = set.union(*CHILDREN.values())
CDATA = r"<!\[CDATA\[(?s:.*?)(?:]]>|\Z)"
TOP = re.compile(rf"{CDATA}|<(/?think(?:ing)?|{'|'.join(sorted(CHILDREN['reply']))})\s*>")
NOT_A_TAG = re.compile(
    rf"<(?!/?(?:{'|'.join(sorted(TAGS))})\s*/?>)|&(?!(?:lt|gt|amp|quot|apos);)|(?<=]])>"
)
NO_XML = re.compile(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def fail(rule: str, **values: object) -> NoReturn:
    raise ModelMistake(say("mas_orchestra/mistakes", rule, **values))


@dataclass
class Element:
    tag: str
    line: int
    byte: int = 0  # of the document, where it begins
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def one(self, tag: str) -> Element | None:
        """The child of that name. A second one is an error."""
        found = [e for e in self.children if e.tag == tag]
        if len(found) > 1:
            fail("field_twice", tag=tag, parent=self.tag, line=found[1].line)
        return found[0] if found else None


def _without_thinking(text: str) -> str:
    """The text with its thinking made into blank lines, so that lines keep their numbers."""
    kept, position = [], 0
    for start, end in _thinking(text):
        kept += [text[position:start], "\n" * text.count("\n", start, end)]
        position = end
    return "".join([*kept, text[position:]])


def _thinking(text: str) -> list[tuple[int, int]]:
    """Where the thinking beside the elements begins and ends. Before a closing tag alone all is
    thinking: some templates print no other. One pass.
    """
    spans: list[tuple[int, int]] = []
    position = 0
    while found := TOP.search(text, position):
        tag, position = found[1] or "", found.end()
        if tag.startswith("/"):
            spans = [(0, position)]
        elif tag in CHILDREN["reply"]:
            position = _behind(text, tag, position)
        elif tag:
            if (end := text.find(f"</{tag}>", position)) < 0:
                fail("unclosed", tag=tag, line=text.count("\n", 0, found.start()) + 1)
            position = end + len(tag) + 3
            spans.append((found.start(), position))
    return spans


def _behind(text: str, tag: str, position: int) -> int:
    """Where the element that begins before `position` has ended; else `position`."""
    for found in re.compile(rf"{CDATA}|<(/?){tag}\s*>").finditer(text, position):
        if found[1] is not None:  # an end; or, for no element stands in its like, another beginning
            return found.end() if found[1] else position
    return position


def _without_fence(text: str) -> str:
    """Without a ```xml fence around it all."""
    opened = re.match(r"\s*```(?:xml)?[ \t]*(?=\n|<)", text)
    closed = text.rstrip().removesuffix("```")
    if not opened or len(closed) == len(text.rstrip()):
        return text
    return "\n" * opened[0].count("\n") + closed[opened.end() :]


def _escaped(text: str) -> Iterator[str]:
    """The text with what only looks like markup escaped, outside of CDATA sections."""
    position = 0
    while (start := text.find("<![CDATA[", position)) >= 0:
        end = text.find("]]>", start)
        if end < 0:
            fail("unclosed", tag="![CDATA[", line=text.count("\n", 0, start) + 1)
        yield NOT_A_TAG.sub(_entity, text[position:start])
        yield text[start : end + 3]
        position = end + 3
    yield NOT_A_TAG.sub(_entity, text[position:])


def _entity(found: re.Match[str]) -> str:
    return {"<": "&lt;", "&": "&amp;", ">": "&gt;"}[found[0]]


def as_tree(reply: str) -> Element:
    """The elements of a reply under one root, each where the format wants it."""
    document = _as_xml(reply)
    root = Element("reply", 1)
    path = [root]
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True

    def start(tag: str, _: object) -> None:
        line = parser.CurrentLineNumber
        if len(path) > 1 or tag != "reply":
            if tag not in CHILDREN.get(path[-1].tag, ()):
                _misplaced(tag, line, path, document)
            path[-1].children.append(Element(tag, line, parser.CurrentByteIndex))
            path.append(path[-1].children[-1])

    def end(tag: str) -> None:
        if tag != "reply":
            path.pop()

    def data(text: str) -> None:
        if path[-1].tag not in CHILDREN:
            path[-1].text += text
        elif text.strip():
            line = parser.CurrentLineNumber - text.lstrip().count("\n")  # it is told where it ends
            fail("stray_text", text=repr(text.strip()[:60]), parent=path[-1].tag, line=line)

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = data
    try:
        parser.Parse(document, True)
    except expat.ExpatError as error:
        if len(path) > 1:
            fail("unclosed", tag=path[-1].tag, line=path[-1].line)
        fail("not_xml", why=expat.errors.messages[error.code], line=error.lineno)
    return root


def _misplaced(tag: str, line: int, path: list[Element], document: bytes) -> NoReturn:
    """The last element of the path was never closed, where the tag belongs into one around it; else
    the tag is wrong.
    """
    here, depth = path[-1], 0
    if any(tag in CHILDREN[e.tag] for e in path[:-1]):
        for found in re.finditer(rb"<(/?)%b\s*>" % here.tag.encode(), document[here.byte :]):
            depth += -1 if found[1] else 1
            if not depth:
                break
    if depth:
        fail("unclosed", tag=here.tag, line=here.line)
    fail("misplaced", tag=tag, parent=here.tag, line=line)


def _as_xml(reply: str) -> bytes:
    """The reply within a root element, with nothing in it but the format's own markup."""
    text = _without_fence(_without_thinking(reply))
    clean = NO_XML.sub(" ", text)
    return f"<reply>{''.join(_escaped(clean))}</reply>".encode()
