"""MAS-Orchestra end to end: one decision, a graph by dataflow, its agents, its replays."""

import threading
from itertools import count

import pytest

from orchestra.methods.answers import answer_of
from orchestra.methods.reasoning import queries_in
from tests import golden
from tests.program import CLOCK, runs
from tests.scripted import CHAIN, JOIN, THINKING, Raw, agent, cut_off, edge, thought
from tests.test_mas_xml import low

DIAMOND = thought(agent("A", input="first part"), agent("B", input="second part"), JOIN)
COT, DEBATE = THINKING + agent(), THINKING + agent(name="DebateAgent", roles='["P", "Q"]')
REFLEXION, SAMPLES = (THINKING + agent(name=name) for name in ("ReflexionAgent", "SCAgent"))
REFUSED = Raw(401, {"error": {"message": "no more"}})


run = runs("mas-orchestra")


# ---- the graph -----------------------------------------------------------------------------------


def test_a_graph_runs_and_its_sink_answers(run):
    result = run(DIAMOND, work=lambda t: "Answer: joined" if "join" in t else "hm\nAnswer: ${B}")
    assert (result.answer, result.fallback, result.rounds, result.calls) == ("joined", False, 1, 4)
    whole = "hm\nAnswer: ${B}"  # thinking and answer; what it contains is not expanded again
    assert f"join {whole} and {whole}\n" in run.prompts[-1]


def test_every_agent_reads_the_question_and_an_empty_input_is_the_question(run):
    run(CHAIN.replace(">first<", '>""<'), question="Is ${A} it?")
    start, end = run.prompts
    assert start.startswith("# The task\nIs ${A} it?\n\n# Now")
    assert end.startswith("# The original task, for context\nIs ${A} it?\n\n# Your sub-task:")


def test_a_node_that_fails_fails_alone_and_its_dependants_see_the_error(run):
    work = lambda text: REFUSED if "first part" in text else "Answer: here"  # noqa: E731
    assert run(DIAMOND, work=work).answer == "here"
    assert "A failed and has no answer" in run.prompts[-1] and "no more" in run.prompts[-1]


def test_a_sink_that_fails_leaves_the_best_supported_answer(run):
    result = run(DIAMOND, work=lambda text: REFUSED if "join" in text else "Answer: part")
    assert (result.answer, result.fallback) == ("part", True)


def test_a_node_starts_when_its_last_need_has_ended(run):
    """The slow node waits for one that needs only the quick one."""
    inputs = "slow", "quick", "after ${quick}", "end ${slow} ${after}"
    agents = (agent(text.split()[0], input=text) for text in inputs)
    graph = thought(*agents, edge("quick", "after", "slow", "end", "after", "end"))
    started = threading.Event()

    def work(text):
        if "\nafter" in text:
            started.set()
        return str(started.wait(10) if "\nslow" in text else "x")

    run(graph, work=work)
    assert "end True x" in run.prompts[-1]


def test_every_agent_reads_each_file_under_its_own_name(run, tmp_path):
    (tmp_path / "xclock.png").write_bytes(CLOCK.read_bytes() + b"x")
    media = [tmp_path / "xclock.png", CLOCK]
    run(DIAMOND, work=lambda t: "12:34" if t.startswith("Look at") else "Answer: 4", media=media)
    assert sum("xclock.png: 12:34\nclock.png: 12:34" in t for t in run.prompts) == 3


def test_the_error_of_a_broken_graph_is_shown_once(run):
    result = run(cut_off(DIAMOND[:-40]), DIAMOND)
    assert (result.answer, result.fallback, len(run.mains)) == ("42", False, 2)
    assert "cut off at its length limit" in run.mains[1]


def test_the_second_broken_graph_falls_back_to_one_agent(run):
    result = run(agent("A", "Nobody"), "<edge></edge>")
    assert (result.answer, result.fallback, result.calls) == ("42", True, 3)
    assert "there is no agent 'Nobody'" in run.mains[1]
    assert run.prompts[0].startswith("# The task\nWhat is it?")


def test_a_low_degree_may_answer_directly_but_not_about_unseen_files(run):
    result = run("<answer>42</answer>", dom="low")
    assert (result.answer, result.fallback, result.calls) == ("42", False, 1)
    result = run("<answer>42</answer>", low(), media=[CLOCK], dom="low", out="files")
    assert not result.fallback and "Nobody has looked at the files" in run.mains[1]


def test_a_plain_answer_that_was_cut_off_or_has_seen_no_file_is_refused(run):
    assert run(cut_off("The answer is"), "42").answer == "42"
    assert len(run.mains) == 2
    assert run("42", CHAIN, media=[CLOCK], out="files").fallback is False
    assert len(run.mains) == 2


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
    (["b", "A", " a. ", "B", REFUSED], "b"),
])  # fmt: skip
def test_the_answer_of_most_complete_samples_wins(samples, answer, run, monkeypatch):
    """Of normalised answers; a tie goes to the first."""
    golden.in_order(monkeypatch)
    replies = iter(samples)
    result = run(SAMPLES, work=lambda _: next(replies))
    assert (result.answer, result.state == "answered") == (answer, bool(answer))


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


@pytest.mark.parametrize(("of_the_pool", "sent"), [(None, 0.5), (0.0, 0.5), (0.7, 0.7)])
def test_samples_differ_also_where_the_endpoint_samples_at_0(of_the_pool, sent, run):
    run(SAMPLES, fields={"options": {"temperature": of_the_pool}})
    assert [r["temperature"] for r in run.requests] == [of_the_pool] + [sent] * 5


@pytest.fixture
def read(monkeypatch):
    """A web in which each search finds two pages; the pages that were read."""
    found, read = [{"link": f"https://{n}.example/", "text": "a snippet"} for n in (1, 2)], []
    monkeypatch.setattr("orchestra.tools.search_engines.search", lambda asked: found)
    monkeypatch.setattr(
        "orchestra.tools.pages.page_text", lambda url, *_: read.append(url) or "a page"
    )
    return read


def test_a_page_is_read_after_each_search(run, read):
    """The one that the model named, else the first new one."""
    open_one, enough = "Open: https://3.example/x_(y).", "<think>Query: no</think>Enough"
    thoughts = iter(["Query: a", "Query: b", open_one, enough])
    work = lambda t: next(thoughts) if t.endswith("Enough") else "Answer: 7"  # noqa: E731
    assert run(THINKING + agent(name="SearchAgent"), work=work).answer == "7"
    assert read == ["https://1.example/", "https://2.example/", "https://3.example/x_(y)"]


def test_a_search_agent_thinks_at_most_five_times(run, read):
    work = lambda t: "Query: more" if t.endswith("Enough") else "Answer: 7"  # noqa: E731
    assert run(THINKING + agent(name="SearchAgent"), work=work).answer == "7"
    assert sum(text.endswith("Enough") for text in run.prompts) == 5


def test_each_kind_of_agent_sends_what_the_paper_says(run, read, monkeypatch):
    """tests/golden/mas-orchestra.md is written from the formats of arXiv 2601.14652, App. H."""
    golden.in_order(monkeypatch)
    monkeypatch.setattr("orchestra.methods.reasoning.DEBATE_ROUNDS", 2)
    graph = thought(
        agent("A", input="think"), agent("B", "SCAgent", "sample ${A}"),
        agent("C", "DebateAgent", "debate ${B}", roles="['P', \"Q\"]"),
        agent("D", "ReflexionAgent", "reflect on ${C}"), agent("E", "SearchAgent", "look up ${D}"),
        edge("A", "B", "B", "C", "C", "D", "D", "E"),
    )  # fmt: skip
    numbers, verdicts = count(1), iter(["wrong, a", "wrong, b", "correct"])
    thoughts = iter(["Something is missing.\nQuery: a query", "Enough"])

    def work(text):
        if "Check the attempt" in text:
            return f"Answer: {next(verdicts)}"
        return next(thoughts) if text.endswith("Enough") else f"thought {next(numbers)}\nAnswer: 7"

    assert run(graph, work=work, parallel=1).answer == "7"
    golden.check("mas-orchestra", run.requests)


@pytest.mark.parametrize("read, reply, found", [
    (answer_of, "thinking\nAnswer: 42", "42"), (answer_of, "**Answer:** 42**", "42"), (answer_of, "42\nAnswer:", "42"),
    (answer_of, "Answer: 1\nno\nAnswer: 2\n3", "2\n3"), (answer_of, "<think>Answer: 1</think>\nso\n2", "2"),
    (answer_of, "Answer: **", ""), (queries_in, "1. Query: alpha\n2. Query: beta", ["alpha", "beta"]),
    (queries_in, "So:\n- **Query 1:** alpha\n- **Query 2:** `beta`", ["alpha", "beta"]),
    (queries_in, "<think>Query: no</think>\nQuery = alpha\n 2) query:beta", ["alpha", "beta"]),
])  # fmt: skip
def test_answers_and_queries_are_read_in_every_form(read, reply, found):
    assert read(reply) == found
