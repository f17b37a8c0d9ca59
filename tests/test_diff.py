"""`orchestra-min diff`: where two runs part, what that changed, and what it saved."""

import json
import shutil
from collections import Counter
from dataclasses import asdict
from random import Random

import pytest

from orchestra.variation.diff import difference, lines, lines_of, text
from orchestra.variation.fork import run_fork
from tests.conftest import ROOT, ConfigError, Price
from tests.program import called
from tests.scripted import complete, delegate, finish
from tests.sweeps import recorded

RUNS = ROOT / "fixtures" / "runs"
LONG = "What is the height of the old tower that stands north of the river in {} today?"


@pytest.fixture
def compared(run):
    """The difference of two runs, each given by the arguments of `run`."""

    def compared(first, second, **shared):
        folders = []
        for name, how in (("first", first), ("second", second)):
            run(*how.pop("turns"), out=name, **{**shared, **how})
            folders.append(run.folder)
        return difference(*folders)

    return compared


def rewritten(folder, change):
    """Change each row of a tape; None leaves it out."""
    tape = folder / "tape.jsonl"
    rows = [change(json.loads(line)) for line in tape.read_text().splitlines()]
    tape.write_text("".join(f"{json.dumps(row)}\n" for row in rows if row))


def exchanges_of(folder):
    return [json.loads(line) for line in (folder / "tape.jsonl").read_text().splitlines()]


def exchanges(folder):
    """Place, request and reply of each, as texts."""
    for row in exchanges_of(folder):
        is_chat = "messages" in row["request"]
        request = {k: v for k, v in row["request"].items() if k != "url" or not is_chat}
        reply = row["answer"].get("data", row["answer"])
        reply = reply["choices"][0]["message"] if "choices" in reply else reply
        yield row["call"], json.dumps(request, sort_keys=True), json.dumps(reply, sort_keys=True)


# ---- what is said first -----------------------------------------------------


def test_runs_of_two_questions_differ_first_in_the_question(compared):
    turns = {"turns": [complete("42")]}
    found = text(
        compared({**turns, "question": "What is it?"}, {**turns, "question": "Who is it?"})
    )
    shown = found.splitlines()
    assert shown[2:6] == [
        "",
        "The runs answer different questions.",
        "- What is it?",
        "+ Who is it?",
    ]
    assert "  question" not in shown


# ---- where they part -----------------------------------------------------------------------------


def test_a_run_does_the_same_as_itself():
    found = difference(RUNS / "equinox", RUNS / "equinox")
    assert found.is_empty and found.same == 13 and found.parting is None
    done = called("diff", RUNS / "equinox", RUNS / "equinox")
    assert done.returncode == 0 and "The runs made the same calls." in done.stdout


def test_two_recorded_runs_part_at_the_call_that_only_one_made():
    done = called("diff", RUNS / "equinox", RUNS / "equinox-react")
    assert done.returncode == 1 and max(map(len, done.stdout.splitlines())) <= 80
    part = "First difference: r1/main/a1 (chat): only the first run made this call."
    assert part in done.stdout and "orchestra-o1 -> react" in done.stdout
    assert "- 2023-09-23 05:49:00+00:00\n    + The time in UTC" in done.stdout
    assert "round 3\n    - completes with" in done.stdout and "+ has no such round" in done.stdout


@pytest.mark.parametrize("seed", range(5))
def test_as_much_is_the_same_as_a_plain_comparison_of_the_tapes_finds(seed, tmp_path):
    chance = Random(seed)
    shutil.copytree(RUNS / "lecture", tmp_path / "lecture")

    def change(row):
        kind = chance.choice(["same", "address", "request", "reply", "lost"])
        if kind == "address" and "messages" in row["request"]:
            return {**row, "request": {**row["request"], "url": "http://elsewhere/v1"}}
        if kind == "request":
            return {**row, "request": {**row["request"], "top_p": 1}, "key": "0" * 64}
        if kind == "reply":
            return {**row, "answer": {"value": "another"}}
        return None if kind == "lost" else row

    rewritten(tmp_path / "lecture", change)
    a, b = (Counter(exchanges(folder)) for folder in (RUNS / "lecture", tmp_path / "lecture"))
    found = difference(RUNS / "lecture", tmp_path / "lecture")
    assert found.same == (a & b).total() > 1 and found.rounds[0].second_calls == b.total()


def test_the_runs_of_a_question_in_two_sweeps_are_compared():
    folders = (min(recorded(name).glob("runs/*")) for name in ("orchestra-o1", "react"))
    found = difference(*folders)
    assert (found.first.state, found.second.state) == ("answered", "answered")
    assert [s.second for s in found.settings if s.name == "method"] == ["react"]


def test_an_edited_word_of_a_long_line_is_shown_with_what_is_around_it(compared):
    first, second = ({"question": LONG.format(city)} for city in ("Prague", "Vienna"))
    found = compared({"turns": [complete("9")], **first}, {"turns": [complete("9")], **second})
    assert (found.parting.place, found.parting.way) == ("r1/main/a1", "request")
    assert not found.answer_changed and not found.is_empty
    shown = text(found)
    assert "north of the river in Prague today" in shown
    assert "north of the river in Vienna today" in shown and all(
        len(line) <= 80 or "/" in line for line in shown.splitlines()
    )


def test_the_same_request_can_get_another_reply(compared):
    found = compared({"turns": [complete("9")]}, {"turns": [complete("8")]})
    assert found.parting.way == "reply" and '"answer": "8"' in found.parting.second[0]
    (changed,) = found.decisions
    assert (changed.first, changed.second) == ("completes with '9'", "completes with '8'")
    assert lines(found) == [
        "first difference: r1/main/a1 (chat): the same request got another reply",
        "the answer changed: '9' -> '8'",
    ]


def test_runs_at_two_addresses_are_the_same(compared):
    turns = [delegate("look"), complete("9")]
    found = compared({"turns": turns}, {"turns": turns}, work=finish("seen"))
    assert found.is_empty and found.same == 3 and not found.settings
    assert lines(found) == ["the answer is that of first"]


def test_a_sub_task_is_told_by_what_is_new_in_it(compared):
    task = {"task_instruction": "look", "context": "", "model": "auto", "tools": []}
    first = {"turns": [delegate(task, "hear"), complete("9")]}
    second = {"turns": [delegate({**task, "context": "a tower"}, "hear"), complete("9")]}
    (changed,) = compared(first, second, work=finish("seen")).decisions
    assert changed.first == "delegates t1, context: none"
    assert changed.second == "delegates t1, context: a tower"


def test_other_reasons_are_no_other_decision(compared):
    turn = complete("9")
    found = compared({"turns": [turn]}, {"turns": [turn.replace('"r"', '"because"')]})
    assert found.parting.way == "reply" and not found.decisions


def test_a_request_that_moved_is_counted_apart(compared):
    first = {"turns": [delegate("look", "hear"), complete("9")]}
    second = {"turns": [delegate("hear", "look"), complete("9")]}
    found = compared(first, second, work=finish("seen"))
    assert (found.moved, found.same) == (2, 0)


# ---- what was reused -----------------------------------------------------------------------------


def test_reused_calls_are_shown_as_saved_and_the_others_as_paid(run):
    price = Price(10_000, 0)  # a call of 100 tokens costs 1 USD
    turns = [delegate("look"), complete("9")]
    for name in ("first", "second"):
        run(*turns, work=finish("seen"), out=name, price=price)
    rewritten(run.folder, lambda r: {**r, "reused": "first"} if r["call"] != "r2/main/a1" else r)
    found = difference(run.parent / "first", run.folder)
    assert (found.second.cost_usd, found.second.saved_usd, found.second.paid_usd) == (3, 2, 1)
    assert lines(found)[0] == (
        "reused 2 model calls (saved USD 2.0000), made 1 model call (USD 1.0000)"
    )
    assert lines(found)[0] in text(found)


def test_a_fork_ends_with_what_it_reused_and_where_it_parts(run, tmp_path):
    turns = [delegate("look"), complete("9"), complete("8")]
    run(*turns, work=finish("seen"))
    fork = run_fork(run.folder, tmp_path / "fork", 2)
    assert fork.answer == "8"
    assert lines(difference(run.folder, fork.run)) == [
        "reused 2 model calls (saved USD 0.0000), made 1 model call (USD 0.0000)",
        "first difference: r2/main/a1 (chat): the same request got another reply",
        "the answer changed: '9' -> '8'",
    ]


# ---- folders -------------------------------------------------------------------------------------


def test_the_data_is_one_json_object():
    done = called("diff", RUNS / "equinox", RUNS / "equinox-react", "--json")
    found = json.loads(done.stdout)
    again = asdict(difference(RUNS / "equinox", RUNS / "equinox-react"))
    assert found == json.loads(json.dumps(again)) and found["parting"]["way"] == "only first"


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is not a run folder"):
        difference(RUNS / "equinox", tmp_path / "none")
    assert lines_of(RUNS / "equinox", tmp_path / "none") == []
    shutil.copytree(RUNS / "equinox", tmp_path / "run")
    (tmp_path / "run" / "tape.jsonl").write_text('{"call": 1}\n')
    with pytest.raises(ConfigError, match="tape.jsonl has a line that is not an exchange"):
        difference(tmp_path / "run", RUNS / "equinox")


def test_a_run_that_ended_without_its_last_row_is_compared_by_its_tape(tmp_path):
    shutil.copytree(RUNS / "equinox", tmp_path / "run")
    (tmp_path / "run" / "trajectory.jsonl").write_text('{"event": "run"}\n')
    found = difference(RUNS / "equinox", tmp_path / "run")
    assert found.same == 13 and found.second.state == "interrupted" and not found.is_empty
