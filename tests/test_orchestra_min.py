"""Algorithm 1 against a scripted endpoint: the loop, its mistakes, its money, its trajectory."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from orchestra import run_folder, trajectory
from orchestra.lines import read
from orchestra.replay import TapeMiss
from orchestra.run_folder import Options
from orchestra.vocabulary import EndpointError, Evidence, Price, State
from orchestra_min import orchestrate, replay, resume
from orchestrators.orchestra_o1 import OrchestraO1
from tests.conftest import ROOT, pool_at
from tests.scripted import Raw, act, complete, completion, delegate, finish, is_main, last_text
from tools import tools_for

CLOCK = ROOT / "fixtures" / "media" / "clock.png"


def scripted(*decisions, work=lambda request: finish("found it")):
    """Main-agent replies in order; every sub-agent does `work`."""
    queue = iter(decisions)
    return lambda request: next(queue) if is_main(request) else work(request)


def run(endpoint, tmp_path, respond, **options):
    server = endpoint(respond)
    names = options.pop("names", ("small",))
    fields = options.pop("fields", {})
    media = options.pop("media", ())
    pool = pool_at(server.url, *names, **fields)
    result = orchestrate("What is it?", media, pool, Options(**options), tmp_path / "run")
    return result, server


def main_prompts(server):
    return [last_text(r) for r in server.requests if is_main(r)]


def test_delegate_then_complete_answers(endpoint, tmp_path):
    result, server = run(endpoint, tmp_path, scripted(delegate("a", "b"), complete("42")))
    assert (result.answer, result.fallback, result.rounds, result.calls) == ("42", False, 2, 4)
    assert "=> found it" in main_prompts(server)[1]


def test_subtasks_of_a_round_run_side_by_side(endpoint, tmp_path):
    respond = scripted(delegate(*"abcdefgh"), complete("42"))
    server = endpoint(respond, delay_s=0.15)
    started = time.monotonic()
    orchestrate("?", pool=pool_at(server.url), out=tmp_path / "run")
    assert time.monotonic() - started < 0.15 * 3 * 1.8  # one after another: 10 calls


def test_results_reach_the_next_prompt_in_submission_order(endpoint, tmp_path):
    def work(request):
        time.sleep(0.2 if "slow one" in last_text(request) else 0)
        return finish("found it")

    respond = scripted(delegate("slow one", "quick one"), complete("42"), work=work)
    _, server = run(endpoint, tmp_path, respond)
    prompt = main_prompts(server)[1]
    assert prompt.index("slow one") < prompt.index("quick one")


def test_a_failed_subtask_reaches_the_next_decision_and_the_others_go_on(endpoint, tmp_path):
    def work(request):
        refuse = Raw(401, {"error": {"message": "who are you"}})
        return refuse if "bad one" in last_text(request) else finish("fine")

    respond = scripted(delegate("bad one", "good one"), complete("42"), work=work)
    result, server = run(endpoint, tmp_path, respond)
    assert result.answer == "42"
    assert "who are you" in main_prompts(server)[1] and "=> fine" in main_prompts(server)[1]


def test_a_need_waits_for_a_later_round(endpoint, tmp_path):
    first = {"task_instruction": "first", "id": "a", "tools": []}
    second = {"task_instruction": "second", "id": "b", "needs": ["a"], "tools": []}
    respond = scripted(delegate(first, second), delegate(), complete("42"))
    result, server = run(endpoint, tmp_path, respond)
    assert result.rounds == 3
    asked = [last_text(r) for r in server.requests if not is_main(r)]
    assert ["=> found it" in text for text in asked] == [False, True]  # the need's result is told
    assert "b (can run now)" in main_prompts(server)[1]


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ("no json at all", "holds no JSON object"),
        (delegate({"task_instruction": "a", "tools": ["Nothing"]}), "no tool 'Nothing'"),
        (delegate({"task_instruction": "a", "model": "gpt-9"}), "no model 'gpt-9'"),
        (delegate({"task_instruction": "a", "needs": ["z"]}), "no sub-task has that id"),
        (complete(""), '"answer" is empty'),
    ],
)
def test_a_mistake_is_told_and_can_be_mended_in_the_same_round(bad, told, endpoint, tmp_path):
    result, server = run(endpoint, tmp_path, scripted(bad, complete("42")))
    assert (result.answer, result.rounds) == ("42", 1)
    assert told in main_prompts(server)[1]


def test_three_mistakes_end_the_run_with_a_fallback_from_the_evidence(endpoint, tmp_path):
    respond = scripted(delegate("a"), "x", "y", "z")
    result, _ = run(endpoint, tmp_path, respond)
    assert (result.answer, result.fallback) == ("found it", True)


def test_a_fallback_without_evidence_is_no_answer(endpoint, tmp_path):
    result, _ = run(endpoint, tmp_path, scripted("x", "y", "z"))
    assert (result.answer, result.fallback) == ("", True)


def test_out_of_rounds_the_main_agent_answers_from_the_evidence(endpoint, tmp_path):
    respond = scripted(delegate("a"), delegate("b"), complete("best guess"))
    result, server = run(endpoint, tmp_path, respond, rounds=2)
    assert (result.answer, result.fallback, result.rounds) == ("best guess", True, 2)
    schema = server.requests[-1]["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["action"]["const"] == "complete"


def test_complete_is_refused_while_no_file_has_been_seen(endpoint, tmp_path):
    respond = scripted(complete("guess"), delegate("a"), complete("42"))
    result, server = run(endpoint, tmp_path, respond, media=[("image", CLOCK)])
    assert result.answer == "42"
    assert "nothing is known of what they hold" in main_prompts(server)[1]


def test_the_budget_is_never_passed_and_ends_in_a_fallback(endpoint, tmp_path):
    respond = scripted(*[delegate("a", "b")] * 20)
    price = {"price": Price(10.0, 100.0, 10.0)}
    result, server = run(endpoint, tmp_path, respond, budget_usd=0.3, rounds=20, fields=price)
    assert result.fallback and result.cost_usd is not None and 0 < result.cost_usd <= 0.3
    for r in server.requests:  # what each call could have cost at most
        assert 10e-6 * 100 + 100e-6 * r["max_tokens"] <= 0.3


def test_a_budget_too_small_for_one_call_asks_nothing(endpoint, tmp_path):
    price = {"price": Price(10.0, 100.0, 10.0)}
    result, server = run(endpoint, tmp_path, scripted(), budget_usd=0.001, fields=price)
    assert (result.fallback, result.calls, server.requests) == (True, 0, [])


def test_an_unknown_price_is_shown_as_unknown(endpoint, tmp_path):
    result, _ = run(endpoint, tmp_path, scripted(complete("42")), fields={"price": None})
    assert result.cost_usd is None and result.paid_usd is None


def test_a_dead_endpoint_of_the_main_agent_ends_the_run_and_keeps_it(endpoint, tmp_path):
    gone = [Raw(404, {"error": {"message": "gone"}}) for _ in range(2)]
    respond = scripted(delegate("a"), *gone)
    with pytest.raises(EndpointError, match="status 404"):
        run(endpoint, tmp_path, respond)
    assert (
        sum("response" in e for e in read(tmp_path / "run" / "tape.jsonl")) == 4
    )  # the last one without a schema


def busy(request):
    """A run with steps, code, a failing sub-task, a mistake and unequal answers."""
    text = last_text(request)
    if is_main(request):
        if "Your last decision could not be used" in text:
            return delegate(
                *[
                    {"task_instruction": f"task {n}", "tools": ["ExecuteCodeAction"]}
                    for n in range(8)
                ]
            )
        return complete("42") if "=> result" in text else "not json"
    number = text.split("task ")[1].split("\n")[0]
    if number == "3":
        return Raw(400, {"error": {"message": "not this one"}})
    time.sleep(random.random() * 0.01)
    if "Observation:" not in text:
        return act("ExecuteCodeAction", f"note {number}", code=f"print({number} * 7)")
    return finish(f"result {number}")


def test_replays_under_any_number_of_threads_have_the_same_content(endpoint, tmp_path):
    result, server = run(endpoint, tmp_path, busy)
    asked = len(server.requests)
    for threads in (1, 2, 5, 17):
        again = replay(tmp_path / "run", parallel=threads)
        assert trajectory.content(again.events) == trajectory.content(result.events)
        assert (again.answer, again.calls, again.paid_usd) == ("42", result.calls, 0.0)
    assert len(server.requests) == asked


def test_a_replay_that_differs_says_where(endpoint, tmp_path):
    run(endpoint, tmp_path, busy)
    file = tmp_path / "run" / "trajectory.jsonl"
    file.write_text(file.read_text().replace('"answer": "42"', '"answer": "43"'))
    with pytest.raises(TapeMiss, match=r"event decision at \[2, 0, 1\], decision"):
        replay(tmp_path / "run")


def test_a_changed_prompt_is_a_miss_that_names_the_call(endpoint, tmp_path):
    run(endpoint, tmp_path, busy)
    file = tmp_path / "run" / "run.json"
    file.write_text(file.read_text().replace("What is it?", "What was it?"))
    with pytest.raises(TapeMiss, match="'r1/main/a1' differs from its recording"):
        replay(tmp_path / "run")


def test_resuming_a_finished_run_pays_nothing(endpoint, tmp_path):
    result, server = run(endpoint, tmp_path, busy)
    server.requests.clear()
    again = resume(tmp_path / "run")
    assert (again.answer, again.paid_usd, again.calls) == (result.answer, 0.0, result.calls)
    assert all("task 3" in last_text(r) for r in server.requests)  # what was refused is asked again


def test_a_fork_keeps_the_rounds_before_it_and_asks_the_later_ones_anew(endpoint, tmp_path):
    respond = scripted(delegate("a"), delegate("b"), complete("42"), complete("another"))
    result, server = run(endpoint, tmp_path, respond)
    before = (tmp_path / "run" / "tape.jsonl").read_text()
    server.requests.clear()
    forked = resume(tmp_path / "run", from_round=2, out=tmp_path / "fork")
    assert (forked.answer, forked.rounds, len(server.requests)) == ("another", 2, 1)
    assert (tmp_path / "run" / "tape.jsonl").read_text() == before
    assert replay(tmp_path / "fork").answer == "another"


def test_every_call_of_ours_has_a_name(endpoint, tmp_path):
    _, server = run(endpoint, tmp_path, busy)
    entries = [e for e in read(tmp_path / "run" / "tape.jsonl") if "call" in e]
    assert sum("response" in e for e in entries) == len(server.requests)
    assert {e["call"].split("/")[0] for e in entries} == {"r1", "r2"}


def test_the_state_of_every_round_renders_to_the_recorded_prompt(endpoint, tmp_path):
    result, server = run(endpoint, tmp_path, busy, media=[("image", CLOCK)])
    task = run_folder.read_manifest(tmp_path / "run").task
    agent = OrchestraO1(pool_at(server.url).backends, tools_for(task))
    prompts = [r["messages"] for r in server.requests if is_main(r)]
    decisions = [
        e
        for e in trajectory.read(tmp_path / "run" / "trajectory.jsonl")
        if e["event"] == "decision"
    ]
    mistake = ""
    for event, prompt in zip(decisions, prompts, strict=True):
        seen = event["state"]
        history = tuple(
            Evidence(**{**h, "tools": tuple(h["tools"]), "media": tuple(h["media"])})
            for h in seen.pop("history")
        )
        assert agent.render(State(task=task, history=history, **seen), mistake) == prompt
        mistake = event.get("mistake", "")


def test_the_trajectory_grows_as_the_run_does(endpoint, tmp_path):
    seen = []

    def respond(request):
        seen.append([e["event"] for e in read(tmp_path / "run" / "trajectory.jsonl")])
        return scripted_reply(request)

    scripted_reply = scripted(delegate("a"), complete("42"))
    run(endpoint, tmp_path, respond)
    assert seen == [
        ["run"],
        ["run", "decision", "subtask"],
        ["run", "decision", "subtask", "step", "result"],
    ]


def test_a_listener_hears_every_event(endpoint, tmp_path):
    heard: list[str] = []
    server = endpoint(scripted(delegate("a"), complete("42")))
    listeners = [lambda event: heard.append(event["event"])]
    orchestrate("?", pool=pool_at(server.url), out=tmp_path / "r", listeners=listeners)
    assert heard == ["run", "decision", "subtask", "step", "result", "decision", "end"]


def test_the_log_is_readable_and_without_secrets(endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "hush-hush-123456")
    run(endpoint, tmp_path, scripted(delegate("say hush-hush-123456"), complete("42")))
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "delegate 1" in log and "answer: '42'" in log
    folder = [
        p.read_text() for p in (tmp_path / "run").rglob("*") if p.is_file() and p.suffix != ".png"
    ]
    assert not any("hush-hush-123456" in text for text in folder)


def test_an_explicit_backend_does_the_subtask(endpoint, tmp_path):
    task = {"task_instruction": "a", "model": "large", "tools": []}
    _, server = run(
        endpoint, tmp_path, scripted(delegate(task), complete("1")), names=("small", "large")
    )
    assert [r["model"] for r in server.requests] == ["small", "large", "small"]


def test_stop_threshold_refuses_an_unsure_answer(endpoint, tmp_path):
    def sure(p):
        import math

        tokens = [("{", 0.0), ('"action": "', 0.0), ("complete", math.log(p)), ('", "params"', 0.0)]
        content = [{"token": t, "logprob": lp, "top_logprobs": []} for t, lp in tokens]
        message = {"role": "assistant", "content": complete(f"at {p}")}
        return {"choices": [{"index": 0, "message": message, "logprobs": {"content": content}}]}

    result, server = run(endpoint, tmp_path, scripted(sure(0.4), sure(0.9)), stop_threshold=0.7)
    assert result.answer == "at 0.9"
    assert server.requests[0]["logprobs"] is True and "certainty of 0.40" in main_prompts(server)[1]


def test_a_reply_is_on_record_though_the_ask_after_it_failed(endpoint, tmp_path):
    """Eq. 22: the model is sure enough to stop, and is asked again for the answer alone."""
    other = [{"token": "complete", "logprob": -0.1}]
    tokens = [("{", []), ('"action": "', []), ("delegate_task", other), ('", "params"', [])]
    content = [{"token": t, "logprob": -3.0, "top_logprobs": top} for t, top in tokens]
    answer = completion(delegate("look"))
    answer["choices"][0]["logprobs"] = {"content": content}
    with pytest.raises(EndpointError):
        run(endpoint, tmp_path, scripted(answer, Raw(401, {})), stop_threshold=0.7)
    [decision] = [e for e in trajectory.read(tmp_path / "run/trajectory.jsonl") if "reply" in e]
    assert "delegate_task" in decision["reply"] and "status 401" in decision["mistake"]


def test_a_question_in_odd_text_is_asked(endpoint, tmp_path):
    server = endpoint(scripted(complete("ja")))
    question = 'Größe "5" ${x} {y} \udce4 日本?'
    assert orchestrate(question, pool=pool_at(server.url), out=tmp_path / "r").answer == "ja"
    assert "${x} {y}" in last_text(server.requests[0])


def test_the_run_folder_does_not_need_the_original_media(endpoint, tmp_path):
    copy = tmp_path / "my clock.png"
    copy.write_bytes(CLOCK.read_bytes())
    respond = scripted(delegate("look"), complete("42"))
    result, _ = run(endpoint, tmp_path, respond, media=[("image", copy)])
    copy.unlink()
    (tmp_path / "run").rename(tmp_path / "moved")
    assert replay(tmp_path / "moved").answer == "42"
    assert (
        json.loads((tmp_path / "moved" / "run.json").read_text())["task"]["media"][0]["name"]
        == "my_clock.png"
    )
    assert isinstance(result.run, Path)
