"""Decision examples: files, states, and what a recorded run becomes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from orchestra import trajectory
from orchestra.run_folder import Options
from orchestra.vocabulary import ConfigError, Evidence, Media, State, Task
from orchestra_min import orchestrate
from orchestrators.orchestra_o1 import parse_decision
from tests.conftest import ROOT, pool_at
from tests.scripted import complete, delegate, finish, is_main
from training.examples import Example, read, state_of, state_row, write
from training.recorded import from_run, main, succeeded
from training.rewards import make

RUN = ROOT / "fixtures" / "runs" / "equinox"
EXAMPLE = Example("a", ({"role": "user", "content": "é ☃"},), {"action": "complete"}, {"level": 1})


def sent(folder):
    """What the tape says the main agent was sent, by round: its last attempt."""
    found = {}
    for line in (folder / "tape.jsonl").read_text().splitlines():
        entry = json.loads(line)
        round, who = (*entry.get("call", "").split("/"), "", "")[:2]
        if who == "main":
            found[round] = json.loads(entry["request"]["body"])["messages"]
    return list(found.values())


# ---- files ---------------------------------------------------------------------------------------


def test_what_is_written_is_read_back(tmp_path):
    write(tmp_path / "new" / "e.jsonl", [EXAMPLE, EXAMPLE])
    assert read(tmp_path / "new" / "e.jsonl") == [EXAMPLE, EXAMPLE]
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["e.jsonl"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"schema": 2}, "schema 2"),
        ({"schema": None}, "schema None"),
        ({"id": 3}, "'id'"),
        ({"messages": "hi"}, "'messages'"),
        ({"messages": []}, "'messages'"),
        ({"messages": [{"role": "user"}]}, "'messages'"),
        ({"messages": ["hi", {"role": "user", "content": "x"}]}, "'messages'"),
        ({"reference": []}, "'reference'"),
        ({"meta": None}, "'meta'"),
        ([1], "no JSON object"),
    ],
)
def test_a_line_that_is_no_example_is_named(tmp_path, line, said):
    path = tmp_path / "e.jsonl"
    write(path, [EXAMPLE])
    good = json.loads(path.read_text())
    path.write_text(
        json.dumps(good) + "\n" + json.dumps({**good, **line} if isinstance(line, dict) else line)
    )
    with pytest.raises(ConfigError) as error:
        read(path)
    assert (
        f"{path}, line 2: " in str(error.value)
        and said in str(error.value)
        and "\n" not in str(error.value)
    )


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe", b'{"schema": 1, "id"'])
def test_a_file_of_something_else_is_one_line(tmp_path, content):
    (tmp_path / "e.jsonl").write_bytes(content)
    with pytest.raises(ConfigError, match="e.jsonl"):
        read(tmp_path / "e.jsonl")


def test_a_missing_file_says_how_to_make_one(tmp_path):
    with pytest.raises(ConfigError, match=r"no\.jsonl.*training\.minigaia"):
        read(tmp_path / "no.jsonl")


def test_a_state_goes_through_json_and_back():
    h = Evidence(1, "t1", "look", "b", ("T",), "partial", "5", "s", "e", ("a.png",))
    task = Task("q", (Media("image", "a.png", Path(), ""),))
    state = State(task, "c", (h,), ("b",), ("T",), 2, 6, 0.5, {"t2": ("t1",)})
    assert state_of(json.loads(json.dumps(state_row(state)))) == state


# ---- a recorded run ------------------------------------------------------------------------------


def test_each_round_of_the_recorded_run_is_rendered_as_it_was_sent():
    examples = from_run(RUN)
    rounds = {
        e["at"][0] for e in trajectory.read(RUN / "trajectory.jsonl") if e["event"] == "decision"
    }
    assert [list(e.messages) for e in examples] == sent(RUN)
    assert len(examples) == len(rounds)


def test_the_reference_is_what_the_main_agent_decided():
    decided = [e["decision"] for e in trajectory.read(RUN / "trajectory.jsonl") if "decision" in e]
    again = [
        parse_decision(json.dumps(e.reference), state_of(e.meta["state"])) for e in from_run(RUN)
    ]
    assert [json.loads(json.dumps(trajectory.decision_content(d))) for d in again] == decided


def test_the_recorded_decisions_are_exact_by_the_rubric():
    for example in from_run(RUN):
        (scores,) = make("rubric")(example, [json.dumps(example.reference)])
        assert (scores.total, scores.exact) == (1.0, True)


def test_a_recorded_sub_task_for_the_picture_is_about_the_file_of_it():
    """It says "one picture of the task"; one that names the file does the same."""
    first = from_run(RUN)[0]
    tasks = [
        {"task_instruction": text, "tools": [tool]}
        for text, tool in (
            ("Identify the landmark in clock.png and the city it is in", "ImageAnalysisAction"),
            ("Transcribe equinox.wav and say which time it gives", "ParseAudioAction"),
        )
    ]
    good = {"action": "delegate_task", "reasoning": "", "params": {"tasks": tasks}}
    wrong = {"action": "delegate_task", "reasoning": "", "params": {"tasks": [
        {**t, "task_instruction": "Look for something"} for t in tasks]}}  # fmt: skip
    better, worse = make("rubric")(first, [json.dumps(good), json.dumps(wrong)])
    assert better.total > 0.8 > 0.5 > worse.total


def test_a_changed_prompt_is_not_taken_for_the_recorded_one(tmp_path):
    shutil.copytree(RUN, tmp_path / "run")
    tape = tmp_path / "run" / "tape.jsonl"
    tape.write_text(tape.read_text().replace("You are the main agent.", "You are a main agent."))
    with pytest.raises(ConfigError, match="round 1"):
        from_run(tmp_path / "run")


def test_a_mistake_that_was_told_back_is_in_the_prompt(tmp_path, endpoint):
    replies = iter(["{}", delegate("find"), "no", complete("7")])
    e = endpoint(lambda r: next(replies) if is_main(r) else finish("7"))
    orchestrate("How many?", pool=pool_at(e.url), out=tmp_path / "run")
    examples = from_run(tmp_path / "run")
    assert [list(x.messages) for x in examples] == sent(tmp_path / "run")
    assert all("could not be used" in x.messages[1]["content"] for x in examples)


def test_the_last_chance_is_rebuilt_too(tmp_path, endpoint):
    replies = iter([delegate("find"), complete("7")])
    e = endpoint(lambda r: next(replies) if is_main(r) else finish("7"))
    orchestrate("How many?", pool=pool_at(e.url), out=tmp_path / "run", options=Options(rounds=1))
    assert [list(x.messages) for x in from_run(tmp_path / "run")] == sent(tmp_path / "run")


def test_a_flat_decision_becomes_one_with_params(tmp_path, endpoint):
    replies = iter(['{"action": "complete", "answer": 7}'])
    e = endpoint(lambda r: next(replies))
    orchestrate("How many?", pool=pool_at(e.url), out=tmp_path / "run")
    assert from_run(tmp_path / "run")[0].reference == {
        "action": "complete",
        "reasoning": "",
        "params": {"answer": 7},
    }


def test_runs_of_other_methods_are_refused(tmp_path, endpoint):
    e = endpoint(lambda r: finish("7"))
    orchestrate(
        "How many?", pool=pool_at(e.url), out=tmp_path / "run", options=Options(method="react")
    )
    with pytest.raises(ConfigError, match="--method react"):
        from_run(tmp_path / "run")


def test_a_fallback_and_a_wrong_answer_are_no_success(tmp_path, endpoint):
    replies = iter([complete("7"), delegate("find"), complete("8")])
    e = endpoint(lambda r: next(replies) if is_main(r) else finish("8"))
    orchestrate("How many?", pool=pool_at(e.url), out=tmp_path / "good")
    orchestrate("How many?", pool=pool_at(e.url), out=tmp_path / "late", options=Options(rounds=1))
    assert succeeded(tmp_path / "good") and succeeded(tmp_path / "good", "7.0")
    assert not succeeded(tmp_path / "good", "8") and not succeeded(tmp_path / "late")


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_writes_the_successful_runs(tmp_path, capsys):
    answers = tmp_path / "answers.json"
    question = json.loads((RUN / "run.json").read_text())["task"]["question"]
    answers.write_text(json.dumps([{"question": question, "answer": "never"}]))
    out = str(tmp_path / "e.jsonl")
    assert main([str(RUN), "--out", out]) == 0
    assert main([str(RUN), "--out", out, "--answers", str(answers)]) == 2
    assert main([str(RUN), "--out", out, "--answers", str(answers), "--all"]) == 0
    assert {e.meta["answer"] for e in read(tmp_path / "e.jsonl")} == {"never"}


@pytest.mark.parametrize("content", ["", "[1]", "{}x"])
def test_answers_that_are_none_are_one_line(tmp_path, capsys, content):
    (tmp_path / "a.json").write_text(content)
    assert (
        main([str(RUN), "--out", str(tmp_path / "e"), "--answers", str(tmp_path / "a.json")]) == 2
    )
    assert "--answers" in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_one_line(tmp_path, capsys):
    assert main([str(tmp_path), "--out", str(tmp_path / "e")]) == 2
    assert "no run folder" in capsys.readouterr().err
