"""--lenient reads the replies of MAS-Orchestra that the released code reads, and refuses what it refuses."""

import re

import pytest

from orchestra.methods.mas_lenient import parse_leniently
from orchestra.methods.mas_xml import parse
from orchestra.runtime.prompts import explained
from orchestra.runtime.run_folder import read_manifest
from orchestra.vocabulary import ModelMistake
from orchestra_min import resume
from tests.program import CLOCK, replay, runs
from tests.scripted import SAID, agent, cut_off, edge, thought

TWO = agent("A") + agent("B", input="use ${A}")
AB = TWO + edge("A", "B")
ROLES = '["Poet", "Judge"]'
INPUT = "<agent_input></agent_input>"

# What the strict reader refuses and the released parser accepts: the rule, the reply, (id, needs) of each agent
CHAIN = [("A", ()), ("B", ("A",))]
ACCEPTED = {
    "no thinking": ("no_thinking", AB, CHAIN),
    "thinking that is not closed": ("thinking_unclosed", "<think>hm\n" + AB, CHAIN),
    "tags in upper case": ("no_agent", thought(re.sub(r"</?\w+>", lambda t: t[0].upper(), AB)), CHAIN),
    "text between fields": ("stray_text", thought(agent(extra="and then"), agent("B", input="${A}"), edge("A", "B")), CHAIN),
    "an unknown field": ("stray_text", thought(agent(extra="<colour>red</colour>")), [("A", ())]),
    "a second id": ("field_twice", thought(agent(extra="<agent_id>B</agent_id>")), [("A", ())]),
    "no description": ("field_missing", thought(agent().replace(SAID, "")), [("A", ())]),
    "no input": ("field_missing", thought(agent().replace(INPUT, "")), [("A", ())]),
    "no arguments": ("field_missing", thought("<agent><agent_id>A</agent_id><agent_name>CoTAgent</agent_name></agent>"), [("A", ())]),
    "an agent without an id": ("field_missing", thought(AB, agent("C").replace("<agent_id>C</agent_id>", "")), CHAIN),
    "a name in lower case": ("unknown_agent", thought(agent(name="cotagent")), [("A", ())]),
    "an id with a hyphen": ("bad_id", thought(AB.replace(">A<", ">a-1<").replace("${A}", "${a-1}")), [("a_1", ()), ("B", ("a_1",))]),
    "an id twice": ("duplicate_id", thought(agent(), AB), CHAIN),
    "roles of another agent": ("roles_not_here", thought(agent(roles=ROLES)), [("A", ())]),
    "an edge twice": ("edge_twice", thought(TWO, edge("A", "B", "A", "B")), CHAIN),
    "a second edge block": ("edge_blocks", thought(AB, edge("B", "A")), CHAIN),
    "an agent after the edges": ("agent_after_edge", thought(agent(), edge("A", "B"), agent("B", input="${A}")), CHAIN),
    "to before from": ("edge_unpaired", thought(TWO, "<edge><to>B</to><from>A</from></edge>"), CHAIN),
    "a from that is left over": ("edge_unpaired", thought(TWO, "<edge><from>A</from><to>B</to><from>A</from></edge>"), CHAIN),
    "an edge without its ${id}": ("edge_without_insert", thought(agent(), agent("B"), edge("A", "B")), CHAIN),
    "a ${id} without its edge": (
        "insert_without_edge",
        thought(TWO, agent("C", input="${A}${B}"), edge("A", "B", "B", "C")),
        [*CHAIN, ("C", ("B", "A"))],
    ),
    "a ${id} of no agent": ("insert_unknown", thought(agent(input="${x}^2")), [("A", ())]),
    "an id that is not closed": ("unclosed", thought(AB.replace("A</agent_id>", "A")), CHAIN),
    "an agent that is not closed": ("unclosed", thought(AB, "<agent><agent_id>C</agent_id>"), CHAIN),
    "an answer next to agents": ("answer_in_high", thought(AB, "<answer>4</answer>"), CHAIN),
}  # fmt: skip
# What both refuse
REFUSED = {
    "unknown_id": thought(TWO, edge("A", "B", "A", "Z")),
    "cycle": thought(TWO, edge("A", "B", "B", "A")),
    "many_sinks": thought(TWO, agent("C", input="${A}"), edge("A", "B", "A", "C")),
    "edge_missing": thought(TWO),
    "isolated": thought(TWO, agent("C"), edge("A", "B")),
    "unknown_agent": thought(agent(name="Nobody")),
    "roles_bad": thought(agent(name="DebateAgent", roles='["Poet"]')),
    "no_agent": "",
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_the_released_parser_accepts_is_read_on_request_alone(name):
    rule, reply, found = ACCEPTED[name]
    with pytest.raises(ModelMistake, match=rule):
        parse(reply)
    assert [(u.id, u.needs) for u in parse_leniently(reply)] == found


@pytest.mark.parametrize("rule", REFUSED)
def test_what_the_released_parser_refuses_is_refused(rule):
    for read in (parse, parse_leniently):
        with pytest.raises(ModelMistake, match=rule) as mistake:
            read(REFUSED[rule])
        assert explained(mistake.value)


@pytest.mark.parametrize(
    "reply",
    ["The answer is 4.", "<thinking>2+2</thinking>The answer is 4.", "<answer>The answer is 4."],
)
def test_a_reply_without_agents_is_a_direct_answer(reply):
    assert parse_leniently(reply) == "The answer is 4."


@pytest.mark.parametrize("reply", ["<think>still thinking", "<think>a</think> ", "<edge></edge>"])
def test_thinking_and_empty_markup_are_no_answer(reply):
    with pytest.raises(ModelMistake, match="no_agent"):
        parse_leniently(reply)


def test_a_role_that_repeats_gets_a_number():
    (u,) = parse_leniently(agent(name="DebateAgent", roles='["Poet", "Poet"]'))
    assert u.roles == ("Poet", "Poet 2")


def test_ids_that_differ_in_their_punctuation_alone_stay_apart():
    reply = agent("a-b") + agent("a b", input="${a-b}") + edge("a-b", "a b")
    first, second = parse_leniently(reply)
    assert (second.needs, second.instruction) == ((first.id,), f"${{{first.id}}}")
    assert first.id != second.id


@pytest.mark.parametrize(
    "reply", [agent(), agent() + agent("B"), agent().replace("agent_id", "agent_output_id")]
)
def test_a_low_degree_takes_the_first_agent_and_needs_no_answer(reply):
    with pytest.raises(ModelMistake):
        parse(reply, "low")
    (u,) = parse_leniently(reply, "low")
    assert (u.id, u.agent) == ("A", "cot")


# ---- runs ----------------------------------------------------------------------------------------

run = runs("mas-orchestra")


def test_a_lenient_run_carries_out_what_a_strict_one_refuses(run):
    """A run is replayed, so the option is stored with it."""
    result = run(AB, lenient=True)
    assert (result.answer, result.fallback, len(run.mains)) == ("42", False, 1)
    result = run(AB, AB, out="strict")
    assert (result.fallback, len(run.mains)) == (True, 2)


def test_a_fork_may_read_leniently_what_its_run_refused(run, tmp_path):
    assert run(AB, AB, AB).fallback
    pool = read_manifest(run.folder).pool
    fork = resume(run.folder, from_round=1, out=tmp_path / "fork", pool=pool, lenient=True)
    assert (fork.answer, fork.fallback, replay(fork.run).fallback) == ("42", False, False)


def test_a_plain_answer_that_was_cut_off_or_has_seen_no_file_is_refused(run):
    assert run(cut_off("The answer is"), "42", lenient=True).answer == "42"
    assert len(run.mains) == 2
    assert run("42", AB, media=[CLOCK], lenient=True, out="files").fallback is False
    assert len(run.mains) == 2
