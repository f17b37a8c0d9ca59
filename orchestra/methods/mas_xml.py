"""The XML of MAS-Orchestra (arXiv 2601.14652, App. H): from a reply to sub-tasks, or to a
ModelMistake that names the first broken rule, the id or edge, and the line of the reply.

Nothing is repaired: an unclosed tag is an error, never a smaller graph. Only the format's own tags
are markup; every other `<` and `&` is text, because models write prose in their inputs.

    >>> parse("<answer>4</answer>", "low")
    '4'
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn
from xml.sax.saxutils import unescape

from orchestra.schedule import cycle
from orchestra.vocabulary import ModelMistake, SubTask

STYLES = {  # SubTask.agent by agent_name
    "CoTAgent": "cot",
    "SCAgent": "sc",
    "DebateAgent": "debate",
    "ReflexionAgent": "reflexion",
    "SearchAgent": "search-loop",
    "WebSearchAgent": "search-loop",
}
INSERT = re.compile(r"\$\{([^{}]+)\}")
ID = re.compile(r"[A-Za-z0-9_]+")
CHILDREN = {
    "reply": ("agent", "edge", "answer"),
    "agent": (
        "agent_id", "agent_name", "agent_description", "required_arguments", "agent_output_id",
    ),
    "required_arguments": ("agent_input", "debate_roles"),
    "edge": ("from", "to"),
}  # fmt: skip
TAG = re.compile(rf"<(/?)({'|'.join(sum(CHILDREN.values(), ()))})[ \t]*(/?)>")
THOUGHT_END = re.compile(
    r"</think(?:ing)?>(?=(?:[^<]|<(?!/?think|(?:agent|answer|edge)[\s/>]))*<(?:agent|answer|edge)\b)"
)


def fail(rule: str, **values: object) -> NoReturn:
    raise ModelMistake(rule, "mas_orchestra/mistakes", **values)


def parse(reply: str, dom: str = "high") -> tuple[SubTask, ...] | str:
    """The agents of a reply, the sink last; or its direct answer. An empty instruction stands for
    the question. Raises ModelMistake.
    """
    rest = without_thinking(reply)
    root = as_tree(rest)
    agents = [_agent(e, dom) for e in root.children if e.tag == "agent"]
    if dom == "low":
        return _one_agent(root.children, agents)
    if answer := next((e for e in root.children if e.tag == "answer"), None):
        fail("answer_in_high", line=answer.line)
    if not agents:
        fail("no_agent", start=repr(reply.strip()[:80]))
    if rest is reply:
        begun = "<think" in reply.partition("<agent")[0]
        fail("thinking_unclosed" if begun else "no_thinking")
    blocks = [e for e in root.children if e.tag == "edge"]
    if blocks[1:]:
        fail("edge_blocks", line=blocks[1].line)
    if blocks and root.children[-1] is not blocks[0]:
        fail("agent_after_edge", line=root.children[-1].line)
    some = blocks and (
        agents[1:] or blocks[0].children
    )  # the block of one agent may be empty
    return _checked_graph(agents, _edges(blocks[0]) if some else [])


# ---- markup --------------------------------------------------------------------------------------


@dataclass
class Element:
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


def without_thinking(reply: str) -> str:
    """The reply without its thinking, of which only the line breaks are kept; the same object if it
    has none. Some templates print only the closing tag: then all text before it is thinking.
    """
    if not (thought := THOUGHT_END.search(reply)):
        return reply
    start = max(reply.find("<think", 0, thought.start()), 0)
    breaks = reply.count("\n", start, thought.start())
    return reply[:start] + "\n" * breaks + reply[thought.end() :]


def as_tree(reply: str) -> Element:
    """The elements of a reply under one root. Text around them is ignored. Raises ModelMistake for
    an element in the wrong place.
    """
    root = Element("reply", 1)
    path, position, line = [root], 0, 1
    for found in TAG.finditer(reply):
        closing, tag, empty = found.groups()
        here, before = path[-1], reply[position : found.start()]
        if tag == "answer" and here.tag in ("agent_input", "agent_description"):
            continue  # it is text: the input tells the agent to use this tag
        position = found.end()
        if here.tag not in CHILDREN:
            here.text += unescape(before, {"&quot;": '"', "&apos;": "'"})
        elif here is not root and before.strip():
            fail(
                "stray_text", text=repr(before.strip()[:60]), parent=here.tag, line=line
            )
        line += before.count("\n")
        if not closing:
            path.append(_open_element(path, tag, line))
        elif here is root:
            fail("not_opened", tag=tag, line=line)
        elif here.tag != tag:
            fail("unclosed", tag=here.tag, line=here.line)
        if closing or empty:
            path.pop()
    if path[1:]:
        fail("unclosed", tag=path[-1].tag, line=path[-1].line)
    return root


def _open_element(path: Sequence[Element], tag: str, line: int) -> Element:
    here, child = path[-1], Element(tag, line)
    if tag not in CHILDREN.get(here.tag, ()):
        if any(tag in CHILDREN[e.tag] for e in path[:-1]):
            fail("unclosed", tag=here.tag, line=here.line)
        fail("misplaced", tag=tag, parent=here.tag, line=line)
    here.children.append(child)
    return child


# ---- rules ---------------------------------------------------------------------------------------


def _agent(e: Element, dom: str) -> tuple[SubTask, int]:
    """An agent, and its line."""
    arguments, named = e.one("required_arguments"), e.one("agent_name")
    wanted, other = ("agent_id", "agent_output_id")[:: 1 if dom == "high" else -1]
    if extra := next((child for child in e.children if child.tag == other), None):
        fail("id_tag", tag=other, wanted=wanted, line=extra.line)
    identity = e.one(wanted)
    e.one("agent_description")
    id, name = identity.text.strip(), named.text.strip()
    if name not in STYLES:
        fail("unknown_agent", name=repr(name), known=", ".join(STYLES), line=named.line)
    if not ID.fullmatch(id):
        fail("bad_id", id=repr(id), line=identity.line)
    text = arguments.one("agent_input").text.strip()
    roles = _roles(arguments.one("debate_roles", name == "DebateAgent"), name)
    text = "" if text == '""' else text
    return SubTask(id, text, tools=(), agent=STYLES[name], roles=roles), e.line


def _roles(e: Element, name: str) -> tuple[str, ...]:
    """The roles of a debate: a JSON or Python list of two or more names. Other agents have none."""
    text = e.text.strip()
    if name != "DebateAgent":
        return fail("roles_not_here", name=name, line=e.line) if text else ()
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        found = None
    roles = (
        tuple(str(role).strip() for role in found) if isinstance(found, list) else ()
    )
    if len(set(roles)) < max(2, len(roles)) or not all(
        isinstance(r, str) for r in found
    ):
        fail("roles_bad", text=repr(text[:60]), line=e.line)
    return roles


def _edges(edge: Element) -> list[tuple[str, str]]:
    """The edges (A, B) of <from>A</from><to>B</to>, any number of times."""
    tags, ids = [e.tag for e in edge.children], [e.text.strip() for e in edge.children]
    if not ids or tags != ["from", "to"] * (len(ids) // 2):
        fail("edge_unpaired", tags=", ".join(tags) or "-", line=edge.line)
    pairs = list(zip(ids[::2], ids[1::2], strict=True))
    if twice := next((pair for n, pair in enumerate(pairs) if pair in pairs[:n]), None):
        fail("edge_twice", edge=" -> ".join(twice), line=edge.line)
    return pairs


def _one_agent(
    elements: Sequence[Element], agents: Sequence[tuple[SubTask, int]]
) -> tuple[SubTask, ...] | str:
    """Low degree of MAS: a direct answer, or one agent and an answer that names its output."""
    tags = [e.tag for e in elements]
    if agents[1:] or "edge" in tags or not tags:
        fail("low_is_one_agent", count=len(agents))
    text = elements[-1].text.strip()
    if tags not in (["answer"], ["agent", "answer"]) or (
        agents and text != agents[0][0].id
    ):
        fail("answer_and_agents", line=elements[-1].line)
    if not text:
        fail("answer_empty", line=elements[0].line)
    return _checked_graph(agents, []) if agents else text


def _checked_graph(
    agents: Sequence[tuple[SubTask, int]], pairs: Sequence[tuple[str, str]]
) -> tuple[SubTask, ...]:
    """The agents, if the graph follows all rules. (A graph without a cycle has a start.)"""
    lines: dict[str, int] = {}
    for u, line in agents:
        if u.id in lines:
            fail("duplicate_id", id=u.id, line=line, first=lines[u.id])
        lines[u.id] = line
    for pair in pairs:
        if unknown := next((id for id in pair if id not in lines), None):
            known = ", ".join(lines)
            fail("unknown_id", id=repr(unknown), edge=" -> ".join(pair), known=known)
    if agents[1:] and not pairs:
        fail("edge_missing", count=len(agents))
    edges = set(pairs)
    needs = {id: tuple(a for a in lines if (a, id) in edges) for id in lines}
    if path := cycle(needs):
        fail("cycle", path=" -> ".join(path))
    for id, line in lines.items():
        if len(lines) > 1 and not any(id in pair for pair in pairs):
            fail("isolated", id=id, line=line)
    inserts = {(id, u.id) for u, _ in agents for id in INSERT.findall(u.instruction)}
    for source, target in sorted(
        inserts ^ edges
    ):  # an edge without its insert, or the reverse
        if source in needs[target]:
            fail(
                "edge_without_insert", source=source, target=target, line=lines[target]
            )
        problem = "insert_without_edge" if source in lines else "insert_unknown"
        fail(problem, source=source, target=target, line=lines[target])
    sinks = [id for id in lines if all(source != id for source, _ in pairs)]
    if len(sinks) > 1:
        fail("many_sinks", ids=", ".join(sinks))
    found = (replace(u, needs=needs[u.id]) for u, _ in agents)
    return tuple(sorted(found, key=lambda u: u.id == sinks[0]))
