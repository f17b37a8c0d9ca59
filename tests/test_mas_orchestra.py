"""MAS-Orchestra end to end: one decision, a graph by dataflow, its agents, its replays."""

import threading

import pytest

from subagents.reasoning import answer_of, majority, queries_in
from tests.methods import CLOCK, runs
from tests.scripted import THINKING, Raw, agent, cut_off, edge
from tests.test_mas_xml import low

DIAMOND = (
    THINKING + agent("A", input="first part") + agent("B", input="second part")
    + agent("C", input="join ${A} and ${B}") + edge("A", "C", "B", "C")
)  # fmt: skip
COT, DEBATE = THINKING + agent(), THINKING + agent(name="DebateAgent", roles='["P", "Q"]')
REFLEXION, SAMPLES = (THINKING + agent(name=name) for name in ("ReflexionAgent", "SCAgent"))
REFUSED = Raw(400, {"error": {"message": "no more"}})


run = runs("mas-orchestra")


# ---- the graph -----------------------------------------------------------------------------------


def test_a_graph_runs_and_its_sink_answers(run):
    def work(text):
        return "Answer: joined" if "join" in text else f"so\nAnswer: {text.split()[0].upper()}"

    result = run(DIAMOND, work=work)
    assert (result.answer, result.fallback, result.rounds, result.calls) == ("joined", False, 1, 4)
    assert run.prompts[-1].startswith("join FIRST and SECOND")


def test_what_an_answer_contains_is_not_expanded_again(run):
    work = lambda t: "Answer: " + ("${B}" if "first" in t else t.split("\n")[0])  # noqa: E731
    assert run(DIAMOND, work=work).answer == "join ${B} and second part"


def test_a_node_that_fails_fails_alone_and_its_dependants_see_the_error(run):
    work = lambda text: REFUSED if text.startswith("first") else "Answer: here"  # noqa: E731
    assert run(DIAMOND, work=work).answer == "here"
    assert "A failed and has no answer" in run.prompts[-1] and "no more" in run.prompts[-1]


def test_a_sink_that_fails_leaves_the_best_supported_answer(run):
    result = run(DIAMOND, work=lambda text: REFUSED if "join" in text else "Answer: part")
    assert (result.answer, result.fallback) == ("part", True)


def test_a_node_starts_when_its_last_need_has_ended(run):
    """The slow node waits for one that needs only the quick one."""
    graph = (
        THINKING + agent("slow", input="slow") + agent("quick", input="quick")
        + agent("after", input="after ${quick}") + agent("end", input="end ${slow} ${after}")
        + edge("quick", "after", "slow", "end", "after", "end")
    )  # fmt: skip
    started = threading.Event()

    def work(text):
        if text.startswith("after"):
            started.set()
        return f"Answer: {started.wait(10) if text.startswith('slow') else 'x'}"

    run(graph, work=work)
    assert run.prompts[-1].startswith("end True x")


def test_every_start_reads_each_file_under_its_own_name(run, tmp_path):
    (tmp_path / "xclock.png").write_bytes(CLOCK[1].read_bytes() + b"x")
    media = [("image", tmp_path / "xclock.png"), CLOCK]
    run(DIAMOND, work=lambda t: "12:34" if t.startswith("Look at") else "Answer: 4", media=media)
    starts = [t for t in run.prompts if " part\n" in t]
    assert len(starts) == 2
    assert all("xclock.png: 12:34\nclock.png: 12:34" in t for t in starts)


@pytest.mark.parametrize("bad, told", [
    (agent("A", "Nobody"), "there is no agent 'Nobody'"),
    (cut_off(DIAMOND[:-40]), "cut off at its length limit"),
])  # fmt: skip
def test_a_broken_graph_is_told_back_once(bad, told, run):
    result = run(bad, DIAMOND)
    assert (result.answer, result.fallback, len(run.mains)) == ("42", False, 2)
    assert told in run.mains[1]


def test_the_second_broken_graph_falls_back_to_one_agent(run):
    result = run("no", "xml", work=lambda text: "Answer: alone")
    assert (result.answer, result.fallback, result.calls) == ("alone", True, 3)
    assert run.prompts[0].startswith("What is it?")


def test_a_low_degree_may_answer_directly(run):
    result = run("<answer>42</answer>", dom="low")
    assert (result.answer, result.fallback, result.calls) == ("42", False, 1)


def test_a_direct_answer_about_files_that_nobody_has_seen_is_told_back(run):
    work = lambda text: "12:34" if text.startswith("Look at") else "Answer: 43"  # noqa: E731
    result = run("<answer>42</answer>", low(), work=work, media=[CLOCK], dom="low")
    assert (result.answer, result.fallback) == ("43", False)
    assert "Nobody has looked at the files" in run.mains[1]


# ---- its agents ----------------------------------------------------------------------------------


@pytest.mark.parametrize("graph, verdict, calls", [
    (COT, "", 1), (SAMPLES, "", 5), (DEBATE, "", 11), (REFLEXION, "", 11), (REFLEXION, "correct", 2),
])  # fmt: skip
def test_an_agent_makes_as_many_calls_as_the_paper_says(graph, verdict, calls, run):
    work = lambda t: f"Answer: {verdict if 'Check the attempt' in t else 7}"  # noqa: E731
    result = run(graph, work=work)
    assert (result.answer, result.calls) == ("7", 1 + calls)


CUT = cut_off("First we compute\n7")


@pytest.mark.parametrize("samples, answer", [
    (["4", "Answer: 5", "five", "Answer: 5", "Answer: 5"], "5"), ([CUT] * 3 + ["8"] * 2, "8"),
    (["<think>no</think>"] * 3 + ["7"] * 2, "7"), ([REFUSED] * 4 + ["1"], "1"), ([CUT] * 5, ""),
])  # fmt: skip
def test_the_majority_of_whole_samples_counts(samples, answer, run):
    replies = iter(samples)
    result = run(SAMPLES, work=lambda _: next(replies))
    assert (result.answer, result.fallback) == (answer, not answer)


def test_the_majority_is_of_normalised_answers_and_a_tie_goes_to_the_first():
    assert majority(["b", "A", " a. ", "B"]) == "b"


@pytest.mark.parametrize("graph, step", [
    (REFLEXION, "Check the attempt"), (REFLEXION, "Try again"),
    (DEBATE, "Decide:"), (DEBATE, "the last one said 7"),
])  # fmt: skip
def test_what_was_paid_for_is_kept_when_a_later_call_fails(graph, step, run):
    def work(text):
        said = "Answer: wrong" if "Check the attempt" in text else "the last one said 7\nAnswer: 7"
        return REFUSED if step in text else said

    result = run(graph, work=work)
    (z,) = [e for e in result.events if e["event"] == "result"]
    assert (z["status"], z["answer"], result.fallback) == ("partial", "7", True)
    assert "no more" in z["error"]


def test_a_debater_sees_what_the_others_said_last(run):
    run(DEBATE, work=lambda t: f"{'P' if 'You are P' in t else 'Q'} speaks\nAnswer: x")
    second_of_p = [t for t in run.prompts if "You are P" in t][1]
    assert "Q speaks" in second_of_p and "P speaks" not in second_of_p


@pytest.mark.parametrize("reply, answer", [
    ("thinking\nAnswer: 42", "42"), ("**Answer:** 42**", "42"), ("42\nAnswer:", "42"),
    ("Answer: 1\nno\nAnswer: 2\n3", "2\n3"), ("<think>Answer: 1</think>\nso\n2", "2"), ("Answer: **", ""),
])  # fmt: skip
def test_an_answer_is_the_text_behind_the_last_answer(reply, answer):
    assert answer_of(reply) == answer


@pytest.mark.parametrize("reply", [
    "1. Query: alpha\n2. Query: beta", "So:\n- **Query 1:** alpha\n- **Query 2:** `beta`",
    "<think>Query: no</think>\nQuery = alpha\n 2) query:beta",
])  # fmt: skip
def test_queries_are_read_numbered_or_not(reply):
    assert queries_in(reply) == ["alpha", "beta"]
