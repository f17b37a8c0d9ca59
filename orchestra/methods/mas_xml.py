"""The rules of MAS-Orchestra's format (arXiv 2601.14652, App. H): from a reply to sub-tasks, or to
a ModelMistake that names the first broken rule, the id or edge, and the line of the reply.

    >>> agent = '''
    ... <agent>
    ...   <agent_id>%s</agent_id> <agent_name>CoTAgent</agent_name>
    ...   <agent_description>%s</agent_description>
    ...   <required_arguments><agent_input>%s</agent_input></required_arguments>
    ... </agent>'''
    >>> first = agent % ("A", "adds", "2 + 2?")
    >>> second = agent % ("B", "checks", "Is this right? ${A}")
    >>> edge = "<edge><from>A</from><to>B</to></edge>"
    >>> a, b = parse("<think>Two agents.</think>" + first + second + edge)
    >>> a.id, b.id, b.needs, b.instruction
    ('A', 'B', ('A',), 'Is this right? ${A}')

A low degree of MAS allows a direct answer, or one agent:

    >>> parse("<answer>4</answer>", "low")
    '4'
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from orchestra.methods.mas_markup import Element, as_tree, fail, without_thinking
from orchestra.schedule import cycle
from orchestra.vocabulary import SubTask

AGENT_BY_NAME = {  # SubTask.agent, by the agent_name of the format
    "CoTAgent": "cot",
    "SCAgent": "sc",
    "DebateAgent": "debate",
    "ReflexionAgent": "reflexion",
    "SearchAgent": "search-loop",
    "WebSearchAgent": "search-loop",
}
INSERT = re.compile(r"\$\{([^{}]+)\}")
ID = re.compile(r"[A-Za-z0-9_]+")
Edge = tuple[str, str]  # A, B: B needs the output of A


class Agent(NamedTuple):
    """An agent of a reply, without its needs, and the line on which it starts."""

    subtask: SubTask
    line: int

    @property
    def id(self) -> str:
        return self.subtask.id


def parse(reply: str, dom: str = "high") -> tuple[SubTask, ...] | str:
    """The agents of a reply, the sink last; or its direct answer. An empty instruction stands for
    the question. Raises ModelMistake.
    """
    rest = without_thinking(reply)
    root = as_tree(rest)
    agents = [_agent(e, dom) for e in root.children if e.tag == "agent"]
    if dom == "low":
        return _low_degree(root.children, agents)
    for e in root.children:
        if e.tag == "answer":
            fail("answer_in_high", line=e.line)
    if not agents:
        fail("no_agent", start=repr(reply.strip()[:80]))
    if rest is reply:
        begun = "<think" in reply.partition("<agent")[0]
        fail("thinking_unclosed" if begun else "no_thinking")
    return checked_graph(agents, _edges(root.children, agents))


# ---- an agent ------------------------------------------------------------------------------------


def _agent(e: Element, dom: str) -> Agent:
    arguments = e.one("required_arguments")
    named = e.one("agent_name")
    identity = _identity(e, dom)
    e.one("agent_description")
    name = named.text.strip()
    if name not in AGENT_BY_NAME:
        known = ", ".join(AGENT_BY_NAME)
        fail("unknown_agent", name=repr(name), known=known, line=named.line)
    id = identity.text.strip()
    if not ID.fullmatch(id):
        fail("bad_id", id=repr(id), line=identity.line)
    instruction = arguments.one("agent_input").text.strip()
    if instruction == '""':
        instruction = ""
    debates = name == "DebateAgent"
    roles = _roles(arguments.one("debate_roles", needed=debates), name)
    subtask = SubTask(
        id=id,
        instruction=instruction,
        tools=(),
        agent=AGENT_BY_NAME[name],
        roles=roles,
    )
    return Agent(subtask, e.line)


def _identity(e: Element, dom: str) -> Element:
    """The element with the id of an agent. Its tag depends on the degree of MAS."""
    is_high = dom == "high"
    wanted = "agent_id" if is_high else "agent_output_id"
    other = "agent_output_id" if is_high else "agent_id"
    for child in e.children:
        if child.tag == other:
            fail("id_tag", tag=other, wanted=wanted, line=child.line)
    return e.one(wanted)


def _roles(e: Element, name: str) -> tuple[str, ...]:
    """The roles of a debate, two or more. Other agents have none."""
    text = e.text.strip()
    if name != "DebateAgent":
        if text:
            fail("roles_not_here", name=name, line=e.line)
        return ()
    roles = names_in(text)
    if len(roles) < 2 or len(set(roles)) < len(roles):
        fail("roles_bad", text=repr(text[:60]), line=e.line)
    return roles


def names_in(text: str) -> tuple[str, ...]:
    """A JSON or Python list of names; () for any other text."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return ()
    if not isinstance(found, list):
        return ()
    if not all(isinstance(name, str) for name in found):
        return ()
    return tuple(name.strip() for name in found)


# ---- a low degree of MAS -------------------------------------------------------------------------


def _low_degree(
    elements: Sequence[Element], agents: Sequence[Agent]
) -> tuple[SubTask, ...] | str:
    """A direct answer, or one agent and an answer that names its output."""
    tags = [e.tag for e in elements]
    if len(agents) > 1 or "edge" in tags or not tags:
        fail("low_is_one_agent", count=len(agents))
    last = elements[-1]
    answer = last.text.strip()
    is_direct = tags == ["answer"]
    names_output = tags == ["agent", "answer"] and answer == agents[0].id
    if not is_direct and not names_output:
        fail("answer_and_agents", line=last.line)
    if not answer:
        fail("answer_empty", line=last.line)
    return answer if is_direct else checked_graph(agents, edges=[])


# ---- the edges -----------------------------------------------------------------------------------


def _edges(elements: Sequence[Element], agents: Sequence[Agent]) -> list[Edge]:
    """The edges of the only <edge> block, which comes last. That of one agent may be empty."""
    blocks = [e for e in elements if e.tag == "edge"]
    if not blocks:
        return []
    if len(blocks) > 1:
        fail("edge_blocks", line=blocks[1].line)
    (block,) = blocks
    last = elements[-1]
    if last is not block:
        fail("agent_after_edge", line=last.line)
    if len(agents) == 1 and not block.children:
        return []
    return _pairs(block)


def _pairs(block: Element) -> list[Edge]:
    """The edges (A, B) of <from>A</from><to>B</to>, any number of times."""
    tags = [e.tag for e in block.children]
    alternating = ["from", "to"] * (len(tags) // 2)
    if not tags or tags != alternating:
        fail("edge_unpaired", tags=", ".join(tags) or "-", line=block.line)
    ids = [e.text.strip() for e in block.children]
    sources = ids[0::2]
    targets = ids[1::2]
    edges: dict[Edge, None] = {}
    for edge in zip(sources, targets, strict=True):
        if edge in edges:
            fail("edge_twice", edge=" -> ".join(edge), line=block.line)
        edges[edge] = None
    return list(edges)


# ---- the graph -----------------------------------------------------------------------------------


def checked_graph(
    agents: Sequence[Agent], edges: Sequence[Edge], lenient: bool = False
) -> tuple[SubTask, ...]:
    """The agents, the sink last, if the graph follows all rules. (One without a cycle has a start.)
    `lenient`: a ${id} without an edge, or an edge without a ${id}, is no mistake.
    """
    lines = _lines_by_id(agents)
    _check_ids(edges, lines)
    if len(agents) > 1 and not edges:
        fail("edge_missing", count=len(agents))
    needs = _needs(edges, lines)
    path = cycle(needs)
    if path:
        fail("cycle", path=" -> ".join(path))
    _check_isolated(edges, lines)
    if not lenient:
        _check_inserts(agents, edges, lines)
    sink = _sink(edges, lines)
    subtasks = [replace(agent.subtask, needs=needs[agent.id]) for agent in agents]
    return tuple(sorted(subtasks, key=lambda u: u.id == sink))


def _lines_by_id(agents: Sequence[Agent]) -> dict[str, int]:
    lines: dict[str, int] = {}
    for agent in agents:
        id = agent.id
        if id in lines:
            fail("duplicate_id", id=id, line=agent.line, first=lines[id])
        lines[id] = agent.line
    return lines


def _check_ids(edges: Sequence[Edge], lines: Mapping[str, int]) -> None:
    known = ", ".join(lines)
    for edge in edges:
        for id in edge:
            if id not in lines:
                fail("unknown_id", id=repr(id), edge=" -> ".join(edge), known=known)


def _needs(
    edges: Sequence[Edge], lines: Mapping[str, int]
) -> dict[str, tuple[str, ...]]:
    """What each agent needs, in the order of the agents."""
    order = {id: number for number, id in enumerate(lines)}
    needs: dict[str, list[str]] = {id: [] for id in lines}
    for source, target in edges:
        needs[target].append(source)
    return {id: tuple(sorted(ids, key=order.__getitem__)) for id, ids in needs.items()}


def _check_isolated(edges: Sequence[Edge], lines: Mapping[str, int]) -> None:
    connected = set(chain(*edges))
    for id, line in lines.items():
        if len(lines) > 1 and id not in connected:
            fail("isolated", id=id, line=line)


def _check_inserts(
    agents: Sequence[Agent], edges: Sequence[Edge], lines: Mapping[str, int]
) -> None:
    """Each edge (A, B) has a ${A} in the input of B, and each ${A} has its edge."""
    inserts = set()
    for agent in agents:
        for source in INSERT.findall(agent.subtask.instruction):
            inserts.add((source, agent.id))
    unmatched = inserts ^ set(edges)
    if not unmatched:
        return
    source, target = min(unmatched)
    about = {"source": source, "target": target, "line": lines[target]}
    if (source, target) in edges:
        fail("edge_without_insert", **about)
    if source in lines:
        fail("insert_without_edge", **about)
    fail("insert_unknown", **about)


def _sink(edges: Sequence[Edge], lines: Mapping[str, int]) -> str:
    """The agent that no other needs. Its answer is the answer of the system."""
    needed = {source for source, _ in edges}
    sinks = [id for id in lines if id not in needed]
    if len(sinks) > 1:
        fail("many_sinks", ids=", ".join(sinks))
    return sinks[0]
