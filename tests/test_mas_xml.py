"""The XML of MAS-Orchestra: what the released code reads and what it refuses, and arbitrary text."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.kernel.prompts import explained
from orchestra.kernel.vocabulary import ModelMistake
from orchestra.methods.mas_xml import parse
from tests.scripted import SAID, agent, edge, thought


def debate(roles, extra=""):
    return agent(name="DebateAgent", roles=roles, extra=extra)


def low(answer="<answer>out</answer>"):
    rest = "<required_arguments><agent_input></agent_input></required_arguments>"
    rest += "<agent_output_id>out</agent_output_id>"
    return f"<agent><agent_name>CoTAgent</agent_name>{SAID}{rest}</agent>{answer}"


TWO = agent("A") + agent("B", input="use ${A}")
AB = TWO + edge("A", "B")
ABC = agent("A") + agent("B") + agent("C", input="${A} and ${B}")
ROLES = '["Poet", "Judge"]'
INPUT = "<agent_input></agent_input>"

# (id, needs) of each agent
ONE, CHAIN = [("A", ())], [("A", ()), ("B", ("A",))]
ACCEPTED = {
    "no thinking": (AB, CHAIN),
    "thinking that is not closed": ("<think>hm\n" + AB, CHAIN),
    "tags in upper case": (thought(re.sub(r"</?\w+>", lambda t: t[0].upper(), AB)), CHAIN),
    "text between fields": (thought(agent(extra="and then"), agent("B", input="${A}"), edge("A", "B")), CHAIN),
    "an unknown field": (thought(agent(extra="<colour>red</colour>")), ONE),
    "a second id": (thought(agent(extra="<agent_id>B</agent_id>")), ONE),
    "no description": (thought(agent().replace(SAID, "")), ONE),
    "no input": (thought(agent().replace(INPUT, "")), ONE),
    "no arguments": (thought("<agent><agent_id>A</agent_id><agent_name>CoTAgent</agent_name></agent>"), ONE),
    "an agent without an id": (thought(AB, agent("C").replace("<agent_id>C</agent_id>", "")), CHAIN),
    "a name in lower case": (thought(agent(name="cotagent")), ONE),
    "an id with a hyphen": (thought(AB.replace(">A<", ">a-1<").replace("${A}", "${a-1}")), [("a_1", ()), ("B", ("a_1",))]),
    "an id twice": (thought(agent(), AB), CHAIN),
    "roles of another agent": (thought(agent(roles=ROLES)), ONE),
    "an edge twice": (thought(TWO, edge("A", "B", "A", "B")), CHAIN),
    "a second edge block": (thought(AB, edge("B", "A")), CHAIN),
    "an agent after the edges": (thought(agent(), edge("A", "B"), agent("B", input="${A}")), CHAIN),
    "to before from": (thought(TWO, "<edge><to>B</to><from>A</from></edge>"), CHAIN),
    "a from that is left over": (thought(TWO, "<edge><from>A</from><to>B</to><from>A</from></edge>"), CHAIN),
    "an edge without its ${id}": (thought(agent(), agent("B"), edge("A", "B")), CHAIN),
    "a ${id} without its edge": (thought(TWO, agent("C", input="${A}${B}"), edge("A", "B", "B", "C")), [*CHAIN, ("C", ("B", "A"))]),
    "a ${id} of no agent": (thought(agent(input="${x}^2")), ONE),
    "an id that is not closed": (thought(AB.replace("A</agent_id>", "A")), CHAIN),
    "an agent that is not closed": (thought(AB, "<agent><agent_id>C</agent_id>"), CHAIN),
    "an answer next to agents": (thought(AB, "<answer>4</answer>"), CHAIN),
}  # fmt: skip
BROKEN = {  # rule: the line it is broken in, and the reply
    "unknown_id": (None, thought(TWO, edge("A", "B", "A", "Z"))),
    "cycle": (None, thought(TWO, edge("A", "B", "B", "A"))),
    "many_sinks": (None, thought(TWO, agent("C", input="${A}"), edge("A", "B", "A", "C"))),
    "edge_missing": (None, thought(TWO)),
    "isolated": (7, thought(TWO, agent("C"), edge("A", "B"))),
    "unknown_agent": (4, thought(agent(), agent("B", name="Nobody"))),
    "roles_bad": (1, thought(debate('["Poet"]'))),
    "field_missing": (1, "<agent><agent_id>A</agent_id></agent>"),
    "no_agent": (None, ""),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_the_released_parser_accepts_is_read(name):
    reply, found = ACCEPTED[name]
    assert [(u.id, u.needs) for u in parse(reply)] == found


@pytest.mark.parametrize("rule", BROKEN)
def test_what_the_released_parser_refuses_is_a_mistake_with_its_line(rule):
    line, reply = BROKEN[rule]
    with pytest.raises(ModelMistake) as caught:
        parse(reply)
    assert (caught.value.rule, caught.value.values.get("line")) == (rule, line)
    assert explained(caught.value)


@pytest.mark.parametrize("text", [
    *map(thought, [
        agent(), AB, AB.replace("\n", "\r\n"), ABC + edge("A", "C", "B", "C"),
        agent() + agent("B", input="${A} ${A}") + edge("A", "B"), AB + "And so it is.",
        "Here it is:\n" + AB, "\nSince 3 < 5:\n" + AB, f"\n<agents>{agent()}</agents>", f"```xml\n{AB}```", agent(name="WebSearchAgent"),
        debate('["Poet", "Judge"]'), debate("['Poet', \"Judge's\"]"),
        agent().replace("<agent_id>", "<agent_id >"), agent(input="Put it into <answer>x</answer>."),
        agent().replace("<agent_input></agent_input>", "<agent_input/>"), agent() + "<edge>\n</edge>", agent(input='""'),
    ]),
    f"<thinking>a < b & <agent> c</thinking>\n{AB}", f"<think>1</think><thinking>2</thinking>{agent()}",
    f"hm\n</thinking>\n{agent()}", f"Draft: <agent> {agent('Z')}\n</think>\n{AB}",
])  # fmt: skip
def test_a_graph_of_the_format_is_read(text):
    assert parse(text)[0].id == "A"


@pytest.mark.parametrize(
    "reply",
    ["The answer is 4.", "<thinking>2+2</thinking>The answer is 4.", "<answer>The answer is 4."],
)
def test_a_reply_without_agents_is_a_direct_answer(reply):
    assert parse(reply) == "The answer is 4."


@pytest.mark.parametrize("reply", ["<think>still thinking", "<think>a</think> ", "<edge></edge>"])
def test_thinking_and_empty_markup_are_no_answer(reply):
    with pytest.raises(ModelMistake, match="no_agent"):
        parse(reply)


def test_a_role_that_repeats_gets_a_number():
    (u,) = parse(debate('["Poet", "Poet"]'))
    assert u.roles == ("Poet", "Poet 2")


def test_ids_that_differ_in_their_punctuation_alone_stay_apart():
    reply = agent("a-b") + agent("a b", input="${a-b}") + edge("a-b", "a b")
    first, second = parse(reply)
    assert (second.needs, second.instruction) == ((first.id,), f"${{{first.id}}}")
    assert first.id != second.id


# ---- a low degree --------------------------------------------------------------------------------


@pytest.mark.parametrize(("reply", "id"), [
    (low(), "out"), (low(""), "out"), (agent(), "A"), (agent() + agent("B"), "A"), (agent().replace("agent_id", "agent_output_id"), "A"),
    (low().replace("out<", "my-out<"), "my_out"), (f"<answer>out</answer>{low('')}", "out"),
])  # fmt: skip
def test_a_low_degree_takes_the_first_agent(reply, id):
    (u,) = parse(reply, "low")
    assert (u.id, u.agent) == (id, "cot")


def test_an_answer_behind_the_agent_must_name_its_output():
    with pytest.raises(ModelMistake) as caught:
        parse(thought(low("\n<answer>4</answer>")), "low")
    assert (caught.value.rule, caught.value.values["line"]) == ("answer_and_agents", 2)


# ---- texts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("written, read", [
    *[(text, text) for text in (
        "before <thinking>kept</thinking> after", "an <answer>x</answer> tag", "Explain the <think> tag, </thinking> too",
        "if a < b && c > d, <b>bold</b>, R&D", "&nbsp; &#0; &evil;", "x[y[0]]> 1", "${}^2$ and $\\{1\\}$",
        "東京の人口は？", "a\x0bb\x00c", "it costs $${A}",
    )],
    ("a &lt; b &amp; c &quot;d&quot; &amp;lt; <i>", 'a < b & c "d" &lt; <i>'),
])  # fmt: skip
def test_an_input_is_read_as_it_was_written(written, read):
    _, b = parse(thought(agent(), agent("B", input=f"${{A}} {written}"), edge("A", "B")))
    assert b.instruction == f"${{A}} {read}"


MARKUP = "<agent> </agent> <edge> <from>A</from> <![CDATA[ ]]> & <thinking> </thinking> ```xml ${A}"
PIECES = st.sampled_from([*MARKUP.split(), "\n", AB, agent(), "<!ENTITY a 'b'>", "\ud800"])


@given(st.one_of(st.text(), st.lists(PIECES).map("".join)), st.sampled_from(["low", "high"]))
@settings(max_examples=100)
def test_any_text_is_a_graph_or_an_answer_or_breaks_a_rule(text, dom):
    try:
        parse(text, dom)
    except ModelMistake as mistake:
        assert explained(mistake)
