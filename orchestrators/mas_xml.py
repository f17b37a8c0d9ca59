"""The XML of MAS-Orchestra (arXiv 2601.14652, App. H): a reply as a checked graph, or a
ModelMistake that names the one rule it breaks, the id or edge, and the line of the reply.

    >>> parse("<agent><agent_id>A</agent_id><agent_name>CoTAgent</agent_name>"
    ...       "<required_arguments><agent_input></agent_input></required_arguments></agent>").agents
    (MasAgent(id='A', name='CoTAgent', input='', roles=(), line=1),)
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from orchestra.schedule import cycle
from orchestrators.mas_markup import Element, as_tree, fail

MAX_CHARS = 200_000  # a longer reply is refused unread
MAX_AGENTS, MAX_ROLES = 256, 16
AGENTS = ("CoTAgent", "SCAgent", "DebateAgent", "ReflexionAgent", "SearchAgent")
SYNONYMS = {"WebSearchAgent": "SearchAgent"}
INSERT = re.compile(r"(\$?)\$\{([^{}]+)\}")  # $${x} is the text ${x} where no agent has the id x
ID = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True)
class MasAgent:
    """One node: `input` is what it is told, "" for the original question."""

    id: str
    name: str
    input: str
    roles: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class MasGraph:
    """A whole system: its agents with the one sink last, and the edges; or a direct answer."""

    agents: tuple[MasAgent, ...] = ()
    edges: frozenset[tuple[str, str]] = frozenset()
    answer: str = ""

    def needs(self, id: str) -> tuple[str, ...]:
        return tuple(a.id for a in self.agents if (a.id, id) in self.edges)


def parse(reply: str, dom: str = "high") -> MasGraph:
    """The graph of a reply. Raises ModelMistake."""
    if len(reply) > MAX_CHARS:
        fail("too_long", chars=len(reply), limit=MAX_CHARS)
    root = as_tree(reply)
    answers = [e for e in root.children if e.tag == "answer"]
    agents = [_agent(e, dom) for e in root.children if e.tag == "agent"]
    edges = [pair for e in root.children if e.tag == "edge" for pair in _pairs(e)]
    if answers:
        return _direct(answers, agents, dom)
    if not agents:
        fail("no_agent", start=repr(reply.strip()[:80]))
    if len(agents) > MAX_AGENTS:
        fail("too_many_agents", count=len(agents), limit=MAX_AGENTS)
    if dom == "low" and (len(agents) > 1 or edges):
        fail("low_is_one_agent", count=len(agents))
    return _checked(agents, edges)


def _agent(element: Element, dom: str) -> MasAgent:
    line = element.line
    arguments = element.one("required_arguments")
    text = arguments.one("agent_input") if arguments else None
    if arguments is None or text is None:
        missing = "agent_input" if arguments else "required_arguments"
        fail("field_missing", tag=missing, line=line)
    named, wanted = element.one("agent_name"), "agent_id" if dom == "high" else "agent_output_id"
    identity = element.one("agent_id") or element.one(wanted)
    for optional in ("agent_description", "agent_output_id"):
        element.one(optional)
    if named is None or identity is None:
        fail("field_missing", tag=wanted if named else "agent_name", line=line)
    name, id = named.text.strip(), identity.text.strip()
    name = SYNONYMS.get(name, name)
    if name not in AGENTS:
        fail("unknown_agent", name=repr(name), known=", ".join(AGENTS), line=line)
    if dom == "high" and not ID.fullmatch(id):
        fail("bad_id", id=repr(id), line=identity.line)
    roles, beside = arguments.one("debate_roles"), element.one("debate_roles")
    if roles and beside:
        fail("field_twice", tag="debate_roles", parent="agent", line=max(roles.line, beside.line))
    roles = roles or beside
    return MasAgent(id or "A", name, text.text.strip(), _roles(id, name, roles, line), line)


def _roles(id: str, name: str, element: Element | None, line: int) -> tuple[str, ...]:
    """The roles of a debate: a JSON list of at least two different texts. No other has any."""
    if element is None or not element.text.strip():
        return fail("roles_missing", id=id, line=line) if name == "DebateAgent" else ()
    if name != "DebateAgent":
        fail("roles_not_here", id=id, name=name, line=element.line)
    try:
        roles = json.loads(element.text)
    except (ValueError, RecursionError):
        roles = None
    texts = isinstance(roles, list) and all(isinstance(r, str) and r.strip() for r in roles)
    names = [r.strip() for r in roles] if texts else []
    if len(set(names)) < max(2, len(names)):
        fail("roles_bad", id=id, text=repr(element.text.strip()[:60]), line=element.line)
    if len(names) > MAX_ROLES:
        fail("too_many_roles", id=id, count=len(names), limit=MAX_ROLES, line=element.line)
    return tuple(names)


def _pairs(edge: Element) -> list[tuple[str, str, int]]:
    """<from>A</from><to>B</to>, any number of times."""
    ends = [(e.tag, e.text.strip(), e.line) for e in edge.children]
    tags = [tag for tag, _, _ in ends]
    if not ends or tags != ["from", "to"] * (len(ends) // 2):
        fail("edge_unpaired", tags=", ".join(tags) or "-", line=edge.line)
    return [(a[1], b[1], a[2]) for a, b in zip(ends[::2], ends[1::2], strict=True)]


def _direct(answers: Sequence[Element], agents: Sequence[MasAgent], dom: str) -> MasGraph:
    text, line = answers[0].text.strip(), answers[0].line
    if dom != "low":
        fail("answer_in_high", line=line)
    if agents or len(answers) > 1:
        fail("answer_and_agents", line=line)
    if not text:
        fail("answer_empty", line=line)
    return MasGraph(answer=text)


def _checked(agents: Sequence[MasAgent], rows: Sequence[tuple[str, str, int]]) -> MasGraph:
    """The graph if it keeps every rule; a start there is in every graph without a cycle."""
    by_id: dict[str, MasAgent] = {}
    for a in agents:
        if a.id in by_id:
            fail("duplicate_id", id=a.id, line=a.line, first=by_id[a.id].line)
        by_id[a.id] = a
    for source, target, line in rows:
        for id in (source, target):
            if id not in by_id:
                edge, known = f"{source} -> {target}", ", ".join(by_id)
                fail("unknown_id", id=repr(id), edge=edge, known=known, line=line)
    edges = {(source, target) for source, target, _ in rows}
    needs = {id: [source for source in by_id if (source, id) in edges] for id in by_id}
    if path := cycle(needs):
        fail("cycle", path=" -> ".join(reversed(path)))
    for a in agents:
        if len(agents) > 1 and not any(a.id in edge for edge in edges):
            fail("isolated", id=a.id, line=a.line)
    _check_inserts(by_id, edges)
    sinks = [id for id in by_id if all(source != id for source, _ in edges)]
    if len(sinks) > 1:
        fail("many_sinks", ids=", ".join(sinks))
    written = (replace(a, input=_with_text(a.input, by_id)) for a in agents)
    ordered = sorted(written, key=lambda a: a.id == sinks[0])
    return MasGraph(tuple(ordered), frozenset(edges))


def _with_text(text: str, ids: Collection[str]) -> str:
    """The input with what is written to be text as that text."""
    return INSERT.sub(lambda m: m[0][1:] if m[1] and m[2] not in ids else m[0], text)


def _check_inserts(agents: dict[str, MasAgent], edges: set[tuple[str, str]]) -> None:
    """An edge exactly where a ${} is, both ways."""
    inserts = {
        (id, a.id)
        for a in agents.values()
        for written, id in INSERT.findall(a.input)
        if id in agents or not written
    }
    for source, target in sorted(inserts - edges):
        rule = "insert_without_edge" if source in agents else "insert_unknown"
        fail(rule, source=source, target=target, line=agents[target].line)
    for source, target in sorted(edges - inserts):
        fail("edge_without_insert", source=source, target=target, line=agents[target].line)
