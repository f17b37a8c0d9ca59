"""The XML of MAS-Orchestra: every rule, the line where it is broken, and arbitrary text."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.methods.mas_xml import parse
from orchestra.runtime.prompts import explained
from orchestra.vocabulary import ModelMistake
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

BROKEN = {  # rule: the line it is broken in, and the reply behind its thinking
    "no_agent": [(None, ""), (None, "The answer is 42.")],
    "stray_text": [(2, agent(extra=extra)) for extra in ("and then", "<colour>red</colour>", "<thinking>x</thinking>")],
    "unclosed": [(1, f"<agent>{agent()}</agent>"), (3, agent(input="a <agent> b")), (3, agent().split("</agent_input>")[0])],
    "not_opened": [(4, agent() + "</agent>")],
    "misplaced": [(1, "<agent_id>A</agent_id>"), (1, "<from>A</from>")],
    "field_twice": [(2, agent(extra="<agent_id>B</agent_id>")), (3, agent(extra=SAID))],
    "field_missing": [
        *[(1, agent().replace(part, "")) for part in ("<agent_id>A</agent_id>", "<agent_name>CoTAgent</agent_name>", SAID)],
        (3, agent().replace("<agent_input></agent_input>", "")), (3, debate("")), (1, "<agent><agent_id>A</agent_id></agent>"),
    ],
    "unknown_agent": [(5, agent() + agent("B", "Nobody"))],
    "bad_id": [(2, agent(id=id)) for id in (" ", "a-b", "é")],
    "duplicate_id": [(4, agent() + agent()), (1, (agent() + agent()).replace("\n", ""))],
    "roles_bad": [(3, debate(roles)) for roles in ('["a"]', '["a", "a "]', "a, b", "[1, 2]", "[" * 999)],
    "roles_not_here": [(3, agent(roles='["a", "b"]'))],
    "edge_unpaired": [(7, f"{TWO}<edge>{ends}</edge>") for ends in ("", "<from>A</from>", "<to>A</to><from>A</from>")],
    "edge_missing": [(None, TWO)],
    "id_tag": [(2, agent(extra="<agent_output_id>B</agent_output_id>"))],
    "edge_twice": [(7, TWO + edge("A", "B", "A", "B"))],
    "edge_blocks": [(8, AB + edge("A", "B"))],
    "agent_after_edge": [(5, agent("A") + edge("A", "B") + agent("B", input="${A}"))],
    "unknown_id": [(None, TWO + edge("A", "B", "A", "Z"))],
    "cycle": [(None, agent(input="${A}") + edge("A", "A")), (None, TWO + edge("A", "B", "B", "A"))],
    "isolated": [(7, TWO + agent("C") + edge("A", "B")), (1, agent("Z") + thought(AB))],
    "many_sinks": [(None, TWO + agent("C", input="${A}") + edge("A", "B", "A", "C"))],
    "insert_without_edge": [(7, TWO + agent("C", input="${A}${B}") + edge("A", "B", "B", "C"))],
    "insert_unknown": [(1, agent(input="${x}^2"))],
    "edge_without_insert": [(4, agent() + agent("B") + edge("A", "B"))],
    "answer_in_high": [(1, "<answer>4</answer>")],
}  # fmt: skip
BROKEN_LOW = {
    "answer_empty": [(1, "<answer></answer>")],
    "answer_and_agents": [
        (1, low(answer)) for answer in ("", "<answer>4</answer>", "<answer></answer>", "<answer>out</answer>" * 2)
    ] + [(1, "<answer>out</answer>" + low("")), (1, "<answer>4</answer>" * 2)],
    "low_is_one_agent": [(None, low() + low()), (None, "42"), (None, agent().replace("agent_id", "agent_output_id") + edge("A", "A"))],
    "field_missing": [(1, low().replace("agent_output_id", "agent_description"))],
    "id_tag": [(2, agent() + "<answer>A</answer>")],
}  # fmt: skip


@pytest.mark.parametrize("text", [
    *map(thought, [
        agent(), AB, AB.replace("\n", "\r\n"), ABC + edge("A", "C", "B", "C"),
        agent() + agent("B", input="${A} ${A}") + edge("A", "B"), AB + "And so it is.",
        "Here it is:\n" + AB, "\nSince 3 < 5:\n" + AB, f"\n<agents>{agent()}</agents>", f"```xml\n{AB}```", f"\n```\n{AB}\n```\n", agent(name="WebSearchAgent"),
        debate('["Poet", "Judge"]'), debate("['Poet', \"Judge's\"]"),
        agent().replace("<agent_id>", "<agent_id >"), agent(input="Put it into <answer>x</answer>."),
        agent().replace("<agent_input></agent_input>", "<agent_input/>"),
        agent().replace(">d</", ">a <it></"), agent() + "<edge>\n</edge>", agent(input='""'),
    ]),
    f"<thinking>a < b & <agent> c</thinking>\n{AB}", f"<think>hm</think>{agent()}",
    f"<think>1</think><thinking>2</thinking>{agent()}", f"{thought(agent())}<thinking>2</thinking>",
    f"hm\n</thinking>\n{agent()}", f"Draft: <agent> {agent('Z')}\n</think>\n{AB}",
])  # fmt: skip
def test_a_graph_of_the_format_is_read(text):
    assert parse(text)[0].id == "A"


@pytest.mark.parametrize("dom, rule, line, text", [
    (dom, rule, *row)
    for dom, broken in (("high", BROKEN), ("low", BROKEN_LOW))
    for rule, rows in broken.items() for row in rows
])  # fmt: skip
def test_a_broken_rule_is_named_with_its_line(dom, rule, line, text):
    with pytest.raises(ModelMistake) as caught:
        parse(thought(text), dom)
    assert (caught.value.rule, caught.value.values.get("line")) == (rule, line)
    assert explained(caught.value)


@pytest.mark.parametrize("before, rule", [("", "no_thinking"), ("<think>", "thinking_unclosed")])
def test_a_graph_without_thinking_is_refused(before, rule):
    with pytest.raises(ModelMistake, match=rule):
        parse(before + AB)


def test_an_answer_may_name_the_output_of_the_one_agent():
    (alone,) = parse(thought(low()), "low")
    assert (alone.id, alone.agent) == ("out", "cot")


RIGHT = {
    "high": thought(agent(), debate("['P', 'Q']").replace(">A<", ">B<"), agent("C", input="${A} ${B}"), edge("A", "C", "B", "C")),
    "low": thought(low()),
}  # fmt: skip


@pytest.mark.parametrize("dom, found", [
    (dom, found) for dom in RIGHT for found in re.finditer(r"</(?!thinking)(\w+)>", RIGHT[dom])
])  # fmt: skip
def test_every_unclosed_tag_is_said_to_be_unclosed(dom, found):
    with pytest.raises(ModelMistake) as caught:
        parse(RIGHT[dom][: found.start()] + RIGHT[dom][found.end() :], dom)
    assert (caught.value.rule, caught.value.values["tag"]) == ("unclosed", found[1])


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
def test_any_text_is_a_graph_or_breaks_a_rule(text, dom):
    try:
        parse(text, dom)
    except ModelMistake as mistake:
        assert explained(mistake)
