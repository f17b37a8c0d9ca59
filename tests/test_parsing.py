"""The JSON object in a reply, however it was wrapped."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestra.kernel.vocabulary import ModelMistake
from orchestra.methods.replies import MAX_CHARS, find_action

ACTION = {"action": "finish", "params": {"result": "7:49", "status": "done"}}
TEXT, DRAFT = json.dumps(ACTION), '{"action": "draft"}'


def found(reply: str, cut: bool = False) -> dict | str:
    """The object, or the rule that the reply breaks."""
    try:
        return find_action(reply, cut)
    except ModelMistake as mistake:
        return mistake.rule


FENCED = [TEXT, f"```json\n{TEXT}\n```", f"```\n{TEXT}", f"\ufeff{TEXT}", f"[{TEXT}]"]
IN_PROSE = [
    f"Here it is: {TEXT} I hope it helps.", f"The set {{1, 2}}: {TEXT} where {{x}} is free",
    f'{{"note": 1}} {TEXT} {{"note": 2}}', r"\frac{a}{b}" * 150 + TEXT, f"{DRAFT} No: {TEXT}",
]  # fmt: skip
THINKING = [
    f"<think>a {{ b }} {DRAFT}</think>{TEXT}", f"{TEXT}<think>{DRAFT}</think>",
    f"{DRAFT}</thinking>{TEXT}", f"<think>a<think>{DRAFT}</think>b</think>{TEXT}",
    f"<think>I am sure. {TEXT}", f"<think>\n{TEXT}\n</think>", f"[THINK]{DRAFT}[/THINK]{TEXT}", f"<seed:think>{DRAFT}</seed:think>{TEXT}",
    f"<thought>{DRAFT}</thought>{TEXT}", f"<reasoning>{DRAFT}</reasoning>{TEXT}", f"◁think▷{DRAFT}◁/think▷{TEXT}",
]  # fmt: skip
GIVEN = ACTION["params"], json.dumps(ACTION["params"])
TOOL_CALLS = [json.dumps({"name": "finish", "arguments": given}) for given in GIVEN]
CHANGES = ("}}", ",},}"), ('"', "'"), ('"act', "act")
BROKEN = [
    f"```json\n{TEXT[:-1]}\n```",
    f"<tool_call>{TEXT[:-1]}</tool_call>",
    *(TEXT.replace(*change) for change in CHANGES),
]


def test_latex_is_not_a_control_character_and_a_task_with_a_name_is_not_a_call():
    reply = r'{"action": "complete", "params": {"answer": "\frac{1}{2} \boxed{3}", "ok": "a\\b\n"}}'
    assert find_action(reply)["params"] == {"answer": r"\frac{1}{2} \boxed{3}", "ok": "a\\b\n"}
    tasks = '{"action": "delegate_task", "params": {"tasks": [{"name": "t1", "task_instruction": "do"},]},}'
    assert find_action(tasks)["action"] == "delegate_task"


LATEX = [
    r"5 \times 10^{3}", r"25\,\text{km}", r"\theta = 3", r"x \neq 2", r"\rho", r"h\nu", r"\nu_1 + \nu", r"x \ne 2", r"\nabla f", r"a \to b", r"\tau", r"\tan(x)", r"\beta", r"\frac{1}{2}",
    r"\right)", r"\underline{x}", r"\uparrow", r"\sqrt{2} \pm 1", r"50\% \& more", r"\{1, 2\}", r"\(x\)", r"\textbf{a}", r"\boxed{\frac{a}{b}}", r"\forall x \notin A", r"\binom{n}{k}",
]  # fmt: skip
PLAIN = [
    r"one\ntwo", r"x = 1\nu = 2\nprint(u)", r"\neq = a == b", r"a\tb", r"a\ttwo", r"\nnext", r"caf\u00e9", r"a\r\nb", r"C:\\temp\\new", r"say \"hi\"", r"a\/b", r"\\frac", r"\nul Zagrebu", r"\new line",
]  # fmt: skip


@pytest.mark.parametrize("text", LATEX)
def test_backslashes_of_latex_are_no_control_characters(text):
    for written in (text, text.replace("\\", "\\\\")):
        assert find_action(f'{{"action": "finish", "params": {{"result": "{written}"}}}}')["params"]["result"] == text  # fmt: skip


@pytest.mark.parametrize("text", PLAIN)
def test_escapes_of_json_are_what_they_are(text):
    reply = f'{{"action": "finish", "params": {{"result": "{text}"}}}}'
    assert find_action(reply) == json.loads(reply)


@pytest.mark.parametrize("reply", [*FENCED, *IN_PROSE, *THINKING, *TOOL_CALLS, *BROKEN])
def test_the_action_is_found_whatever_is_around_it(reply):
    assert find_action(reply) == ACTION


def test_a_long_broken_reply_is_read_completely_or_not_at_all():
    tasks = [{"task_instruction": f"Look at {n}.", "context": "known: " * 50} for n in range(80)]
    outcome = found(str({"action": "delegate_task", "params": {"tasks": tasks}}))
    assert outcome == "not_json" or outcome["params"]["tasks"] == tasks


@pytest.mark.parametrize("reply", [*(TEXT[:n] for n in range(2, 60, 7)), THINKING[4], THINKING[5]])
def test_a_reply_cut_at_its_limit_is_not_completed_by_guessing(reply):
    assert found(reply, cut=True) == "cut"


def test_a_whole_object_before_the_cut_is_taken():
    assert found(f"{TEXT} And now I will", cut=True) == ACTION


@pytest.mark.parametrize("end", ["}}", ",}}"], ids=["valid", "repaired"])
@pytest.mark.parametrize(("escaped", "whole"), [
    (r"\ud83d", "\ufffd"), (r"a\udd70b", "a\ufffdb"), (r"\ud83d\udd70", "🕰"), (r"\\ud83d\udd70", "\\ud83d\ufffd"),
])  # fmt: skip
def test_a_lone_surrogate_is_replaced(escaped, whole, end):
    reply = f'{{"action": "finish", "params": {{"{escaped}": ["{escaped}"]{end}'
    assert find_action(reply)["params"] == {whole: [whole]}


FRAGMENTS = [*'{}[]"\n: ,\\\'“/#(é\x00\ud83d', "```json\n", "<think>", "</think>", '"action":',
             '"arguments":', '"name":', "null", '"params":{', "-1e999", "NaN", "\\ud83d"]  # fmt: skip
GARBAGE = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=40).map("".join)


@example("{action:A\ud800", False)
@given(st.text(st.characters(), max_size=200) | GARBAGE, st.booleans())
def test_any_garbage_is_an_action_or_a_mistake_that_can_be_written(reply, cut):
    outcome = found(reply, cut)
    assert outcome in ("cut", "open", "not_json") or "action" in outcome
    assert json.dumps(outcome, ensure_ascii=False).encode()


@pytest.mark.parametrize("text", [TEXT, r'{"reasoning": "a \"word\" {x}", "action": "complete", "params": {"answer": "It was built in 1889 {or so}: \\frac{1}{2}"}}'])  # fmt: skip
def test_no_reply_that_is_cut_off_anywhere_is_an_action(text):
    """Whatever the endpoint says about it: some give no reason, or "stop"."""
    assert "action" in found(text)
    cuts = {found(text[:end]) for end in range(len(text))}
    assert cuts == {"not_json", "open"}


NONE = ["", "7:49", "{", "{}", "[]", '{"params": {"action": 1}}', '["a"]', '{e""s"\\"\n```json\n{']
NESTED = ['{"action": ' + '{"a":' * n + "1" + "}" * n + "}" for n in (300, 490, 60_000)]
LONG = ['{"action":' * 100_000, "<think>" * 28_000 + "{", "{" + "(" * 10**6, "x" * MAX_CHARS + TEXT]


@pytest.mark.parametrize("reply", [*NONE, *NESTED, *LONG], ids=lambda t: t[:20])
def test_a_reply_without_a_readable_action_is_a_mistake(reply):
    assert found(reply) in ("not_json", "open")
