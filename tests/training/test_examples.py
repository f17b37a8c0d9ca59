"""Decision examples: files, states, and what a recorded run becomes."""

import json
import re
from pathlib import Path

import pytest

from orchestra.kernel.vocabulary import Evidence, Media, State, Task
from orchestra.training.examples import (
    Example,
    from_run,
    main,
    read,
    state_of,
    state_row,
    succeeded,
    write,
)
from orchestra.training.rewards import read_decision
from orchestra.variation.fork import run_fork
from orchestra_min import orchestrate
from tests.conftest import ROOT, ConfigError, Options, pool_at
from tests.scripted import complete, delegate, finish, is_main
from tests.test_aorchestra import tuple4

RUN = ROOT / "fixtures" / "runs" / "equinox"
SENT = ({"role": "user", "content": "é ☃"},)
EXAMPLE = Example(id="a", messages=SENT, reference={"action": "complete"}, meta={"split": "x"})


@pytest.fixture
def record(endpoint, tmp_path):
    """Record a run in which the main agent gives these replies. Returns its folder, what it was sent."""

    def start(*replies, name="run", **options):
        left = iter(replies)
        e = endpoint(lambda r: next(left) if is_main(r) else finish("7"))
        given = {"pool": pool_at(e.url), "options": Options.of(**options)}
        orchestrate("How many?", out=tmp_path / name, **given)
        return tmp_path / name, [r["messages"] for r in e.requests if is_main(r)]

    return start


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fields", "named"), [
    ({"schema": 1}, "schema"), ({"id": 3}, "id"), ({"messages": []}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages"), ({"reference": []}, "reference"),
])  # fmt: skip
def test_a_line_that_is_no_example_is_named(tmp_path, fields, named):
    write(tmp_path / "e.jsonl", [EXAMPLE])
    assert read(tmp_path / "e.jsonl") == [EXAMPLE]
    good = (tmp_path / "e.jsonl").read_text()
    (tmp_path / "e.jsonl").write_text(good + json.dumps({**json.loads(good), **fields}))
    with pytest.raises(ConfigError, match=f"e.jsonl, line 2: .*{named}"):
        read(tmp_path / "e.jsonl")


@pytest.mark.parametrize(("old", "new"), [
    ("complete", "\\ud800"), ("é", "\\ud800"), ('{"action": "complete"}', "[" * 100_000),
])  # fmt: skip
def test_a_text_with_half_a_surrogate_pair_and_endless_nesting_are_named(tmp_path, old, new):
    write(tmp_path / "e.jsonl", [EXAMPLE])
    line = (tmp_path / "e.jsonl").read_text()
    (tmp_path / "e.jsonl").write_text(line.replace(old, new))
    with pytest.raises(ConfigError, match=r"e.jsonl, line 1: is not an example"):
        read(tmp_path / "e.jsonl")


def test_a_state_goes_through_json_and_back():
    h = Evidence(1, "t1", "look", "b", ("T",), "partial", "5", "s", "e", ("a.png",))
    task = Task("q", (Media("image", "a.png", Path(), ""),))
    state = State(task, "c", (h,), ("b",), ("T",), 2, 6, 0.5, {"t2": ("t1",)})
    assert state_of(json.loads(json.dumps(state_row(state)))) == state


# ---- recorded runs -------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [RUN, RUN.with_name("equinox-aorchestra")])
def test_each_round_of_the_recorded_demo_is_an_example_with_a_decision(run):
    events = map(json.loads, (run / "trajectory.jsonl").read_text().splitlines())
    rounds = {e["at"][0] for e in events if e["event"] == "decision"}
    examples = from_run(run)
    readings = [read_decision(json.dumps(e.reference), state_of(e.meta["state"])) for e in examples]
    assert len(examples) == len(rounds) and all(r.format and r.decision for r in readings)


@pytest.mark.parametrize(("replies", "options"), [
    ([delegate("find"), complete("7")], {}), ([delegate("find"), complete("7")], {"rounds": 1}),  # the last chance
    (["{}", delegate("find"), "no", complete("7")], {}),  # mistakes, told back
    ([tuple4("find"), "no", delegate("find"), complete("7")], {"method": "aorchestra"}),
])  # fmt: skip
def test_an_example_is_what_was_sent_and_what_was_decided(record, replies, options):
    folder, sent = record(*replies, **options)
    decided = [(m, r) for m, r in zip(sent, replies, strict=True) if len(r) > 2]
    found = [(list(e.messages), e.reference) for e in from_run(folder)]
    assert found == [(messages, json.loads(reply)) for messages, reply in decided]


def test_a_changed_prompt_is_not_taken_for_the_recorded_one(record, monkeypatch):
    folder, _ = record(delegate("find"), complete("7"))
    new = [{"role": "user", "content": "new"}]
    monkeypatch.setattr("orchestra.methods.orchestra_o1.OrchestraO1.prompt", lambda *_, **__: new)
    with pytest.raises(ConfigError, match="r1/main"):
        from_run(folder)


def test_a_round_that_the_user_decided_is_no_example(record, tmp_path):
    folder, _ = record(delegate("find"), complete("7"), complete("8"))
    look = {"action": "delegate", "subtasks": [{"id": "t1", "instruction": "look"}]}
    run_fork(folder, tmp_path / "fork", what_if={"r1": look})
    (example,) = from_run(tmp_path / "fork")
    assert example.reference["params"] == {"answer": "8"} and example.id == "fork-r2"


def test_a_fallback_and_a_wrong_answer_are_no_success(record):
    good, _ = record(delegate("find"), complete("7"), name="good")
    late, _ = record(delegate("find"), "no", "no", "no", name="late", rounds=1)
    assert succeeded(good) and succeeded(good, "7.0")
    assert not succeeded(good, "8") and not succeeded(late)


def test_the_command_writes_the_successful_runs(tmp_path, capsys):
    answers, out = tmp_path / "answers.json", tmp_path / "e.jsonl"
    question = json.loads((RUN / "run.json").read_text())["question"]
    answers.write_text(json.dumps([{"question": question, "answer": "never"}]))
    command = [str(RUN), "--out", str(out), "--answers", str(answers)]
    assert main(command[:3]) == 0 and read(out)[0].meta["answer"] != "never"
    assert main(command) == 2
    accepted = [
        "never",
        json.loads((RUN / "trajectory.jsonl").read_text().splitlines()[-1])["answer"],
    ]
    answers.write_text(json.dumps([{"question": question, "answer": accepted}]))
    assert main(command) == 0 and read(out)[0].meta["answer"] == " or ".join(accepted)
    capsys.readouterr()
    assert main([str(tmp_path), *command[1:]]) == 2
    assert re.fullmatch(".*not a run folder.*\n", capsys.readouterr().err)
