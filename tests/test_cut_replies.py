"""A reply that was cut off at its length limit is asked once for its answer alone. Where the answer of a whole reply is."""

import json

import pytest

from orchestra.kernel.tape import exchanges
from orchestra.methods.answers import answer_of
from tests.conftest import Price, needs_sandbox
from tests.program import replay, resume, runs
from tests.scripted import THINKING, Raw, agent, completion, cut_off, last_text
from tests.test_budget import bill_usd, greedy
from tests.test_toolorchestra import ANSWER, REASON, SEARCH

COT, SAMPLES = THINKING + agent(), THINKING + agent(name="SCAgent")
DEBATE = THINKING + agent(name="DebateAgent", roles='["P", "Q"]')
REFLEXION = THINKING + agent(name="ReflexionAgent")
LONG = "First 17 % of 2,340.\n# Problem\nWhat"
REFUSED = Raw(401, {"error": {"message": "no more"}})

run = runs("mas-orchestra")


def is_again(text):
    return "Do not start again" in text


def cut_then(answer, first=LONG):
    """A model whose replies are cut, and which states this when it is asked again."""
    return lambda text: answer if is_again(text) else cut_off(first)


def result_of(run_):
    (z,) = [e for e in run_.events if e["event"] == "result"]
    return z


# ---- asked again ---------------------------------------------------------------------------------


def test_a_reply_that_was_cut_is_asked_once_for_its_answer_alone(run):
    result = run(COT, work=cut_then("Answer: 397.8"))
    assert (result.answer, result.fallback, result.calls) == ("397.8", False, 3)
    first, second = run.requests[1:]
    assert second["max_tokens"] == 256 and "max_tokens" not in first
    assert [m["role"] for m in second["messages"]] == ["user", "assistant", "user"]
    assert second["messages"][:2] == [*first["messages"], {"role": "assistant", "content": LONG}]
    places = [row.call for row in exchanges(run.folder / "tape.jsonl")]
    assert places == ["r1/main/a1", "r1/t1/s1", "r1/t1/s1/again"]
    assert result_of(result)["status"] == "done"


def test_what_follows_reads_the_reply_that_it_was_cut_and_the_answer(run):
    result = run(COT, work=cut_then("397.8"))
    summary = result_of(result)["summary"]
    assert summary.startswith(LONG) and summary.endswith("Answer: 397.8")
    assert "cut off here, at its length limit" in summary
    (step,) = [e for e in result.events if e["event"] == "step"]
    assert step["observation"].startswith(LONG) and step["observation"].endswith("397.8")


@pytest.mark.parametrize(
    "second", [cut_off("Let me think"), cut_off("Answer: 5"), "", "<think>5</think>"]
)
def test_a_reply_that_has_no_answer_the_second_time_has_none(run, second):
    """The first one is never used as if it were whole."""
    result = run(COT, work=cut_then(second, first="Answer: 4\nNo, wait"))
    assert (result.answer, result.calls) == ("", 3)
    z = result_of(result)
    assert (z["status"], z["answer"], z["cause"]) == ("partial", "", "replies")
    assert "length limit" in z["error"] and "It has no answer" in z["summary"]
    assert "length limit" in result.ending.why


def test_a_model_that_was_still_thinking_is_asked_with_its_prompt_alone(run):
    assert run(COT, work=cut_then("Answer: 7", first="")).answer == "7"
    (message,) = run.requests[-1]["messages"]
    assert message["content"].startswith("# The task\nWhat is it?") and is_again(message["content"])


def test_only_the_end_of_a_long_reply_is_sent_again(run):
    run(COT, work=cut_then("7", first="é" * 10_000 + " the end"))
    shown = run.requests[-1]["messages"][1]["content"]
    assert shown.endswith("é the end") and 3990 < len(shown.encode()) <= 4000


def test_samples_that_were_cut_vote_with_the_answer_that_they_then_give(run):
    result = run(SAMPLES, work=cut_then("Answer: 8"))
    assert (result.answer, result.calls) == ("8", 1 + 2 * 5)
    places = {row.call for row in exchanges(run.folder / "tape.jsonl")}
    assert {f"r1/t1/s1/p{n}/again" for n in range(1, 6)} < places


def test_debaters_read_that_a_statement_was_cut(run):
    def work(text):
        if "Decide:" in text:
            return "Answer: 9"
        return cut_then("Answer: 8", "I began")(text)

    assert run(DEBATE, work=work).answer == "9"
    assert (
        "I began\n[The reply was cut off here" in run.prompts[-1] and "Answer: 8" in run.prompts[-1]
    )


def test_an_attempt_without_an_answer_leaves_the_earlier_one(run):
    attempts = iter(["Answer: 4", *[cut_off("hm")] * 20])
    work = lambda t: "Answer: wrong, redo" if "Check the attempt" in t else next(attempts)  # noqa: E731
    result = run(REFLEXION, work=work)
    assert (result.answer, result_of(result)["status"]) == ("4", "done")


def test_a_critic_that_was_cut_is_asked_for_its_verdict(run):
    def work(text):
        return "Answer: 7" if text.endswith("<answer>") and not is_again(text) else critic(text)

    critic = cut_then("Answer: correct", "Step 1")
    result = run(REFLEXION, work=work)
    assert (result.answer, result.calls) == ("7", 4)


def test_a_second_call_that_fails_fails_the_sub_task_and_a_resume_makes_it(run):
    working = []
    work = lambda t: cut_off(LONG) if not is_again(t) else "Answer: 7" if working else REFUSED  # noqa: E731
    result = run(COT, work=work)
    z = result_of(result)
    assert (z["status"], result.answer) == ("failed", "") and "no more" in z["error"]
    working.append(True)
    before = len(run.requests)
    assert resume(run.folder).answer == "7"
    assert len(run.requests) == before + 1 and is_again(last_text(run.requests[-1]))
    assert replay(run.folder).answer == "7"


def test_a_resume_after_a_kill_makes_the_second_call_alone(run):
    run(COT, work=cut_then("Answer: 7"))
    tape = run.folder / "tape.jsonl"
    tape.write_text("".join(tape.read_text().splitlines(keepends=True)[:-1]))
    (run.folder / "trajectory.jsonl").unlink()
    before = len(run.requests)
    assert resume(run.folder).answer == "7" and len(run.requests) == before + 1


# ---- its money -----------------------------------------------------------------------------------


PRICE = Price(10.0, 100.0, 10.0)


def uses_all(graph):
    """An endpoint that cuts each first reply and uses every token that it may."""

    def respond(request):
        if request["messages"][0]["role"] == "system":
            return completion(graph)
        if is_again(last_text(request)):
            return greedy(request, "Answer: 7")
        reply = greedy(request, "hm " * 2000)
        reply["choices"][0]["finish_reason"] = "length"
        return reply

    return respond


@pytest.mark.parametrize(
    ("graph", "budget_usd"), [(COT, 0.3), (COT, 1.0), (SAMPLES, 1.0), (SAMPLES, 3.0)]
)
def test_the_second_call_is_reserved_in_the_budget(run, graph, budget_usd):
    """An endpoint that uses every token it may leaves enough for the second call."""
    result = run(respond=uses_all(graph), price=PRICE, budget_usd=budget_usd)
    assert (result.answer, result.fallback) == ("7", False)
    worked = [r for r in run.requests if not run.is_main(r)]
    assert sum(is_again(last_text(r)) for r in worked) == len(worked) / 2
    assert bill_usd(worked, PRICE) <= budget_usd


def test_a_purse_that_cannot_pay_for_both_calls_pays_for_the_first(run):
    """A reply that is whole needs no second call."""
    result = run(COT, work="Answer: 7", price=PRICE, budget_usd=0.09)
    assert result.answer == "7"
    assert run.requests[-1]["max_tokens"] < 1000


def test_a_second_call_that_cannot_be_paid_is_not_made_and_that_is_said(run):
    """The reply that was cut is not the answer."""
    result = run(respond=uses_all(COT), price=PRICE, budget_usd=0.09)
    z = result_of(result)
    assert (result.answer, z["status"], z["cause"]) == (
        "",
        "failed",
        "budget",
    ) and "budget" in result.ending.why


# ---- experts -------------------------------------------------------------------------------------


def test_an_answer_expert_is_asked_again(run):
    result = run(ANSWER, work=cut_then("Answer: 397.8"), method="toolorchestra")
    assert (result.answer, result.fallback) == ("397.8", False)


@needs_sandbox
def test_a_reasoner_that_was_cut_states_its_result_or_a_short_program(run):
    program = "```python\nprint(3000 + 978)\n```"
    first = f"```python\nprint(1)\n```\nThen {LONG}"
    work = lambda t: "Answer: 3978" if "Solve" in t else cut_then(program, first)(t)  # noqa: E731
    run(REASON, ANSWER, work=work, method="toolorchestra")
    assert "\n3978\n" in run.mains[1] and LONG not in run.mains[1]
    run(
        REASON,
        ANSWER,
        work=lambda t: "Answer: 7" if "Solve" in t else cut_off(LONG),
        method="toolorchestra",
        out="twice",
    )
    assert "has no answer" in run.mains[1] and "was cut off here" in run.mains[1]


def test_a_searcher_that_was_cut_writes_its_queries_alone(run, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "orchestra.tools.search_engines.search",
        lambda a: asked.append(a["q"]) or [{"title": "found"}],
    )
    work = lambda t: "Answer: 7" if "Solve" in t else cut_then("Query: whole", "Query: hal")(t)  # noqa: E731
    run(SEARCH, ANSWER, work=work, method="toolorchestra")
    assert asked == ["whole"]
    run(
        SEARCH,
        ANSWER,
        work=lambda t: "Answer: 7" if "Solve" in t else cut_off("Query: hal"),
        method="toolorchestra",
        out="twice",
    )
    assert asked == ["whole"] and "length limit" in run.mains[1]


# ---- the answer of a whole reply -----------------------------------------------------------------

BOXED = r"""   \[
     2023 - 2013 = 0 \text{ days}
     \]

Therefore, the answer is:
\[
\boxed{0}
\]"""


@pytest.mark.parametrize(("reply", "answer"), [
    # 1. "Answer:", the last one that is not empty, before all others
    ("hm\nAnswer: 42", "42"), ("Answer: 1\nno\nAnswer: 2", "2"), ("**Final answer:** **42**", "42"), ("The answer is: 42", "42"), ("### Answer: `42`", "42"),
    ("Answer: 5\n\nThis is because of 6.", "5"), ("Answer:\n\n42", "42"), ("Answer: red\ngreen", "red\ngreen"), ("Answer: They are:\n\n1. red\n\n2. green", "They are:\n1. red\n2. green"),
    ("Answer: 42\nAnswer:", "42"), ("Answer: 42\nAnswer: <answer>", "42"), ("Answer: <answer>42</answer>", "42"), (r"Answer: \(\boxed{7}\)", "7"), ("Answer:\n\\[\n7\n\\]", "7"), ("Answer: $7$", "7"), ("Answer: $7", "$7"),
    ("\\boxed{6}\nAnswer: 5", "5"), ('{"answer": 6}\nAnswer: 5', "5"), ("We answer: yes\n12", "12"),
    # 2. the last box, with nested braces
    (BOXED, "0"), (r"So \(14 \times 14 = 196\), and it is \(\boxed{196}\).", "196"), (r"\boxed{1} no, \boxed{2}", "2"), (r"\boxed{\text{Paris}}", "Paris"), (r"\boxed{\frac{1}{2}}", "1/2"), (r"\fbox{7}", "7"),
    (r"\boxed{1{,}234\,\text{km}}", "1,234 km"), (r"\boxed{50\%}", "50%"), (r"\boxed{\{1, 2\}}", r"\{1, 2\}"), (r"$x = \boxed {7}$", "7"), (r"\boxed{1} and \boxed{2", "1"), (r"\boxed{}" + "\n7", "7"), ('\\boxed{6}\n{"answer": 5}', "6"),
    # 3. JSON
    ('{"answer": "42"}', "42"), ('```json\n{"reasoning": "r", "answer": 42}\n```', "42"), ('{"answer": ["a", 2]}', "a, 2"), ('{"final_answer": true}', "true"), ("{'answer': '42'}", "42"),
    ('{"answer": 1} or {"answer": 2}', "2"), ('{"answer": null}\n7', "7"), ('{\n "answer": "42"\n}\nDone.', "42"), ('{"answer": 0}', "0"),
    # 4. the last line that is more than markup
    ("I think\n17", "17"), ("17\n```", "17"), ("17\n\\]", "17"), ("17\n\n---\n**", "17"), ("\\(17\\)", "17"), ("**Paris**", "Paris"), ("42\nAnswer:", "42"), ("x\n\\end{align*}", "x"), ("\u221e", "\u221e"), ("-5", "-5"),
    (f"{'Many words come first. ' * 20}It is 9 days.", "It is 9 days."), (f"{'One sentence ' * 30}.", f"{'One sentence ' * 30}."),
    # 5. a line that only announces an answer is none: then the last sentence that says what it is
    ("So the answer to the problem is `96`.\n\n# Now\nGive the answer on a last line:\nAnswer: <answer>", "96"), ("The answer is 5.\nThe answer of it is 6.\nso:", "6"), ("The answer is not clear\nso:", ""), ("The answer is  not clear\nso:", ""), ("it is:", ""),
    # thinking is none
    ("<think>Answer: 1</think>\nso\n2", "2"), ("<think>\\boxed{1}</think>2", "2"), ("<think>no</think>", ""), ("", ""), ("Answer: **", ""), ("\\[\n\\]", ""), ("```\n```", ""),
])  # fmt: skip
def test_the_answer_is_read_where_it_is(reply, answer):
    assert answer_of(reply) == answer


def test_no_recorded_reply_has_an_answer_that_is_only_markup(recorded_replies):
    for text in recorded_replies:
        assert any(c.isalnum() for c in answer_of(text)), text[-200:]


@pytest.fixture
def recorded_replies():
    """The whole replies of reasoning agents and experts in the recorded runs."""
    from tests.conftest import ROOT

    found = []
    for path in (ROOT / "fixtures").glob("**/runs/*/tape.jsonl"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if row.get("request", {}).get("kind") != "chat" or "answer" not in row:
                continue
            choice = row["answer"]["data"]["choices"][0]
            asked = str(row["request"]["messages"])
            if "on a last line:" in asked and choice["finish_reason"] == "stop":
                found.append(choice["message"]["content"])
    assert found
    return found
