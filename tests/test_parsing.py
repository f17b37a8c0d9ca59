"""The JSON object in a reply, however it was wrapped."""

from __future__ import annotations

import json
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.parsing import MAX_CHARS, find_action
from orchestra.vocabulary import ModelMistake

ACTION = {"action": "finish", "params": {"result": "7:49", "status": "done"}}
TEXT = json.dumps(ACTION)
DRAFT = '{"action": "draft"}'


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(TEXT, id="bare"),
        pytest.param(f"\n\n  {TEXT}\n", id="space around it"),
        pytest.param(f"```json\n{TEXT}\n```", id="fence"),
        pytest.param(f"```\n{TEXT}\n```", id="fence without a language"),
        pytest.param(f"```json\n{TEXT}", id="unclosed fence"),
        pytest.param(f"Here it is: {TEXT} I hope it helps.", id="text around it"),
        pytest.param(f"[{TEXT}]", id="list of one"),
        pytest.param(json.dumps(ACTION, indent=4), id="indented"),
        pytest.param("\ufeff" + TEXT, id="byte order mark"),
        pytest.param(f"The set {{1, 2}} and {{x}}: {TEXT}", id="braces before it"),
        pytest.param(f"{TEXT} where {{x}} is free", id="braces behind it"),
        pytest.param(f'{{"note": 1}} {TEXT} {{"note": 2}}', id="other objects around it"),
        pytest.param(f"{DRAFT} No, better: {TEXT}", id="the last of two"),
        pytest.param(r"\frac{a}{b}" * 150 + TEXT, id="hundreds of braces before it"),
        pytest.param(f"<think>so</think>{TEXT}", id="thinking"),
        pytest.param(f"<think>a {{ b }} c</think>{TEXT}", id="braces in the thinking"),
        pytest.param(f"<think>{DRAFT}</think>{TEXT}", id="a draft in the thinking"),
        pytest.param(f"{TEXT}<think>{DRAFT}</think>", id="thinking behind it"),
        pytest.param(f"<think>a</think>{TEXT}<think>{DRAFT}</think>", id="thinking around it"),
        pytest.param(f"<thinking>{DRAFT}</thinking>{TEXT}", id="the longer tag"),
        pytest.param(f"{DRAFT}</think>{TEXT}", id="only the closing tag"),
        pytest.param(f"a</think>{DRAFT}</think>{TEXT}", id="two closing tags"),
        pytest.param(f"<think>a<think>{DRAFT}</think>b</think>{TEXT}", id="thinking in thinking"),
        pytest.param(f"<think>I am sure. {TEXT}", id="thinking that never ends"),
        pytest.param(f"<think>\n{TEXT}\n</think>", id="nothing but thinking"),
        pytest.param(f"<think>{DRAFT}</think>```json\n{TEXT}\n```", id="thinking, then a fence"),
    ],
)
def test_an_object_is_found_in(reply):
    assert find_action(reply) == ACTION


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(TEXT.replace("}}", ",},}"), id="trailing commas"),
        pytest.param(TEXT.replace('"', "'"), id="single quotes"),
        pytest.param(TEXT[:-1], id="one brace short"),
        pytest.param(TEXT[:-3], id="cut off in the last text"),
        pytest.param(TEXT.replace('"action"', "action"), id="a bare key"),
        pytest.param(TEXT.replace(', "params"', ' "params"'), id="a missing comma"),
        pytest.param(re.sub(r'"([^"]*)"', r"“\1”", TEXT), id="typographic quotes"),
        pytest.param(f"```json\n{TEXT[:-1]}\n```", id="a brace short in a fence"),
        pytest.param(f"<think>{DRAFT}</think>{TEXT[:-1]}", id="a brace short behind thinking"),
        pytest.param(TEXT.replace("{", "{ // mine\n", 1), id="a comment"),
    ],
)
def test_repair_mends(broken):
    assert find_action(broken) == ACTION


def test_repair_mends_thirty_thousand_characters():
    tasks = [{"task_instruction": f"Look at {n}.", "context": "known: " * 50} for n in range(80)]
    text = json.dumps({"action": "delegate_task", "params": {"tasks": tasks}})
    assert find_action(text.replace('"', "'"))["params"]["tasks"] == tasks


def test_a_line_break_inside_a_text_is_kept():
    reply = TEXT.replace("7:49", "7\n49")
    assert find_action(reply)["params"]["result"] == "7\n49"


@pytest.mark.parametrize("kept", range(2, len(TEXT)))
def test_a_reply_cut_at_its_limit_is_never_completed_by_guessing(kept):
    with pytest.raises(ModelMistake, match="cut off at its length limit"):
        find_action(TEXT[:kept], cut=True)


@pytest.mark.parametrize("reply", [f"{TEXT} And now I will", f'{{"broken {TEXT} {{"action": "'])
def test_a_whole_object_before_the_cut_is_taken(reply):
    assert find_action(reply, cut=True) == ACTION


@pytest.mark.parametrize("reply", [f"<think>{TEXT} or", f"<think>{TEXT}</think>", f"<think>{TEXT}"])
def test_a_draft_in_the_thinking_of_a_cut_reply_is_no_decision(reply):
    with pytest.raises(ModelMistake, match="cut off"):
        find_action(reply, cut=True)


@pytest.mark.parametrize(
    "reply",
    ["", " ", "7:49", "{", "}", "{}", "[]", "null", '"action"', '{"act": 1}', "{action}", "<think>",
     '{"params": {"action": "finish"}}', '["action"]'],
)  # fmt: skip
def test_a_reply_without_an_action_is_a_mistake(reply):
    with pytest.raises(ModelMistake, match=r'no JSON object with an "action"'):
        find_action(reply)


def test_a_mistake_shows_how_the_reply_began_and_no_more():
    with pytest.raises(ModelMistake) as mistake:
        find_action("I would rather talk. " * 1000)
    assert "'I would rather talk. I would" in str(mistake.value)
    assert len(str(mistake.value)) < 300


@pytest.mark.parametrize(
    ("escaped", "whole"),
    [
        (r"\ud83d", "\ufffd"),
        (r"a\udd70b", "a\ufffdb"),
        (r"\ud83d\udd70", "🕰"),
        (r"\ud83d, \ud83d\udd70", "\ufffd, 🕰"),
    ],
)
@pytest.mark.parametrize("end", ["}}", ",}}"])
def test_half_a_character_becomes_a_sign_that_can_be_written(escaped, whole, end):
    reply = f'{{"action": "finish", "params": {{"{escaped}": ["{escaped}"]{end}'
    assert find_action(reply)["params"] == {whole: [whole]}


# ---- no text makes it raise anything else, or takes long -----------------------------------------

FRAGMENTS = [
    "{", "}", "[", "]", '"', "'", ":", ",", "\\", "\n", " ", "```json\n", "```", "<think>",
    "</think>", '"action"', '{"action":', '"complete"', '"delegate_task"', '"params":{', "null",
    '"tasks":[', "0", "-1e999", "NaN", "true", "answer", "“", "//", "/*", "#", "(", ")", "é",
    "\ud83d", "\\ud83d", "\x00",
]  # fmt: skip
JSONISH = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=40).map("".join)


def outcome(reply: str, cut: bool = False) -> object:
    try:
        return find_action(reply, cut)
    except ModelMistake as mistake:
        return str(mistake)


@settings(deadline=None, max_examples=200)
@given(st.text(st.characters(), max_size=200) | JSONISH, st.booleans())
def test_any_text_is_an_action_or_a_mistake_that_can_be_written(reply, cut):
    found = outcome(reply, cut)
    assert json.dumps(found, ensure_ascii=False).encode()
    assert isinstance(found, str) or "action" in found


MEGABYTES = {
    "open braces": "{" * 10**6,
    "open brackets": "[" * 10**6,
    "open keys": '{"a":' * 5000,
    "open lists": '{"a":[' * 200_000,
    "brace and quote": '{"' * 500_000,
    "brace and single quote": "{'" * 500_000,
    "brace and typographic quote": "{“" * 500_000,
    "quotes": "{" + '"' * 10**6,
    "parentheses": "{" + "(" * 10**6,
    "words in quotes": "{" + 'e"' * 500_000,
    "actions": '{1."action"' * 100_000,
    "open actions": '{"action":' * 100_000,
    "fences": "{" + '```" ' * 200_000,
    "comments": "{/*" * 300_000,
    "backslashes": '{"action": "' + "\\" * 10**6,
    "thinking": "<think>" * 150_000,
    "thinking and a brace": "<think>" * 28_000 + "{",
    "closed thinking": "<think></think>" * 60_000,
    "whitespace": "{" + " \n" * 500_000,
    "empty objects": "{}" * 500_000,
    "commas": "{" + "a," * 500_000,
    "digits": '{"action":' + "9" * 10**6 + "}",
    "long lists": '{"a":{"a":[' + "1," * 90_000,
}


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("text", MEGABYTES.values(), ids=MEGABYTES)
def test_a_megabyte_of_nonsense_is_answered_within_two_seconds(text, cut):
    started = time.thread_time()
    outcome(text, cut)
    assert time.thread_time() - started < 2


@pytest.mark.parametrize("depth", [50, 300, 480, 700, 900, 980, 5000, 60_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_an_object_of_any_depth_is_an_action_or_a_mistake(depth, opening, closing):
    found = outcome(f'{{"action": {opening * depth}1{closing * depth}}}')
    assert isinstance(found, str) or len(repr(found)) > depth


def test_a_decision_behind_the_first_characters_that_are_read_is_not_found():
    with pytest.raises(ModelMistake):
        find_action("x" * MAX_CHARS + TEXT)
