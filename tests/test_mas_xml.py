"""The XML of MAS-Orchestra: every rule, where it is broken, and that no text does harm."""

from __future__ import annotations

import json
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.vocabulary import ModelMistake
from orchestrators.mas_xml import MAX_AGENTS, MAX_CHARS, MAX_ROLES, parse


def agent(id="A", name="CoTAgent", input="", extra="", roles=""):
    roles = f"<debate_roles>{roles}</debate_roles>" if roles else ""
    return (
        f"<agent>\n<agent_id>{id}</agent_id><agent_name>{name}</agent_name>{extra}\n"
        f"<required_arguments><agent_input>{input}</agent_input>{roles}</required_arguments></agent>\n"
    )


def edge(*ends):
    pairs = zip(ends[::2], ends[1::2], strict=True)
    return "<edge>" + "".join(f"<from>{a}</from><to>{b}</to>" for a, b in pairs) + "</edge>\n"


def low(body="", name="CoTAgent"):
    return (
        f"<agent><agent_name>{name}</agent_name><required_arguments><agent_input>{body}"
        "</agent_input></required_arguments><agent_output_id>out</agent_output_id></agent>"
    )


def write(edges, n):
    """A graph as the format has it, as an independent writer would put it."""
    into = {i: [a for a, b in edges if b == i] for i in range(n)}
    nodes = [agent(f"n{i}", input=" ".join(f"${{n{a}}}" for a in into[i])) for i in range(n)]
    return "".join(nodes) + "".join(edge(f"n{a}", f"n{b}") for a, b in edges)


AB = agent("A") + agent("B", input="use ${A}") + edge("A", "B")
ABC = agent("A") + agent("B") + agent("C", input="${A} and ${B}")

VALID = {
    "one agent": agent(),
    "a chain": AB,
    "two starts, pairs in one edge": ABC + edge("A", "C", "B", "C"),
    "several edge blocks": ABC + edge("A", "C") + edge("B", "C"),
    "thinking first": f"<thinking>a < b & <agent> c</thinking>\n{AB}",
    "two thinking blocks": f"<thinking>1</thinking>{agent()}<thinking>2</thinking>",
    "a reasoning model's think": f"<think>hm</think>{agent()}",
    "an xml fence": f"```xml\n{AB}```",
    "a plain fence behind thinking": f"<thinking>x</thinking>\n```\n{AB}\n```\n",
    "the edge before the agents": edge("A", "B") + agent("A") + agent("B", input="${A}"),
    "the same edge twice": AB + edge("A", "B"),
    "the same insertion twice": agent() + agent("B", input="${A} ${A}") + edge("A", "B"),
    "a web search agent": agent(name="WebSearchAgent"),
    "a debate": agent(name="DebateAgent", roles='["Poet", "Judge"]'),
    "roles beside the arguments": agent(
        name="DebateAgent", extra='<debate_roles>["a", "b"]</debate_roles>'
    ),
    "empty roles of another": agent(extra="<debate_roles> </debate_roles>"),
    "prose with < and &": agent(input="if a < b && c > d, <b>bold</b>, R&D"),
    "CDATA": agent(input="<![CDATA[a < b & <agent>]]>"),
    "entities": agent(input="a &lt; b &amp; c &quot;d&quot;"),
    "an unknown entity is text": agent(input="&nbsp; &#0; &evil;"),
    "]]> in text": agent(input="x[y[0]]> 1"),
    "LaTeX braces": agent(input="${}^2$ and $\\{1\\}$"),
    "CJK text": agent(input="東京の人口は？"),
    "a control character": agent(input="a\x0bb\x00c"),
    "spaces in tags": agent().replace("<agent_id>", "<agent_id >"),
    "an empty element": agent().replace("<agent_input></agent_input>", "<agent_input/>"),
    "a description": agent(extra="<agent_description>solves <it></agent_description>"),
    "thinking that is only closed": f"I think: <agent> first, draft {agent('Z')}\n</think>\n{AB}",
    "thinking that is only closed, long": f"hm\n</thinking>\n{agent()}",
    "the tag of thinking in an input": agent(input="Explain the <think> tag, </thinking> too"),
    "LaTeX with a brace and a name": AB.replace("use", "$${x}^2$ of"),
    "windows lines": AB.replace("\n", "\r\n"),
}

BROKEN = {
    "plain text": ("The answer is 42.", "outside of any field"),
    "nothing": ("", "holds no <agent>"),
    "an answer only in the thinking": ("<thinking><answer>4</answer></thinking>", "no <agent>"),
    "text between agents": (agent() + "and then", "'and then'"),
    "an unclosed agent": (agent().replace("</agent>", ""), "<agent> of line 1 is not closed"),
    "an unclosed id": (agent().replace("</agent_id>", ""), "<agent_id> of line 2 is not closed"),
    "an unclosed last input": (agent().split("</agent_input>")[0], "<agent_input> of line 3"),
    "an unclosed thinking": ("<thinking>hm\n" + agent(), "<thinking> of line 1 is not closed"),
    "an unclosed CDATA": (agent(input="<![CDATA[ x"), "<![CDATA[> of line 3"),
    "a closing tag too many": (agent() + "</agent>", "not well-formed"),
    "crossed tags": ("<agent><agent_id>A</agent></agent_id>", "<agent_id> of line 1"),
    "an agent in an agent": (f"<agent>{agent()}</agent>", "<agent> may not stand within <agent>"),
    "an edge in an agent": (agent(extra=edge("A", "A")), "<edge> may not stand within <agent>"),
    "a tag in a field": (agent(input="<answer>4</answer>"), "<answer> may not stand within"),
    "a field outside": ("<agent_id>A</agent_id>", "<agent_id> may not stand within <reply>"),
    "an unknown tag": (agent(extra="<colour>red</colour>"), "'<colour>red</colour>'"),
    "an attribute": (agent().replace("<agent>", '<agent id="A">'), "outside of any field"),
    "thinking in an agent": (agent(extra="<thinking>x</thinking>"), "'<thinking>x</thinking>'"),
    "two output ids": (
        agent(extra="<agent_output_id>a</agent_output_id>" * 2),
        "a second <agent_o",
    ),
    "roles in both places": (
        agent(
            name="DebateAgent", roles='["a", "b"]', extra='<debate_roles>["c", "d"]</debate_roles>'
        ),
        "a second <debate_roles>",
    ),
    "the same role but for a space": (
        agent(name="DebateAgent", roles='["a", "a "]'),
        "at least two",
    ),
    "too many roles": (
        agent(name="DebateAgent", roles=json.dumps([f"r{n}" for n in range(MAX_ROLES + 1)])),
        f"has {MAX_ROLES + 1} roles; {MAX_ROLES} are the most",
    ),
    "too many agents": (
        write([(i, i + 1) for i in range(MAX_AGENTS)], MAX_AGENTS + 1),
        f"{MAX_AGENTS + 1} agents; {MAX_AGENTS} are the most",
    ),
    "an insertion that may be text": (
        agent(input="${x}^2"),
        "If it is meant as text, write $${x}.",
    ),
    "two ids": (agent(extra="<agent_id>B</agent_id>"), "a second <agent_id>"),
    "no id": (agent().replace("<agent_id>A</agent_id>", ""), "no <agent_id>"),
    "no name": (agent().replace("<agent_name>CoTAgent</agent_name>", ""), "no <agent_name>"),
    "no input": (agent().replace("<agent_input></agent_input>", ""), "no <agent_input>"),
    "no arguments": ("<agent><agent_id>A</agent_id></agent>", "no <required_arguments>"),
    "an unknown agent": (agent(name="MagicAgent"), "no agent 'MagicAgent'"),
    "an empty id": (agent(id=" "), "'' is no agent_id"),
    "an id with a dash": (agent(id="a-b"), "'a-b' is no agent_id"),
    "a Unicode id": (agent(id="é"), "'é' is no agent_id"),
    "the same id twice": (agent() + agent(), "taken by the agent of line 1"),
    "a debate without roles": (agent(name="DebateAgent"), "has no <debate_roles>"),
    "one role": (agent(name="DebateAgent", roles='["a"]'), "at least two different"),
    "the same role twice": (agent(name="DebateAgent", roles='["a", "a"]'), "at least two"),
    "roles that are no JSON": (agent(name="DebateAgent", roles="a, b"), "must be a JSON list"),
    "roles that are numbers": (agent(name="DebateAgent", roles="[1, 2]"), "must be a JSON list"),
    "roles of a CoT": (agent(roles='["a", "b"]'), "only a DebateAgent"),
    "an empty edge": (agent() + "<edge></edge>", "holds: -."),
    "an edge without to": (agent() + "<edge><from>A</from></edge>", "holds: from."),
    "an edge the wrong way": (agent() + "<edge><to>A</to><from>A</from></edge>", "to, from"),
    "an edge to nobody": (AB + edge("A", "Z"), "A -> Z names 'Z'"),
    "a self-loop": (agent(input="${A}") + edge("A", "A"), "A -> A."),
    "a ring": (
        agent("A", input="${B}") + agent("B", input="${A}") + edge("A", "B", "B", "A"),
        "in a circle",
    ),
    "an isolated agent": (AB + agent("C"), "C of line 8 has no edge"),
    "two sinks": (
        agent() + agent("B", input="${A}") + agent("C", input="${A}") + edge("A", "B", "A", "C"),
        "feed no other: B, C",
    ),
    "an insertion without an edge": (
        ABC + edge("A", "C"),
        "B of line 4 has no edge",
    ),
    "an insertion beside an edge": (
        agent()
        + agent("B", input="${A}")
        + agent("C", input="${A}${B}")
        + edge("A", "B", "B", "C"),
        "no edge from A to C",
    ),
    "an insertion of nobody": (agent(input="${Z}"), "inserts ${Z}, and no agent has that id"),
    "an edge without an insertion": (agent() + agent("B") + edge("A", "B"), "not insert ${A}"),
    "a direct answer": ("<answer>4</answer>", "a direct <answer> is not wanted"),
    "a DOCTYPE": ('<!DOCTYPE x [<!ENTITY a "b">]>' + agent(), "outside of any field"),
    "too long": ("x" * (MAX_CHARS + 1), "are the most"),
}


@pytest.mark.parametrize("text", VALID.values(), ids=VALID)
def test_a_graph_of_the_format_is_read(text):
    assert parse(text).agents[0].id == "A"


@pytest.mark.parametrize(("text", "told"), BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_is_named(text, told):
    with pytest.raises(ModelMistake) as mistake:
        parse(text)
    assert told in str(mistake.value)


@pytest.mark.parametrize("tag", ["agent", "agent_id", "agent_name", "agent_description",
    "required_arguments", "agent_input", "edge", "from", "to"])  # fmt: skip
@pytest.mark.parametrize("which", [0, 1])
def test_every_unclosed_tag_is_said_to_be_unclosed(tag, which):
    described = "<agent_description>d</agent_description>"
    inputs = agent("A", extra=described), agent("B", input="${A}", extra=described)
    text = "".join(inputs) + edge("A", "B") + edge("A", "B")
    start, end = [found.span() for found in re.finditer(f"</{tag}>", text)][which]
    text = text[:start] + text[end:]
    with pytest.raises(ModelMistake, match=f"The tag <{tag}> of line .* is not closed"):
        parse(text)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("before <thinking>kept</thinking> after", "before <thinking>kept</thinking> after"),
        ("<![CDATA[a <think>b</think> </agent> <agent>]]>", "a <think>b</think> </agent> <agent>"),
        ("$${x}^2 and $$${y}", "${x}^2 and $${y}"),
    ],
)
def test_an_input_is_read_as_it_was_written(written, read):
    assert parse(agent(input=written)).agents[0].input == read


def test_a_dollar_before_an_insertion_stays_one():
    graph = parse(agent() + agent("B", input="it costs $${A}") + edge("A", "B"))
    assert graph.agents[1].input == "it costs $${A}"


def test_what_stands_in_the_fields_is_kept():
    a = parse(agent("x_1", "DebateAgent", "if a < b &amp; <i>", roles='["P", "Q"]')).agents[0]
    assert (a.id, a.name, a.input, a.roles) == ("x_1", "DebateAgent", "if a < b & <i>", ("P", "Q"))


def test_lines_are_those_of_the_reply():
    text = f"<thinking>\n\n</thinking>\n```xml\n{agent()}{agent('B', 'Nobody')}```"
    with pytest.raises(ModelMistake, match="Line 8: there is no agent 'Nobody'"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f'<?xml version="1.0"?>\n{agent()}', 1),
        (f"Here it is:\n\n```xml\n{agent()}```", 1),
        (f"{agent()}\n\nand\nthen", 6),
        (f"{agent()}{'x' * 20_000}\n{agent('B')}", 4),
    ],
)
def test_text_outside_is_found_in_its_line(text, line):
    with pytest.raises(ModelMistake, match=f"Line {line}: the text"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("<answer></answer>", "is empty"),
        ("<answer>4</answer>" + low(), "not both"),
        ("<answer>4</answer><answer>5</answer>", "not both"),
        (low() + low(), "you gave 2 agents"),
        (low().replace("agent_output_id", "agent_description"), "no <agent_output_id>"),
        ("42", "outside of any field"),
    ],
)
def test_a_low_degree_is_one_answer_or_one_agent(text, told):
    with pytest.raises(ModelMistake) as mistake:
        parse(text, "low")
    assert told in str(mistake.value)


def test_a_low_degree_answers_directly_or_by_one_agent():
    assert parse("<thinking>x</thinking><answer> 42 </answer>", "low").answer == "42"
    assert parse(low("go"), "low").agents[0].input == "go"


@given(st.integers(1, 12), st.sets(st.tuples(st.integers(0, 11), st.integers(0, 11))))
@settings(deadline=None)
def test_a_random_graph_comes_back_as_it_was_written(n, pairs):
    edges = sorted((a, b) for a, b in pairs if a < b < n)
    sinks = [i for i in range(n - 1) if all(a != i for a, _ in edges)]
    edges += [(i, n - 1) for i in sinks]  # one sink, nobody alone
    graph = parse(write(edges, n))
    assert graph.edges == {(f"n{a}", f"n{b}") for a, b in edges}
    assert [a.id for a in graph.agents] == [f"n{i}" for i in range(n)]


MARKUP = "<agent> </agent> <edge> <from>A</from> <![CDATA[ ]]> & <thinking> </thinking> ```xml ${A}"
PIECES = st.sampled_from([*MARKUP.split(), "\n", AB, agent(), "<!ENTITY a 'b'>", "\ud800"])


@given(st.one_of(st.text(), st.lists(PIECES).map("".join)), st.sampled_from(["low", "high"]))
@settings(deadline=None, max_examples=300)
def test_no_text_does_more_than_break_a_rule(text, dom):
    try:
        parse(text, dom)
    except ModelMistake as mistake:
        assert str(mistake)


def test_two_hundred_agents_are_read():
    graph = parse(write([(i, i + 1) for i in range(199)], 200))
    assert len(graph.agents) == 200 and graph.needs("n199") == ("n198",)


@pytest.mark.parametrize("piece", ["<agent>", "<thinking>", "&", "<", "x", "<![CDATA[", "]]>",
    "<agent><![CDATA[", "<![CDATA[<agent>]]>", "</think>", "<agent_id>A</agent_id>",
    "<edge></edge>", "${A}", "\n"])  # fmt: skip
@pytest.mark.parametrize("size", [MAX_CHARS, 1_000_000])
@pytest.mark.parametrize("start", ["", "<agent>"])
def test_much_garbage_is_refused_within_a_second(piece, size, start):
    started = time.perf_counter()
    with pytest.raises(ModelMistake):
        parse(start + piece * ((size - len(start)) // len(piece)))
    assert time.perf_counter() - started < 1.0


def test_an_entity_bomb_is_only_text():
    bomb = '<!DOCTYPE r [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]>' + agent(input="&b;&b;")
    started = time.perf_counter()
    with pytest.raises(ModelMistake, match="outside of any field"):
        parse(bomb)
    assert parse(agent(input="&b;&b;")).agents[0].input == "&b;&b;"
    assert time.perf_counter() - started < 1.0
