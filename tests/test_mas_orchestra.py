"""MAS-Orchestra end to end: one decision, a graph by dataflow, its agents, its replays."""

from __future__ import annotations

import json
import time

import pytest

from orchestra import trajectory
from orchestra.run_folder import Options
from orchestra.vocabulary import Price
from orchestra_min import orchestrate, replay, resume
from orchestrators.mas_xml import MAX_ROLES
from subagents.asking import MAX_THREADS
from subagents.reasoning import answer_of, majority, queries_in
from tests.conftest import ROOT, pool_at
from tests.scripted import Raw, cut_off, last_text
from tests.test_mas_xml import agent, edge, low

CLOCK = ROOT / "fixtures" / "media" / "clock.png"
DIAMOND = (
    agent("A", input="first part") + agent("B", input="second part")
    + agent("C", input="join ${A} and ${B}") + edge("A", "C", "B", "C")
)  # fmt: skip


def designing(*replies, work=lambda text: "Answer: done"):
    """The main agent's replies in order; every other call is `work` of its prompt."""
    queue = iter(replies)

    def respond(request):
        main = request["messages"][0]["role"] == "system"
        return next(queue) if main else work(last_text(request))

    return respond


def run(endpoint, tmp_path, *replies, work=lambda text: "Answer: done", delay_s=0.0, **options):
    fields = options.pop("fields", {})
    media = options.pop("media", ())
    server = endpoint(designing(*replies, work=work), delay_s=delay_s)
    options = Options(method="mas-orchestra", **options)
    pool = pool_at(server.url, **fields)
    return orchestrate("What is it?", media, pool, options, tmp_path / "run"), server


def told(server):
    return [last_text(r) for r in server.requests if r["messages"][0]["role"] == "user"]


def test_a_graph_runs_and_its_sink_answers(endpoint, tmp_path):
    def work(text):
        return "Answer: joined" if "join" in text else f"so\nAnswer: {text.split()[0].upper()}"

    result, server = run(endpoint, tmp_path, DIAMOND, work=work)
    assert (result.answer, result.fallback, result.rounds, result.calls) == ("joined", False, 1, 4)
    assert told(server)[-1].startswith("join FIRST and SECOND")


def test_a_graph_cut_off_at_the_length_limit_is_told_as_cut(endpoint, tmp_path):
    result, server = run(endpoint, tmp_path, cut_off(DIAMOND[:-40]), DIAMOND)
    assert "cut off at its length limit" in last_text(server.requests[1])
    assert not result.fallback and replay(tmp_path / "run").answer == result.answer


def test_what_an_answer_contains_is_not_expanded_again(endpoint, tmp_path):
    def work(text):
        return "Answer: " + ("${B}" if "first" in text else text.split("\n")[0])

    result, _ = run(endpoint, tmp_path, DIAMOND, work=work)
    assert result.answer == "join ${B} and second part"


def test_a_node_that_fails_fails_alone_and_its_dependants_see_the_error(endpoint, tmp_path):
    def work(text):
        refuse = Raw(400, {"error": {"message": "not this one"}})
        return refuse if text.startswith("first") else "Answer: still here"

    result, server = run(endpoint, tmp_path, DIAMOND, work=work)
    assert result.answer == "still here"
    assert "A failed and has no answer" in told(server)[-1] and "not this one" in told(server)[-1]


def test_a_node_starts_when_its_last_need_has_ended(endpoint, tmp_path):
    graph = (
        agent("slow", input="slow") + agent("quick", input="quick")
        + agent("after", input="after ${quick}") + agent("end", input="end ${slow} ${after}")
        + edge("quick", "after", "slow", "end", "after", "end")
    )  # fmt: skip
    heard = []

    def work(text):
        heard.append(text.split()[0])
        time.sleep(0.4 if text.startswith("slow") else 0)
        heard.append("ended " + text.split()[0])
        return "Answer: x"

    run(endpoint, tmp_path, graph, work=work)
    assert heard.index("after") < heard.index("ended slow") < heard.index("end")


def test_an_empty_input_is_the_question(endpoint, tmp_path):
    _, server = run(endpoint, tmp_path, agent())
    assert told(server)[0].startswith("What is it?")


def test_files_are_looked_at_first_and_every_start_reads_them(endpoint, tmp_path):
    def work(text):
        return "12:34" if text.startswith("Look at the picture") else "Answer: 42"

    result, server = run(endpoint, tmp_path, DIAMOND, work=work, media=[("image", CLOCK)])
    starts = [t for t in told(server) if " part" in t]
    assert result.answer == "42" and all("clock.png: 12:34" in t for t in starts)
    assert replay(tmp_path / "run").answer == "42"


def test_each_file_is_looked_at_under_its_own_name(endpoint, tmp_path):
    other = tmp_path / "xclock.png"
    other.write_bytes(CLOCK.read_bytes() + b"x")
    work = lambda text: "12:34" if text.startswith("Look at") else "Answer: 42"  # noqa: E731
    media = [("image", other), ("image", CLOCK)]
    _, server = run(endpoint, tmp_path, agent(), work=work, media=media)
    assert "xclock.png: 12:34\nclock.png: 12:34" in told(server)[-1]
    pictures = {str(r) for r in server.requests if "image_url" in str(r)}
    assert len(pictures) == 2


def test_an_interrupted_graph_goes_on_and_pays_only_for_what_is_missing(endpoint, tmp_path):
    _, server = run(endpoint, tmp_path, DIAMOND, DIAMOND)
    tape = tmp_path / "run" / "tape.jsonl"
    *kept, _ = tape.read_text().splitlines(keepends=True)
    tape.write_text("".join(kept))
    server.requests.clear()
    assert resume(tmp_path / "run").answer == "done" and len(server.requests) == 1
    assert replay(tmp_path / "run").answer == "done"


def test_a_broken_graph_is_told_back_once(endpoint, tmp_path):
    result, server = run(endpoint, tmp_path, agent("A", "Nobody"), DIAMOND)
    assert (result.answer, result.fallback) == ("done", False)
    mains = [last_text(r) for r in server.requests if r["messages"][0]["role"] == "system"]
    assert "there is no agent 'Nobody'" in mains[1] and len(mains) == 2


def test_the_second_broken_graph_falls_back_to_one_agent(endpoint, tmp_path):
    result, server = run(endpoint, tmp_path, "no", "xml", work=lambda text: "Answer: alone")
    assert (result.answer, result.fallback, result.calls) == ("alone", True, 3)
    assert told(server)[0].startswith("What is it?")


def test_a_sink_that_fails_leaves_the_best_supported_answer(endpoint, tmp_path):
    def work(text):
        return Raw(400, {"error": {"message": "no"}}) if "join" in text else "Answer: part"

    result, _ = run(endpoint, tmp_path, DIAMOND, work=work)
    assert (result.answer, result.fallback) == ("part", True)


def test_a_low_degree_may_answer_directly(endpoint, tmp_path):
    result, server = run(endpoint, tmp_path, "<answer>42</answer>", dom="low")
    assert (result.answer, result.fallback, result.calls) == ("42", False, 1)
    assert "You decide who answers" in server.requests[0]["messages"][0]["content"]


def test_a_direct_answer_about_files_that_nobody_has_seen_is_told_back(endpoint, tmp_path):
    work = lambda text: "12:34" if text.startswith("Look at") else "Answer: 43"  # noqa: E731
    turns = ("<answer>42</answer>", low())
    options = {"work": work, "media": [("image", CLOCK)], "dom": "low"}
    result, server = run(endpoint, tmp_path, *turns, **options)
    assert (result.answer, result.fallback) == ("43", False)
    assert "Nobody has looked at the files" in last_text(server.requests[1])


@pytest.mark.parametrize(
    ("name", "calls"),
    [("CoTAgent", 1), ("SCAgent", 5), ("DebateAgent", 11), ("ReflexionAgent", 11)],
)
def test_an_agent_asks_as_often_as_the_paper_says(name, calls, endpoint, tmp_path):
    roles = '["P", "Q"]' if name == "DebateAgent" else ""
    work = lambda text: "Answer: wrong, look again"  # noqa: E731
    result, _ = run(endpoint, tmp_path, agent("A", name, roles=roles), work=work)
    assert result.calls == 1 + calls
    assert replay(tmp_path / "run").answer == result.answer


def test_self_consistency_takes_the_majority(endpoint, tmp_path):
    answers = iter(["4", "5.", "five", "5", "5"])
    reply = low(name="SCAgent")
    work = lambda _: f"Answer: {next(answers)}"  # noqa: E731
    result, _ = run(endpoint, tmp_path, reply, work=work, dom="low")
    assert result.answer in ("5", "5.")
    assert majority(["b", "A", " a. ", "B"]) == "b"


@pytest.mark.parametrize("bad", ["<think>I ran out</think>", cut_off("First we compute\nthis")])
def test_an_empty_or_cut_off_sample_has_no_vote(bad, endpoint, tmp_path):
    replies = iter([bad] * 3)
    work = lambda _: next(replies, "Answer: 7")  # noqa: E731
    result, _ = run(endpoint, tmp_path, agent(name="SCAgent"), work=work)
    assert (result.answer, result.fallback, result.calls) == ("7", False, 6)


def test_samples_that_are_all_cut_off_are_a_failure(endpoint, tmp_path):
    work = lambda _: cut_off("First we compute\nthis")  # noqa: E731
    result, _ = run(endpoint, tmp_path, agent(name="SCAgent"), work=work)
    assert (result.answer, result.fallback) == ("", True)


def result_of(run):
    (row,) = [e for e in run.events if e["event"] == "result"]
    return row["status"], row["answer"], row["error"]


REFUSED = Raw(400, {"error": {"message": "no more"}})


@pytest.mark.parametrize(("name", "step"), [
    ("ReflexionAgent", "Check the attempt"),
    ("ReflexionAgent", "Try again"),
    ("DebateAgent", "Decide:"),
    ("DebateAgent", "the last one said 7"),
])  # fmt: skip
def test_what_was_paid_for_is_kept_when_a_later_call_fails(name, step, endpoint, tmp_path):
    def work(text):
        if step in text:
            return REFUSED
        return "Answer: wrong" if "Check the attempt" in text else "the last one said 7\nAnswer: 7"

    graph = agent(name=name, roles='["P", "Q"]' if name == "DebateAgent" else "")
    result, _ = run(endpoint, tmp_path, graph, work=work)
    status, answer, error = result_of(result)
    assert (status, answer, result.fallback) == ("partial", "7", False) and "no more" in error
    assert replay(tmp_path / "run").answer == "7"


def test_an_empty_new_attempt_takes_no_answer_away(endpoint, tmp_path):
    replies = iter(["Answer: 7", "Answer: wrong", "<think>hm</think>"])
    work = lambda _: next(replies, "Answer: correct")  # noqa: E731
    result, _ = run(endpoint, tmp_path, agent(name="ReflexionAgent"), work=work)
    assert result.answer == "7"


def test_the_threads_of_a_fan_out_are_bounded(endpoint, tmp_path):
    most = []

    def work(text):
        most.append(len(server.in_flight))
        return "Answer: 1"

    roles = json.dumps([f"r{n}" for n in range(MAX_ROLES)])
    replies = iter([agent(name="DebateAgent", roles=roles)])
    server = endpoint(designing(*replies, work=work), delay_s=0.02)
    options = Options(method="mas-orchestra")
    orchestrate("What is it?", (), pool_at(server.url), options, tmp_path / "run")
    assert MAX_ROLES > MAX_THREADS >= max(most)


def test_a_debater_sees_what_the_others_said_last(endpoint, tmp_path):
    def work(text):
        return f"{'P' if 'You are P' in text else 'Q'} speaks\nAnswer: x"

    _, server = run(endpoint, tmp_path, agent(name="DebateAgent", roles='["P", "Q"]'), work=work)
    second_of_p = [t for t in told(server) if "You are P" in t][1]
    assert "Q speaks" in second_of_p and "P speaks" not in second_of_p


def test_reflexion_stops_when_the_critic_says_correct(endpoint, tmp_path):
    work = lambda text: "Answer: correct" if "# An attempt" in text else "Answer: 7"  # noqa: E731
    result, _ = run(endpoint, tmp_path, agent(name="ReflexionAgent"), work=work)
    assert (result.answer, result.calls) == ("7", 3)


def test_a_search_without_an_engine_goes_on_with_a_clear_observation(endpoint, tmp_path):
    def work(text):
        return "Query: x" if "one search query" in text and "Search: x" not in text else "Answer: 3"

    result, server = run(endpoint, tmp_path, agent(name="SearchAgent"), work=work)
    assert result.answer == "3" and "no search engine configured" in told(server)[-1]


def test_one_sample_that_fails_is_left_out(endpoint, tmp_path):
    bad = iter([Raw(400, {"error": {"message": "no"}})])
    result, _ = run(
        endpoint, tmp_path, agent(name="SCAgent"), work=lambda _: next(bad, "Answer: 1")
    )
    assert (result.answer, result.fallback) == ("1", False)


def test_the_budget_is_split_before_a_fan_out(endpoint, tmp_path):
    price = {"price": Price(10.0, 100.0, 10.0)}
    result, server = run(endpoint, tmp_path, agent(name="SCAgent"), budget_usd=0.5, fields=price)
    assert result.cost_usd is not None and 0 < result.cost_usd <= 0.5
    assert len({r["max_tokens"] for r in server.requests[1:]}) == 1  # equal shares


def test_replays_under_any_number_of_threads_have_the_same_content(endpoint, tmp_path):
    graph = (
        agent("A", "SCAgent", "one") + agent("B", "DebateAgent", "two", roles='["P", "Q"]')
        + agent("C", "ReflexionAgent", "${A} ${B}") + edge("A", "C", "B", "C")
    )  # fmt: skip
    numbers = iter(range(1000))
    result, _ = run(endpoint, tmp_path, graph, work=lambda _: f"Answer: {next(numbers)}")
    for threads in (1, 5, 17):
        again = replay(tmp_path / "run", parallel=threads)
        assert trajectory.content(again.events) == trajectory.content(result.events)


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("thinking\nAnswer: 42", "42"),
        ("**Answer:** 42**", "42"),
        ("Final answer: 4\n2", "4\n2"),
        ("Answer: 1\nno\nAnswer: 2", "2"),
        ("just 42", "just 42"),
        ("<think>Answer: 1</think>\nAnswer: 2", "2"),
        ("", ""),
        ("42\nAnswer:", "42"),
        ("Answer: 41\nso\nAnswer: **", "41\nso"),
        ("Answer: **", ""),
    ],
)
def test_an_answer_is_what_stands_behind_the_last_answer(reply, answer):
    assert answer_of(reply) == answer


@pytest.mark.parametrize(
    "reply",
    [
        "Query: alpha\nQuery: beta",
        "1. Query: alpha\n2. Query: beta",
        "Query 1: alpha\nQuery 2: beta",
        "So:\n- **Query 1:** alpha\n- **Query 2:** `beta`",
        "<think>Query: no</think>\nQuery = alpha\n 2) query:beta",
    ],
)
def test_queries_are_read_numbered_or_not(reply):
    assert queries_in(reply) == ["alpha", "beta"]


def test_a_long_line_without_a_colon_is_no_slow_query():
    started = time.perf_counter()
    assert queries_in("query" + " 1" + " ." * 100_000 + "\n" * 100_000) == []
    assert time.perf_counter() - started < 1.0
