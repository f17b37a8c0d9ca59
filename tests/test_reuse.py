"""--reuse: what equals an exchange of another run is taken from its tape, and the rest alone is paid."""

import json
import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from orchestra.kernel.folder import read_events, read_manifest
from orchestra.kernel.tape import Answer, exchanges
from orchestra.kernel.tool import Environment, tool
from orchestra.report.totals import summary, totals_in
from orchestra.variation.reuse import answers_of
from orchestra_min import orchestrate
from tests.conftest import ROOT, ConfigError, Price, Tape, needs_sandbox
from tests.program import called, line_of, replay
from tests.scripted import Raw, act, complete, delegate, finish, is_main, last_text

RECORDED = sorted(p.parent for p in (ROOT / "fixtures/runs").glob("*/run.json"))
SHIPPED = [
    p for p in RECORDED if p.name != "trained"
]  # its method is a file with a path of its own
PRICE = Price(1000, 1000)


def rows_of(folder):
    return list(exchanges(Path(folder) / "tape.jsonl"))


def calls_of(folder, reused):
    """The logical calls of a tape that were reused, or made."""
    return sorted(row.call for row in rows_of(folder) if bool(row.reused) == reused)


def two_rounds(request, word="found"):
    """Two sub-tasks, one after the other, and the answer."""
    text = last_text(request)
    if not is_main(request):
        return finish(f"{word} {'B' if 'look at B' in text else 'A'}")
    if f"{word} B" in text:
        return complete("42")
    return delegate("look at B" if f"{word} A" in text else "look at A")


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda p: p.name)
def test_a_recorded_run_that_is_made_again_unchanged_takes_all_from_its_tape(
    folder, tmp_path, no_network
):
    held = read_manifest(folder)
    media = [(modality, folder / "media" / name) for modality, name, _ in held.media]
    again = orchestrate(
        held.question,
        media,
        pool=held.pool,
        options=held.options,
        out=tmp_path / "again",
        more={"code": True},  # the tapes hold what it did: no sandbox is needed
        sources=[answers_of(folder)],
    )
    recorded = read_events(folder)[-1]
    assert (again.answer, again.calls) == (recorded["answer"], recorded["calls"])
    assert (totals_in(again.run).reused_calls, again.paid_usd) == (recorded["calls"], 0)
    assert calls_of(again.run, reused=False) == [] and replay(again.run).answer == again.answer


def test_what_differs_is_paid_and_the_rest_is_saved(run):
    first = run(respond=two_rounds, price=PRICE)
    sources = [answers_of(run.folder)]
    again = run(respond=two_rounds, price=PRICE, sources=sources, out="again")
    totals = totals_in(again.run)
    assert len(run.requests) == 0 and totals.saved_usd == first.cost_usd == again.cost_usd
    other = run(respond=two_rounds, price=PRICE, sources=sources, out="other", rounds=3)
    main = ["r1/main/a1", "r2/main/a1", "r3/main/a1"]  # their prompts name the number of rounds
    assert calls_of(other.run, reused=False) == main and len(run.requests) == 3
    assert other.paid_usd == pytest.approx(first.cost_usd * 3 / 5)
    seen = summary(other.run).totals
    assert (seen.reused_calls, seen.saved_usd) == (2, pytest.approx(first.cost_usd * 2 / 5))


def test_reused_calls_count_in_the_budget_so_the_requests_stay_equal(run):
    first = run(respond=two_rounds, price=PRICE, budget_usd=20.0)
    sources = [answers_of(run.folder)]
    again = run(respond=two_rounds, price=PRICE, budget_usd=20.0, sources=sources, out="again")
    assert (again.calls, again.paid_usd, len(run.requests)) == (first.calls, 0, 0)
    limits = [row.request["max_tokens"] for row in rows_of(again.run)]
    assert limits == [row.request["max_tokens"] for row in rows_of(first.run)]


def test_a_failed_call_is_made_again(run):
    def respond(request):
        if not is_main(request):
            return Raw(401, {})
        return complete("42") if "401" in last_text(request) else delegate("look")

    failed = run(respond=respond)
    again = run(
        respond=lambda r: complete("43") if is_main(r) else finish("seen"),
        out="again",
        sources=[answers_of(failed.run)],
    )
    assert (again.answer, again.failed_subtasks) == ("43", 0)
    assert calls_of(again.run, reused=True) == ["r1/main/a1"]


# ---- which row is taken --------------------------------------------------------------------------


def record(folder, calls):
    """A run folder whose tape has one exchange for each (call, request)."""
    folder.mkdir()
    source = ROOT / "fixtures/runs/equinox-aorchestra/run.json"
    (folder / "run.json").write_bytes(source.read_bytes())
    tape = Tape(folder / "tape.jsonl", "record")
    for number, (call, request) in enumerate(calls):
        with tape.call(call):
            tape.exchange("page", {"url": request}, lambda: f"{call} {number}")  # noqa: B023
    tape.close()
    return folder


def taken(run, calls, out, delays=None):
    """What each call takes from a run when all are made at once; "new" if nothing."""
    found = {}

    def make(call, request):
        if delays:
            delays.wait()
        with tape.call(call):
            value = tape.exchange("page", {"url": request}, lambda: "new").value
            found.setdefault(call, []).append(value)

    tape = Tape(out, "record", [answers_of(run)])
    threads = [threading.Thread(target=make, args=each) for each in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tape.close()
    return found


@pytest.mark.parametrize("call, request_, expected", [
    ("r1/t2/s1", "x", "r1/t2/s1 1"),  # the same call
    ("r2/t2/s1", "x", "r1/t2/s1 1"),  # the nearest one
    ("r1/t3/s1", "x", "r1/t1/s1 0"),  # the first one
    ("r1/t1/s1", "y", "r1/t1/s2 2"),  # another step
    ("seed/3", "x", "r1/t1/s1 0"),  # a call outside of a run
    ("r1/t1/s1", "z", "new"),
    ("r1/t4/s1/p1", "w", "r1/t4/s1/p1 3"),
    ("r1/t4/s1/p2", "w", "new"),  # a sample of its own: a copy would be a second vote
    ("r1/t5/s1/p2", "w", "r1/t4/s1/p1 3"),  # another step's
])  # fmt: skip
def test_a_call_takes_its_own_row_or_that_of_the_nearest_call(call, request_, expected, tmp_path):
    made = [("r1/t1/s1", "x"), ("r1/t2/s1", "x"), ("r1/t1/s2", "y"), ("r1/t4/s1/p1", "w")]
    run = record(tmp_path / "run", made)
    assert taken(run, [(call, request_)], tmp_path / "tape") == {call: [expected]}


@pytest.mark.parametrize("seed", range(10))
def test_parallel_calls_take_the_same_rows_under_any_schedule(seed, tmp_path):
    dice = random.Random(seed)
    places = [f"r{t}/t{j}/s{s}" for t in (1, 2) for j in range(1, 5) for s in (1, 2)]
    run = record(tmp_path / "run", [(dice.choice(places), dice.choice("xyz")) for _ in range(12)])
    calls = [(place, dice.choice("xyz")) for place in places]
    alone = {}
    for each in calls:
        alone |= taken(run, [each], tmp_path / f"alone{len(alone)}")
    for turn in range(3):
        dice.shuffle(calls)
        together = taken(run, calls, tmp_path / f"tape{turn}", threading.Barrier(len(calls)))
        assert together == alone


def test_a_call_that_repeats_a_request_takes_another_row_each_time(tmp_path):
    run = record(tmp_path / "run", [("r1/t1/s1", "x"), ("r2/t1/s1", "x")])
    tape = Tape(tmp_path / "tape", "record", [answers_of(run)])
    with tape.call("r1/t1/s1"):
        found = [tape.exchange("page", {"url": "x"}, lambda: "new").value for _ in range(3)]
    assert found == ["r1/t1/s1 0", "r2/t1/s1 1", "new"]


def test_the_rows_of_several_runs_are_taken_as_those_of_one(tmp_path):
    runs = [record(tmp_path / name, [(f"{name}/t1/s1", "x")]) for name in ("r1", "r2")]
    tape = Tape(tmp_path / "tape", "record", [answers_of(*runs)])
    with tape.call("r2/t1/s1"):
        found = [tape.exchange("page", {"url": "x"}, lambda: "new").value for _ in range(3)]
    assert found == ["r2/t1/s1 0", "r1/t1/s1 0", "new"]


def test_a_reused_answer_is_marked_with_its_run_and_the_time_of_its_use(tmp_path):
    run = record(tmp_path / "run", [("r1/t1/s1", "x")])
    tape = run / "tape.jsonl"
    (row,) = rows_of(run)
    tape.write_text(replace(row, began_s=1000.0).line() + "\n")
    taken(run, [("r1/t1/s1", "x")], tmp_path / "tape")
    (reused,) = exchanges(tmp_path / "tape")
    assert (reused.reused, reused.kept, reused.outcome.value) == ("run", False, row.outcome.value)
    assert reused.began_s > 1_000_000 and isinstance(reused.outcome, Answer)


# ---- addresses -----------------------------------------------------------------------------------


def test_a_recorded_run_replays_wherever_its_server_is_now(tmp_path, no_network):
    source = ROOT / "fixtures/runs/equinox-aorchestra"
    for file in source.rglob("*"):
        if file.is_file():
            copy = tmp_path / file.relative_to(source)
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(file.read_bytes().replace(b"127.0.0.1:8105", b"10.1.2.3:9999", 1))
    assert read_manifest(tmp_path).pool != read_manifest(source).pool
    assert replay(tmp_path).answer == replay(source).answer


def test_a_run_goes_on_at_another_address(endpoint, tmp_path):
    first = endpoint(lambda r: delegate("look") if is_main(r) else Raw(401, {}))
    named = "--question", "?", "--model", "m", "--method", "react", "--out", tmp_path / "run"
    assert called(*named, at=first.url).returncode == 4
    second = endpoint(lambda r: finish("42"))
    again = called("resume", tmp_path / "run", at=second.url)
    assert (again.stdout, len(second.requests)) == ("42\n", 1)
    assert called("replay", tmp_path / "run").stdout == "42\n"


def test_the_address_of_a_page_is_a_part_of_its_request(tmp_path):
    run = record(tmp_path / "run", [("r1/t1/s1", "http://a.example/")])
    calls = [("r1/t1/s1", "http://b.example/")]
    assert taken(run, calls, tmp_path / "tape") == {"r1/t1/s1": ["new"]}


# ---- tools ---------------------------------------------------------------------------------------


opened = []


@tool("hours", "txt")
def hours(env: Environment, day: str) -> str:
    """When the library is open.

    day: a day
    """

    def look():
        opened.append(day)
        return "opened at 9"

    return env.local("tool:hours", {"day": day}, look)


def using_a_tool(request):
    text = last_text(request)
    if is_main(request):
        task = {"task_instruction": "when?", "tools": ["hours"]}
        return complete("42") if "=> it opens" in text else delegate(task)
    return finish("it opens") if "opened" in text else act("hours", day="Sunday")


def test_what_a_tool_did_is_taken_too(run):
    tools = {"hours": hours}
    first = run(respond=using_a_tool, tools=tools)
    seen = len(opened)
    again = run(respond=using_a_tool, tools=tools, sources=[answers_of(first.run)], out="again")
    assert {r.request["kind"] for r in rows_of(again.run) if r.reused} == {"chat", "tool:hours"}
    assert (len(opened), run.requests) == (seen, [])


@needs_sandbox
def test_a_program_that_left_files_runs_again_and_one_that_left_none_does_not(run):
    def task(text):
        return {"task_instruction": text, "tools": ["ExecuteCodeAction"]}

    def respond(request):
        text = last_text(request)
        if is_main(request):
            return complete("42") if "=> done" in text else delegate(task("write"), task("add"))
        code = "print(1 + 1)" if "add" in text else "open('f', 'w').write('x'); print(1)"
        return finish("done") if "Observation:" in text else act("ExecuteCodeAction", code=code)

    first = run(respond=respond)
    again = run(respond=respond, sources=[answers_of(first.run)], out="again")
    assert (again.answer, len(run.requests)) == ("42", 0)
    assert calls_of(again.run, reused=False) == ["r1/t1/s1/ExecuteCodeAction"]
    assert Path(again.run, "work/r1-t1/f").read_text() == "x"


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="gone is not a run folder"):
        answers_of(tmp_path / "gone")


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_says_what_was_reused_and_saved(endpoint, tmp_path):
    server = endpoint(two_rounds)
    named = "--question", "?", "--model", "m"
    called(*named, "--out", tmp_path / "run", at=server.url)
    again = called(*named, "--reuse", tmp_path / "run", "--out", tmp_path / "again", at=server.url)
    assert (again.stdout, len(server.requests)) == ("42\n", 5)
    assert "reused 5 model calls (saved USD unknown), made no call" in again.stderr
    shown = called("replay", tmp_path / "again", "--json")
    assert json.loads(shown.stdout)["reused_calls"] == 5


@pytest.mark.parametrize("flags, problem", [
    ("replay run --reuse run", "--reuse"),
    ("--question ? --model m --reuse gone", "gone is not a run folder"),
    ("--question ? --model m --reuse run,gone", "gone is not a run folder"),
])  # fmt: skip
@pytest.mark.usefixtures("in_an_empty_folder")
def test_a_wrong_use_of_reuse_is_one_line(flags, problem, run):
    run(complete("42"))
    assert problem in line_of(called(*flags.split(), at=run.server.url))


def test_a_changed_setting_that_prevents_reuse_is_named_at_the_end(endpoint, in_an_empty_folder):
    server = endpoint(lambda request: finish("42"))
    flags = "--question", "?", "--model", "m", "--method", "react"
    called(*flags, "--out", "first", at=server.url)
    words = *flags, "--reuse", "first"
    same = called(*words, "--out", "same", at=server.url)
    assert "settings differ" not in same.stderr
    other = called(*words, "--steps", 5, "--out", "other", at=server.url)
    assert "no model call of first was reused; settings differ: steps (30 -> 5)" in other.stderr
