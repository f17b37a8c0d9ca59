"""A reply of MAS-Orchestra (arXiv 2601.14652, App. H), read as forgivingly as the released code
reads it: from XML to sub-tasks, or to a ModelMistake that names the rule, the id or edge, and the
line of the reply.

1. Tags may be in any case. Only the format's own tags are markup: every other `<` and `&` is text,
   and text between the fields is ignored. Thinking is not needed.
2. The first of several fields counts. A field that is not closed ends at the next tag of the
   format. An agent needs an id and a name; without one of them, or without </agent>, it is left
   out. A missing input is the question.
3. An id may have any characters, and the first of two agents with the same id counts. A role may
   repeat, and roles of other agents than a debate are ignored.
4. Only the first <edge> counts, wherever it is. Its <from> and <to> are paired in their order; what
   is left over is ignored. Edges and ${id} need not match: a ${id} is replaced if that agent runs
   earlier.
5. Without an agent, <answer> or plain text is the answer; of JSON, its "answer". With a low degree
   of MAS, the first agent counts. An <answer> behind it must name its output: with another one, the
   reply says two things.

What the released code refuses is refused here too: unknown agents, ids in edges that no agent has,
cycles, several agents without edges, isolated agents, several sinks, and a debate without a list of
two roles.

    >>> (a,) = parse("<Agent><agent_id>my agent<agent_name>cotagent</agent_name></Agent>")
    >>> a.id, a.agent, a.instruction
    ('my_agent', 'cot', '')
    >>> parse("<think>2 + 2</think> The answer is 4.")
    'The answer is 4.'
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter
from itertools import chain
from typing import Any, NamedTuple, NoReturn
from xml.sax.saxutils import unescape

from orchestra.kernel.placing import cycle
from orchestra.kernel.prompts import after_thinking
from orchestra.kernel.vocabulary import ModelMistake, SubTask
from orchestra.methods.answers import KEY, answer_of, is_half
from orchestra.methods.replies import THINK_START

AGENT_BY_NAME = {  # SubTask.agent, by the agent_name of the format
    "CoTAgent": "cot",
    "SCAgent": "sc",
    "DebateAgent": "debate",
    "ReflexionAgent": "reflexion",
    "SearchAgent": "search-loop",
    "WebSearchAgent": "search-loop",
}
AGENT_BY_LOWER_NAME = {name.lower(): agent for name, agent in AGENT_BY_NAME.items()}
FIELDS = "agent_id agent_name agent_description required_arguments agent_output_id agent_input"
TAGS = "|".join(
    (*FIELDS.split(), "debate_roles", "agent", "edge", "answer", "from", "to")
)
TAG = re.compile(rf"<(/?)({TAGS})[ \t]*(/?)>", re.I)
# The end of the thinking: a tag of the graph follows, and no other thinking before it.
THOUGHT_END = re.compile(
    r"</think(?:ing)?>"
    r"(?=(?:[^<]|<(?!/?think|(?:agent|answer|edge)[\s/>]))*<(?:agent|answer|edge)\b)"
)
QUOTES = {"&quot;": '"', "&apos;": "'"}
INSERT = re.compile(r"\$\{([^{}]+)\}")
ID = re.compile(r"[A-Za-z0-9_]+")
NOT_OF_AN_ID = re.compile(r"[^A-Za-z0-9_]+")
Edge = tuple[str, str]  # A, B: B needs the output of A


class Agent(NamedTuple):
    """An agent of a reply, without its needs, and the line on which it starts."""

    subtask: SubTask
    line: int

    @property
    def id(self) -> str:
        return self.subtask.id


class Block(NamedTuple):
    """What is between <agent> and </agent>, and the line on which it starts."""

    text: str
    line: int


def fail(rule: str, **values: Any) -> NoReturn:
    raise ModelMistake(rule, "mas_orchestra/mistakes", **values)


def parse(reply: str, dom: str = "high") -> tuple[SubTask, ...] | str:
    """The agents of a reply, the sink last; or its direct answer. An empty instruction stands for
    the question. Raises ModelMistake.
    """
    text = without_thinking(TAG.sub(_plain_tag, reply))
    if dom == "low" and "<agent_name>" in text:
        agents, edges = _with_safe_ids([_only_agent(text)], [])
        return checked_graph(agents, edges)
    blocks = list(_blocks(text))
    if not blocks:
        return _direct_answer(text)
    agents = _first_of_each_id(blocks)
    if not agents:
        fail("field_missing", tag="agent_id", line=blocks[0].line)
    agents, edges = _with_safe_ids(agents, _edges(text))
    return _with_needs_of_inserts(checked_graph(agents, edges))


def _plain_tag(found: re.Match[str]) -> str:
    """A tag in lower case and without spaces; <tag/> as an empty element."""
    closing, tag, empty = found.groups()
    name = tag.lower()
    return f"<{name}></{name}>" if empty else f"<{closing}{name}>"


def without_thinking(reply: str) -> str:
    """The reply without its thinking, of which only the line breaks are kept. Some templates print
    only the closing tag: then all text before it is thinking.
    """
    thought = THOUGHT_END.search(reply)
    if thought is None:
        return reply
    start = max(reply.find("<think", 0, thought.start()), 0)
    breaks = reply.count("\n", start, thought.start())
    return reply[:start] + "\n" * breaks + reply[thought.end() :]


def _direct_answer(text: str) -> str:
    """The answer of a reply without agents."""
    answer = _field(text, "answer")
    if answer is None and TAG.search(text) is None:
        plain = after_thinking(text)
        is_thinking = re.search(THINK_START, plain)  # that did not end
        answer = "" if is_thinking or is_half(plain) else plain.strip()
        answer = answer_of(answer) if KEY.search(answer) else answer
    if not answer:
        fail("no_agent", start=repr(text.strip()[:80]))
    return answer


# ---- markup that may be broken -------------------------------------------------------------------


def _blocks(text: str) -> Iterator[Block]:
    """The agents that are closed."""
    end = 0
    line = 1
    while True:
        start = text.find("<agent>", end)
        closing = text.find("</agent>", start)
        if start < 0 or closing < 0:
            return
        line += text.count("\n", end, start)
        yield Block(text[start:closing], line)
        line += text.count("\n", start, closing)
        end = closing


def _field(text: str, tag: str) -> str | None:
    """The first element with this tag, up to the next tag if it is not closed; None without one."""
    opening = f"<{tag}>"
    start = text.find(opening)
    if start < 0:
        return None
    start += len(opening)
    end = text.find(f"</{tag}>", start)
    if end < 0:
        following = TAG.search(text, start)
        end = following.start() if following else len(text)
    return unescape(text[start:end], QUOTES).strip()


def _all(text: str, tag: str) -> list[str]:
    """All elements with this tag that are closed."""
    found: list[str] = []
    end = 0
    while True:
        start = text.find(f"<{tag}>", end)
        end = text.find(f"</{tag}>", start)
        if start < 0 or end < 0:
            return found
        found.append(text[start + len(tag) + 2 : end].strip())


def _edges(text: str) -> list[Edge]:
    block = _field(text, "edge") or ""
    pairs = zip(_all(block, "from"), _all(block, "to"), strict=False)
    return list(dict.fromkeys(pairs))


# ---- agents --------------------------------------------------------------------------------------


def _only_agent(text: str) -> Agent:
    """The first agent of a reply, where one is wanted."""
    id = _field(text, "agent_output_id") or _field(text, "agent_id") or "A"
    agent, _, behind = text.rpartition("</agent>")
    answer = _field(behind, "answer") if agent else None
    if answer and answer != id:
        fail("answer_and_agents", line=_line_of("<answer>", text, len(agent)))
    return _agent(Block(text, _line_of("<agent>", text)), id)


def _line_of(tag: str, text: str, start: int = 0) -> int:
    """The line of the first tag after `start`; of the first line without one."""
    return text.count("\n", 0, max(text.find(tag, start), 0)) + 1


def _first_of_each_id(blocks: Sequence[Block]) -> list[Agent]:
    """The agents that have an id and a name."""
    agents: dict[str, Agent] = {}
    for block in blocks:
        id = _field(block.text, "agent_id")
        if id and id not in agents and _field(block.text, "agent_name"):
            agents[id] = _agent(block, id)
    return list(agents.values())


def _agent(block: Block, id: str) -> Agent:
    name = _field(block.text, "agent_name") or ""
    kind = AGENT_BY_LOWER_NAME.get(name.lower())
    if kind is None:
        known = ", ".join(AGENT_BY_NAME)
        fail("unknown_agent", name=repr(name), known=known, line=block.line)
    instruction = _field(block.text, "agent_input") or ""
    if instruction == '""':
        instruction = ""
    roles = _roles(block) if kind == "debate" else ()
    return Agent(
        SubTask(id, instruction, tools=(), agent=kind, roles=roles), block.line
    )


def _roles(block: Block) -> tuple[str, ...]:
    """Two or more. A role that repeats gets a number: each debater has its own statements."""
    text = _field(block.text, "debate_roles") or ""
    roles = []
    seen: Counter[str] = Counter()
    for role in names_in(text):
        seen[role] += 1
        roles.append(f"{role} {seen[role]}" if seen[role] > 1 else role)
    if len(roles) < 2 or len(set(roles)) < len(roles):
        fail("roles_bad", text=repr(text[:60]), line=block.line)
    return tuple(roles)


def names_in(text: str) -> tuple[str, ...]:
    """A JSON or Python list of names; () for any other text."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return ()
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        return ()
    return tuple(name.strip() for name in found)


def _with_safe_ids(
    agents: Sequence[Agent], edges: Sequence[Edge]
) -> tuple[list[Agent], list[Edge]]:
    """The same graph with ids that have only letters, digits and _, also in each ${id}."""
    safe: dict[str, str] = {}
    taken = {agent.id for agent in agents if ID.fullmatch(agent.id)}
    for number, agent in enumerate(agents, 1):
        id = agent.id
        if not ID.fullmatch(id):
            id = NOT_OF_AN_ID.sub("_", id)
            while id in taken:
                id = f"{id}_{number}"
            taken.add(id)
        safe[agent.id] = id

    def insert(found: re.Match[str]) -> str:
        return f"${{{safe[found[1]]}}}" if found[1] in safe else found[0]

    renamed = []
    for agent in agents:
        instruction = INSERT.sub(insert, agent.subtask.instruction)
        u = replace(agent.subtask, id=safe[agent.id], instruction=instruction)
        renamed.append(Agent(u, agent.line))
    ends = [(safe.get(source, source), safe.get(to, to)) for source, to in edges]
    return renamed, ends


# ---- the graph -----------------------------------------------------------------------------------


def checked_graph(
    agents: Sequence[Agent], edges: Sequence[Edge]
) -> tuple[SubTask, ...]:
    """The agents, the sink last. Raises ModelMistake for a graph that breaks a rule."""
    lines = {agent.id: agent.line for agent in agents}
    for edge in edges:
        for id in edge:
            if id not in lines:
                known = ", ".join(lines)
                fail("unknown_id", id=repr(id), edge=" -> ".join(edge), known=known)
    if len(agents) > 1 and not edges:
        fail("edge_missing", count=len(agents))
    needs = _needs(edges, lines)
    path = cycle(needs)
    if path:
        fail("cycle", path=" -> ".join(path))
    connected = set(chain(*edges))
    for id, line in lines.items():
        if len(lines) > 1 and id not in connected:
            fail("isolated", id=id, line=line)
    needed = {source for source, _ in edges}
    sinks = [
        id for id in lines if id not in needed
    ]  # the answer of the system is that of the sink
    if len(sinks) > 1:
        fail("many_sinks", ids=", ".join(sinks))
    subtasks = [replace(agent.subtask, needs=needs[agent.id]) for agent in agents]
    return tuple(sorted(subtasks, key=lambda u: u.id == sinks[0]))


def _needs(
    edges: Sequence[Edge], lines: Mapping[str, int]
) -> dict[str, tuple[str, ...]]:
    """What each agent needs, in the order of the agents."""
    order = {id: number for number, id in enumerate(lines)}
    needs: dict[str, list[str]] = {id: [] for id in lines}
    for source, target in edges:
        needs[target].append(source)
    return {id: tuple(sorted(ids, key=order.__getitem__)) for id, ids in needs.items()}


def _with_needs_of_inserts(subtasks: Sequence[SubTask]) -> tuple[SubTask, ...]:
    """The agents, which also need those that run before them and whose ${id} they have."""
    order = TopologicalSorter({u.id: u.needs for u in subtasks}).static_order()
    position = {id: number for number, id in enumerate(order)}
    completed = []
    for u in subtasks:
        needs = dict.fromkeys(u.needs)
        for source in INSERT.findall(u.instruction):
            if source in position and position[source] < position[u.id]:
                needs[source] = None
        completed.append(replace(u, needs=tuple(needs)))
    return tuple(completed)
