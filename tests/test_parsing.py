"""The JSON object in a reply, however it was wrapped."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.vocabulary import ModelMistake
from runtime.parsing import MAX_CHARS, find_action

ACTION = {"action": "finish", "params": {"result": "7:49", "status": "done"}}
TEXT = json.dumps(ACTION)
CALL = {"name": "finish", "arguments": ACTION["params"]}
DRAFT = '{"action": "draft"}'


def found(reply: str, cut: bool = False) -> dict | str:
    """The object, or the rule that the reply breaks."""
    try:
        return find_action(reply, cut)
    except ModelMistake as mistake:
        return mistake.rule


WRAPPED = {
    "bare": TEXT,
    "fenced": f"```json\n{TEXT}\n```",
    "an unclosed fence": f"```json\n{TEXT}",
    "in prose": f"Here it is: {TEXT} I hope it helps.",
    "a list of one": f"[{TEXT}]",
    "behind a byte order mark": f"\ufeff{TEXT}",
    "among other braces": f"The set {{1, 2}}: {TEXT} where {{x}} is free",
    "among other objects": f'{{"note": 1}} {TEXT} {{"note": 2}}',
    "behind LaTeX": r"\frac{a}{b}" * 150 + TEXT,
    "the last of two": f"{DRAFT} No, better: {TEXT}",
    "behind thinking": f"<think>a {{ b }} {DRAFT}</think>{TEXT}",
    "before thinking": f"{TEXT}<think>{DRAFT}</think>",
    "behind a lone closing tag": f"{DRAFT}</thinking>{TEXT}",
    "behind thinking in thinking": f"<think>a<think>{DRAFT}</think>b</think>{TEXT}",
    "in thinking that never ends": f"<think>I am sure. {TEXT}",
    "in nothing but thinking": f"<think>\n{TEXT}\n</think>",
    "a tool call": json.dumps(CALL),
    "a tool call in text": json.dumps(CALL | {"arguments": json.dumps(CALL["arguments"])}),
    "trailing commas": TEXT.replace("}}", ",},}"),
    "single quotes": TEXT.replace('"', "'"),
    "a brace short": f"<think>{DRAFT}</think>```json\n{TEXT[:-1]}\n```",
    "a bare key": TEXT.replace('"action"', "action"),
}


@pytest.mark.parametrize("reply", WRAPPED.values(), ids=WRAPPED)
def test_the_action_is_found_whatever_is_around_it(reply):
    assert find_action(reply) == ACTION


@pytest.mark.parametrize("reply", ['{"action": null}', '{"action": "finish", "params": null}'])
def test_a_null_is_left_to_the_caller(reply):
    assert find_action(reply) == json.loads(reply)


@pytest.mark.parametrize("kept", range(2, len(TEXT), 5))
def test_a_reply_cut_at_its_limit_is_never_completed_by_guessing(kept):
    assert found(TEXT[:kept], cut=True) == "cut"


@pytest.mark.parametrize("reply", [f"<think>{TEXT} or", f"<think>{TEXT}</think>"])
def test_a_draft_in_the_thinking_of_a_cut_reply_is_not_a_decision(reply):
    assert found(reply, cut=True) == "cut"


def test_a_whole_object_before_the_cut_is_taken():
    assert found(f"{TEXT} And now I will", cut=True) == ACTION


REPLIES = ["", "7:49", "{", "{}", "[]", '"action"', '{"act": 1}', "<think>", '["action"]']


@pytest.mark.parametrize("reply", [*REPLIES, '{"params": {"action": "finish"}}'])
def test_a_reply_without_an_action_is_a_mistake(reply):
    assert found(reply) == "not_json"


def test_a_mistake_quotes_only_the_start_of_the_reply():
    with pytest.raises(ModelMistake) as mistake:
        find_action("I would rather talk. " * 1000)
    assert len(mistake.value.values["start"]) < 100


@pytest.mark.parametrize("end", ["}}", ",}}"], ids=["valid", "repaired"])
@pytest.mark.parametrize(
    ("escaped", "whole"),
    [(r"\ud83d", "\ufffd"), (r"a\udd70b", "a\ufffdb"), (r"\ud83d\udd70", "🕰")],
)
def test_half_a_surrogate_pair_becomes_a_character_that_can_be_written(escaped, whole, end):
    reply = f'{{"action": "finish", "params": {{"{escaped}": ["{escaped}"]{end}'
    assert find_action(reply)["params"] == {whole: [whole]}


# ---- no text makes it raise anything but ModelMistake --------------------------------------------

FRAGMENTS = [
    *'{}[]"\n: ,\\\'“/#(é', "```json\n", "<think>", "</think>", '"action":', '"complete"', '"name":',
    '"arguments":', "null", '"params":{', "-1e999", "NaN", "/*", "\ud83d", "\\ud83d", "\x00",
]  # fmt: skip
JSONISH = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=40).map("".join)


@settings(deadline=None, max_examples=200)
@given(st.text(st.characters(), max_size=200) | JSONISH, st.booleans())
def test_any_text_is_an_action_or_a_mistake_that_can_be_written(reply, cut):
    outcome = found(reply, cut)
    assert outcome in ("cut", "not_json") or "action" in outcome
    assert json.dumps(outcome, ensure_ascii=False).encode()


HOSTILE = {
    "json-repair raises": '{e""s"\\"\n```json\n{',
    "open keys": '{"a":' * 5000,
    "brace and quote": '{"' * 500_000,
    "open actions": '{"action":' * 100_000,
    "parentheses": "{" + "(" * 10**6,
    "thinking": "<think>" * 28_000 + "{",
    "backslashes": '{"action": "' + "\\" * 10**6,
    "digits": '{"action":' + "9" * 10**6 + "}",
    "beyond what is read": "x" * MAX_CHARS + TEXT,
}


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("reply", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_reply_is_a_mistake(reply, cut):
    assert found(reply, cut) in ("not_json", "cut") or not cut


@pytest.mark.parametrize("depth", [300, 490, 990, 60_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_an_object_nested_too_deep_for_recursion_is_a_mistake(depth, opening, closing):
    assert found(f'{{"action": {opening * depth}1{closing * depth}}}') == "not_json"
