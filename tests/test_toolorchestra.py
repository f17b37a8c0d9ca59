"""ToolOrchestra: tool calls in every form, and runs end to end."""

import json
from dataclasses import replace

import pytest

from orchestra.kernel.vocabulary import ModelMistake
from orchestra.methods import experts
from orchestra.methods.toolorchestra import read_call
from orchestra.tools import search_engines
from tests import golden
from tests.conftest import ConfigError, needs_sandbox
from tests.program import CLOCK, runs
from tests.scripted import Raw, cut_off

REFUSED = Raw(400, {"error": {"message": "no tools here"}})


def call(name, slot, tag="<tool_call>{}</tool_call>"):
    return tag.format(json.dumps({"name": name, "arguments": {"model": slot}}))


SEARCH, ANSWER = call("search", "search-1"), call("answer", "answer-2")
REASON = call("enhance_reasoning", "reasoner-1")
GIVEN = '{"model": "search-1"}'

FENCED = call("search", "search-1", "<tool_call>```json\n{}\n```</tool_call>")

GOOD = [
    SEARCH, SEARCH.removesuffix("</tool_call>"), SEARCH + ANSWER, FENCED, SEARCH.replace('"', "'"),
    SEARCH.replace(GIVEN, json.dumps(GIVEN)), SEARCH.replace(GIVEN, json.dumps(json.dumps(GIVEN))),
    SEARCH.replace(GIVEN, json.dumps(GIVEN.replace('"', "'"))),
    SEARCH.replace(GIVEN, '{"model": " search-1 ", "q": 1}'),
    SEARCH.replace("arguments", "parameters"), SEARCH.removeprefix("<tool_call>"),
    SEARCH.replace("}}", "}"), SEARCH.replace("}}", "},}"), SEARCH.replace("}}", "}} and so on"),
    f"<think>call answer? {ANSWER}</think>{SEARCH}", f"hm {ANSWER}</think>\n{SEARCH}",
    f"<tool_call>{{broken</tool_call>{SEARCH}", f'<tool_call>{{"name": "sea {SEARCH}',
    call("browse", "x") + SEARCH, call("search", "search-9") + SEARCH,
]  # fmt: skip
BAD = {
    "no_call": ["", "The answer is 42.", "<tool_call>search, please", '<tool_call>{"arguments": {}}'],
    "open": ["<tool_call>" + "{'a': [" * 20_000, SEARCH[:40], "<function=search><parameter=model>search-1", "<function=search><parameter=model>search-1</parameter>"],
    "unknown_function": [call("browse", "search-1"), '<tool_call>{"name": ["search"]}'],
    "broken_arguments": [SEARCH.replace(GIVEN, given) for given in ('"s"', '["search-1"]')],
    "unknown_slot": [SEARCH.replace(GIVEN, "null"), *[call("search", slot) for slot in ("answer-1", True, "")]],
}  # fmt: skip


@pytest.mark.parametrize("reply", GOOD)
def test_a_call_is_read_in_every_form(reply):
    assert read_call(reply)[:2] == ("search", "search-1")


@pytest.mark.parametrize("rule, reply", [(rule, r) for rule, rows in BAD.items() for r in rows])
def test_a_reply_without_a_usable_call_breaks_a_named_rule(rule, reply):
    with pytest.raises(ModelMistake) as mistake:
        read_call(reply)
    assert mistake.value.rule == rule


# ---- runs ----------------------------------------------------------------------------------------


run = runs("toolorchestra")


@needs_sandbox
def test_the_requests_are_those_of_the_golden_file(run, monkeypatch):
    """All messages by role, as lines, and the tools; with a preference and mistakes."""
    reasoning = "<think>```python\nprint(1)\n```</think>data:\n```json\n{}\n```\nso:\n```python\nprint(6 * 7)\n```"
    replies = {"Do not answer": reasoning, "search queries": "Query: a", "Solve": "Answer: 42"}
    monkeypatch.setattr(
        search_engines, "search", lambda asked: [{"title": f"found for {asked['q']}"}]
    )
    work = lambda text: next(reply for key, reply in replies.items() if key in text)  # noqa: E731
    turns = cut_off(ANSWER[:30]), REASON, "hm", SEARCH, ANSWER
    assert not run(*turns, work=work, names=("one", "two"), prefer="cost=0.5,search=1").fallback
    tools, *others = [r.pop("tools") for r in run.requests if "tools" in r]
    assert others == [tools] * 4
    for r in run.requests:
        r |= {m["role"]: m["content"].split("\n") for m in r.pop("messages")}
    golden.same("toolorchestra", {"tools": tools, "requests": run.requests})


SHOWN = "```python\nprint(6 * 7)\n```\nIt prints:\n```\nThe answer is 42.\n```"


@pytest.mark.parametrize(("reply", "programs"), [
    (SHOWN, ["print(6 * 7)\n"]), (SHOWN.replace("python", "py"), ["print(6 * 7)\n"]), ("```\nprint(1)\n```", ["print(1)\n"]), ("```json\n{}\n```", []),
])  # fmt: skip
def test_what_a_program_should_print_is_not_taken_for_the_program(reply, programs):
    assert experts._python_in(reply) == programs


@needs_sandbox
@pytest.mark.parametrize(("code", "shown"), [
    ("print(6 * 7)\nprint('b')", "```output\n<data "), ("print(1)\n1 / 0", ""), ("import sys; sys.exit(3)", ""),
])  # fmt: skip
def test_the_output_of_a_program_is_added_whole_and_of_a_failed_one_nothing(code, shown, run):
    reasoning = f"I compute.\n```python\n{code}\n```"
    run(REASON, ANSWER, work=lambda t: reasoning if "Work out" in t else "Answer: 1")
    context = run.mains[1]
    assert "I compute." in context and ("```output" in context) == bool(shown)
    assert "Traceback" not in context and "exit status" not in context
    assert not shown or "42\nb\n" in context.partition(shown)[2]


def test_one_kind_never_erases_another(run, monkeypatch):
    found = lambda asked: [{"title": f"found for {asked['q']}"}]  # noqa: E731
    monkeypatch.setattr(search_engines, "search", found)
    work = lambda t: "Query: a\nQuery: b" if "search queries" in t else "x" * 30_000  # noqa: E731
    run(SEARCH, REASON, SEARCH, ANSWER, work=work)
    second = run.mains[3].partition("Doc 2: ")[2]
    assert "found for a" in second and "found for b" in second and "xxx" in run.mains[3]
    assert len(run.mains[3]) < 18_000


@pytest.mark.parametrize("experts, second", [({}, "two"), ({"answer-math-2": "three"}, "three")])
def test_slots_go_to_the_backends_of_the_table(experts, second, run):
    turns = call("enhance_reasoning", "reasoner-3"), call("answer", "answer-math-2")
    run(*turns, names=("one", "two", "three"), change=lambda p: replace(p, experts=experts))
    assert run.models == ["one", "three", "one", second]


def test_an_unknown_slot_of_the_table_is_refused_before_the_run(run):
    with pytest.raises(ConfigError, match="unknown slot 'answer-9'; one of reasoner-1"):
        run(change=lambda p: replace(p, experts={"answer-9": "small"}))


def test_an_answer_that_was_cut_off_is_none_and_the_next_turn_says_so(run):
    slots = lambda p: replace(p, experts={"answer-1": "two"})  # noqa: E731
    replies = iter([cut_off("Let me see. 17 % of")] * 2 + ["Answer: 7"])
    result = run(ANSWER, ANSWER, work=lambda _: next(replies), names=("one", "two"), change=slots)
    assert (result.answer, result.fallback) == ("7", False)
    assert "answer1" in run.mains[1] and "length limit" in run.mains[1]


def test_the_second_falls_back_to_the_strongest_slot_with_the_context(run):
    work = lambda t: "a clue" if "Do not answer" in t else f"Answer: {'a clue' in t}"  # noqa: E731
    result = run(REASON, "hm", "hm", work=work, names=("one", "two"))
    assert (result.answer, result.fallback, run.models[-1]) == ("True", True, "one")


@pytest.mark.parametrize("options, turns", [({}, 8), ({"rounds": 50}, 50)])
def test_after_the_last_turn_the_strongest_slot_answers(options, turns, run):
    result = run(*[REASON] * turns, names=("one", "two"), **options)
    assert (result.answer, result.fallback, len(run.mains)) == ("42", True, turns)
    assert run.models[-1] == "one" and result.ending.cause == "rounds"


def test_a_failed_expert_is_shown_and_the_fallback_skips_its_slot(run):
    replies = iter([REFUSED, "Answer: 7"])
    swapped = lambda p: replace(p, experts={"answer-1": "two", "answer-2": "one"})  # noqa: E731
    result = run(*["hm"] * 4, work=lambda _: next(replies), names=("one", "two"), change=swapped)
    assert (result.answer, run.models[2:]) == ("7", ["two", "one", "one", "one"])
    assert "answer1 failed" in run.mains[2] and "no tools here" in run.mains[2]


def test_garbage_to_the_last_round_is_named_as_the_cause(run):
    result = run(*["hm"] * 99, work=lambda _: "", rounds=3)
    assert (result.state, result.ending.cause) == ("stopped", "replies")
    assert "unusable: It holds no tool call" in result.ending.why


def test_all_files_are_read_first_however_few_may_run_at_once(run, tmp_path):
    (tmp_path / "other.png").write_bytes(CLOCK.read_bytes() + b"x")
    media, texts = [CLOCK, tmp_path / "other.png"], iter(["12:34", "56:78"])
    work = lambda t: next(texts) if "Look at the picture" in t else "Answer: 1"  # noqa: E731
    run(ANSWER, work=work, media=media, parallel=1)
    assert "clock.png: 12:34\nother.png: 56:78" in run.mains[0] and len(run.mains) == 1


# ---- calls in markup, and what reaches the next prompt -------------------------------------------------

FUNCTIONS = [
    "<function=search><parameter=model>search-1</parameter></function>",
    "<tool_call>\n<function=search>\n<parameter=model>\nsearch-1\n</parameter>\n</function>\n</tool_call>",
    '<function=search>{"model": "search-1"}</function>', '<function=search>{"model": "search-1"}',
    f"<think>or <function=answer><parameter=model>answer-1</think>{SEARCH}",
    "<function=browse></function><function=search><parameter=model>search-1</parameter></function>",
]  # fmt: skip


@pytest.mark.parametrize("reply", FUNCTIONS)
def test_a_function_in_markup_is_a_call(reply):
    assert read_call(reply)[:2] == ("search", "search-1")


def test_an_answer_between_its_tags_is_read(run):
    assert run(ANSWER, work="I think.\n<answer>\n42\n</answer>").answer == "42"


def test_the_query_of_a_call_reaches_the_expert(run, monkeypatch):
    monkeypatch.setattr(
        search_engines, "search", lambda asked: [{"title": f"found for {asked['q']}"}]
    )
    asked = SEARCH.replace(GIVEN, '{"model": "search-1", "query": "who built it"}')
    run(asked, SEARCH, ANSWER, work=lambda t: "Query: a" if "search queries" in t else "Answer: 1")
    assert ["who built it" in prompt for prompt in run.prompts] == [True, False, False]


def test_a_failed_search_is_not_a_document(run, monkeypatch):
    def found(asked):
        return [{"title": f"found for {asked['q']}"}] if asked["q"] == "good" else []

    monkeypatch.setattr(search_engines, "search", found)
    queries = iter(["Query: bad", "Query: bad\nQuery: good"])
    work = lambda t: next(queries) if "search queries" in t else "Answer: 1"  # noqa: E731
    run(SEARCH, SEARCH, ANSWER, work=work)
    assert "search1 failed" in run.mains[1] and "Doc 1" not in run.mains[1]
    document = run.mains[2].partition("Doc 1: ")[2].partition("search1 failed")[0]
    assert "found for good" in document and "bad" not in document and "Doc 2" not in run.mains[2]


@pytest.mark.parametrize(
    "older, newest, kept", [(9_000, 9_000, 7_000), (9_000, 15_500, 1_000), (9_000, 30_000, 1_000)]
)
def test_of_long_reasoning_the_newest_is_whole_and_the_older_is_cut(older, newest, kept, run):
    replies = iter(["x" * older, "y" * newest])
    work = lambda t: next(replies) if "Do not answer" in t else "Answer: 1"  # noqa: E731
    run(REASON, REASON, ANSWER, work=work)
    assert run.mains[2].count("x" * 100) == kept // 100
    assert run.mains[2].count("y" * 100) == min(newest, 16_000) // 100
