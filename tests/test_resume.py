"""Nothing paid for is lost: after a kill, a failure, a full disk or Ctrl-C, a resume pays the rest alone.
A fork keeps the rounds before it and asks the rest anew.
"""

import json
import os
import re
import resource
import shlex
import signal
import subprocess
import threading
from functools import partial

import pytest

from orchestra.kernel.folder import read_events
from orchestra.kernel.method import Method
from orchestra.kernel.tape import exchanges
from orchestra.kernel.vocabulary import Complete
from tests import program
from tests.conftest import Cancelled, ConfigError, DiskFull, EndpointError, Tape, TapeMiss
from tests.program import (
    OWN_TOOLS,
    called,
    content,
    line_of,
    start,
    tool_file,
)
from tests.scripted import CHAIN, Raw, act, complete, delegate, finish, is_main, last_text

replay = partial(program.replay, tools=OWN_TOOLS)
resume = partial(program.resume, tools=OWN_TOOLS)
TASKS = (
    {"task_instruction": "when?", "tools": ["library_hours"]},
    {"task_instruction": "which city?", "tools": []},
)


def moment(request):
    """Which call of the run below a request is."""
    text = last_text(request)
    if is_main(request):
        return "last decision" if "found 1" in text else "first decision"
    if "when?" in text:
        return "second step" if "closed on" in text else "first step"
    return "other sub-task"


ANSWERS = {
    "first decision": delegate(*TASKS),
    "first step": act("library_hours", day="Sunday"),
    "second step": finish("found 1"),
    "other sub-task": finish("found 2"),
    "last decision": complete("42"),
}


class Held:
    """An endpoint that lets the calls of `names` wait until `let_go` is set."""

    def __init__(self, endpoint, *names):
        self.let_go, self.arrived = threading.Event(), {n: threading.Event() for n in names}
        self.server = endpoint(self.respond)

    def respond(self, request):
        name = moment(request)
        if name in self.arrived:
            self.arrived[name].set()
            self.let_go.wait(60)
        return ANSWERS[name]

    def wait(self):
        assert all(arrived.wait(30) for arrived in self.arrived.values())


# ---- stopped from outside ------------------------------------------------------------------------


MOMENTS = (["first decision"], ["second step", "other sub-task"], ["last decision"])
TORN = b'{"v": 1, "call": "r2/ma', b"{", b'{"v": 1, "call": "\xff'  # a last line, by a kill


@pytest.mark.parametrize("names", MOMENTS)
def test_kill_9_loses_only_what_was_in_flight(names, endpoint, tmp_path):
    held = Held(endpoint, *names)
    named = "--tools", tool_file(tmp_path)
    flags = "--question", "?", "--model", "m", *named, "--out", "run"
    with start(tmp_path, *flags, at=held.server.url) as process:
        held.wait()
        process.kill()
    held.let_go.set()
    for again, torn in zip(("--resume", "--replay", "--resume"), TORN, strict=True):
        with (tmp_path / "run" / "tape.jsonl").open("ab") as file:
            file.write(torn)
        done = called(again, tmp_path / "run", *named, at=held.server.url)
        assert done.stdout == "42\n", done.stderr
    asked = [moment(r) for r in held.server.requests]
    assert {n: asked.count(n) for n in ANSWERS} == {n: 1 + (n in names) for n in ANSWERS}


def test_an_interrupt_ends_the_run_and_the_line_that_it_prints_goes_on(endpoint, tmp_path):
    held = Held(endpoint, "second step", "other sub-task")
    (tmp_path / "own.py").write_text(
        "from orchestra.methods.orchestra_o1 import OrchestraO1 as Own"
    )
    named = "--method", f"{tmp_path}/own.py:Own", "--tools", tool_file(tmp_path)
    flags = "--model", "m", "--out", "my run", *named
    run = tmp_path / "my run"
    with start(tmp_path, "--question", "?", *flags, at=held.server.url) as process:
        held.wait()
        in_use = called("--resume", run, *named, at=held.server.url)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)  # the endpoint goes on waiting
    assert (process.returncode, out) == (130, "")
    assert "my run" in line_of(in_use)
    held.let_go.set()
    hint = re.search("^  to continue: (.*)$", err, re.M)[1]
    assert shlex.split(hint.partition(" resume ")[2]) == ["my run", *named]
    assert subprocess.check_output(hint, shell=True, text=True, cwd=tmp_path) == "42\n"
    assert len(held.server.requests) == 5 + 2


def test_a_run_that_the_host_program_cancels_starts_no_further_call(run, tmp_path):
    stop = threading.Event()
    how = {"tools": OWN_TOOLS, "cancelled": stop}
    with pytest.raises(Cancelled):
        run(respond=lambda request: stop.set() or ANSWERS[moment(request)], **how)
    assert len(run.requests) == 1
    assert resume(run.folder).answer == "42" and len(run.requests) == 5


def test_a_run_with_an_answer_under_way_can_be_resumed_once_it_is_there(run, tmp_path):
    let_go = threading.Event()

    def respond(request):
        if moment(request) == "other sub-task" and not let_go.is_set():
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # Ctrl-C
            let_go.wait(60)
        return ANSWERS[moment(request)]

    with pytest.raises(KeyboardInterrupt):
        run(respond=respond, tools=OWN_TOOLS)
    with pytest.raises(ConfigError, match="in use"):
        resume(run.folder)
    let_go.set()
    for thread in (t for t in threading.enumerate() if t.name.startswith("sub-agent")):
        thread.join()
    assert resume(run.folder).answer == replay(run.folder).answer == "42"
    assert len(run.requests) == 5


def test_once_the_tape_is_closed_no_sub_agent_that_is_left_starts_a_call(tmp_path):
    tape = Tape(tmp_path / "tape.jsonl", "record")
    tape.close()
    with pytest.raises(Cancelled), tape.call("r1"):
        tape.exchange("chat", {}, lambda: pytest.fail("paid for nothing"))


# ---- a disk that is full -------------------------------------------------------------------------


def test_no_call_starts_once_the_tape_cannot_be_written(run, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    answers = {**ANSWERS, "first decision": delegate(TASKS[0])}

    def fill(event):
        if event["event"] == "step":  # from now on the tape is as long as a file may be
            size = (run.folder / "tape.jsonl").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

    try:
        with pytest.raises(DiskFull):
            run(respond=lambda r: answers[moment(r)], tools=OWN_TOOLS, listeners=[fill])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(run.requests) == 3  # the last of them is lost
    assert resume(run.folder).answer == "42" and len(run.requests) == 5


# ---- a tape or a trajectory that was cut ---------------------------------------------------------


@pytest.mark.parametrize("inside", [0, 1, 50, -2])
def test_a_finished_run_whose_tape_was_cut_pays_only_for_what_is_missing(inside, run, tmp_path):
    """At each line, `inside` bytes after its beginning."""
    run(respond=lambda r: ANSWERS[moment(r)], tools=OWN_TOOLS)
    tape = run.folder / "tape.jsonl"
    lines = tape.read_bytes().splitlines(keepends=True)
    for n in range(len(lines)):
        asked = len(run.requests)
        missing = sum(b'"kind": "chat"' in line for line in lines[n:])
        tape.write_bytes(b"".join(lines[:n]) + lines[n][:inside])
        with pytest.raises(TapeMiss, match="nothing is recorded"):
            replay(run.folder)
        assert resume(run.folder).answer == replay(run.folder).answer == "42"
        assert resume(run.folder).paid_usd == 0 and len(run.requests) == asked + missing
        tape.write_bytes(b"".join(lines))


@pytest.mark.parametrize("change", [
    lambda file: file.unlink(), lambda file: os.truncate(file, 0), lambda file: os.truncate(file, file.stat().st_size - 9),
    lambda file: file.write_text("[]\n"), lambda file: file.write_text('{"event": "end"}\n'), lambda file: file.write_bytes(b"\xff" * 99),
])  # fmt: skip
def test_a_damaged_trajectory_is_written_anew_from_the_tape(change, run, tmp_path):
    run(respond=lambda r: ANSWERS[moment(r)], tools=OWN_TOOLS)
    change(run.folder / "trajectory.jsonl")
    events = []
    assert resume(run.folder, listeners=[events.append]).answer == "42"
    assert content(read_events(run.folder)) == content(events) != []
    assert replay(run.folder).answer == "42" and len(run.requests) == 5


def test_a_damaged_trajectory_does_not_stop_the_resume_of_an_unfinished_run(run, tmp_path):
    run(respond=lambda r: ANSWERS[moment(r)], tools=OWN_TOOLS)
    tape = run.folder / "tape.jsonl"
    tape.write_bytes(b"".join(tape.read_bytes().splitlines(keepends=True)[:-1]))
    (run.folder / "trajectory.jsonl").write_bytes(b"[]\n" * 9)
    assert resume(run.folder).answer == replay(run.folder).answer == "42"
    assert len(run.requests) == 5 + 1


def test_a_finished_run_that_would_ask_something_else_now_is_a_difference(run, tmp_path):
    run(respond=lambda r: ANSWERS[moment(r)], tools=OWN_TOOLS)
    manifest = run.folder / "run.json"
    manifest.write_text(manifest.read_text().replace("What is it?", "What was it?"))
    with pytest.raises(TapeMiss, match="differs from its recording"):
        resume(run.folder)
    assert len(run.requests) == 5


def test_a_finished_run_that_would_answer_something_else_now_is_a_difference(run, tmp_path):
    class Edited(Method):
        answer = "one"

        def decide(self, state, ask, mistake, last_chance):
            return Complete(self.answer)

    run(method=Edited)
    Edited.answer = "two"
    with pytest.raises(TapeMiss, match="'answer': 'one'.* now .*'answer': 'two'"):
        resume(run.folder, method=Edited)


# ---- what had failed -----------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [
    Raw(401, {}), Raw(402, {"error": {}}), Raw(500, {}, retry_after_ms="1", retry_after="0"), Raw(200, "<html>"), {"choices": []},
])  # fmt: skip
def test_a_failure_of_the_last_round_is_asked_again(failure, run, tmp_path):
    answers = {**ANSWERS, "last decision": failure}
    with pytest.raises(EndpointError):
        run(respond=lambda request: answers[moment(request)], tools=OWN_TOOLS)
    answers["last decision"], asked = complete("42"), len(run.requests)
    for again in (resume, replay, resume):
        assert again(run.folder).answer == "42"
    assert len(run.requests) == asked + 1


@pytest.mark.parametrize(("tape", "again"), [  # !: a failure
    ("r1/t1/s1! r1/t2/s1", ["r1/t1/s1"]),  # another sub-task does not read it
    ("r1/t1/s1! r2/main/a1", []), ("r1/t1/s1! r1/t1/s2", []), ("r1/t1/s1/part1! r1/t1/s2/part2", []),
    ("r1/main/a1! r1/main/a1", []), ("r1/t1/s1! r2/main/a1 r2/t1/s1!", ["r2/t1/s1"]),
])  # fmt: skip
def test_a_failure_is_kept_if_a_later_prompt_may_quote_it(tape, again, tmp_path):
    about = {"key": "", "request": {"kind": "chat"}}
    failure = {"failure": {"status": 500, "why": "broken", "unanswered": 0}}
    rows = [
        {"call": c.strip("!"), **about, **(failure if "!" in c else {"answer": {}})}
        for c in tape.split()
    ]
    path = tmp_path / "tape.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    kept = exchanges(path, resuming=True)
    assert [e.call for e in exchanges(path) if e not in kept] == again
    with path.open("a") as file:
        file.write(json.dumps({"resumed": True}) + "\n")
    assert exchanges(path) == kept


def test_a_resume_of_a_finished_graph_asks_no_failed_agent_again(run):
    work = lambda text: Raw(401, {}) if "first" in text else "Answer: 42"  # noqa: E731
    assert run(CHAIN, work=work, method="mas-orchestra").failed_subtasks == 1
    assert resume(run.folder).answer == "42" and len(run.requests) == 3


def test_a_run_whose_first_call_is_refused_is_kept_and_goes_on(endpoint, tmp_path):
    answers = iter([Raw(401, {}), complete("42")])
    server = endpoint(lambda request: next(answers))
    done = called("--question", "?", "--model", "m", "--out", tmp_path / "run", at=server.url)
    line_of(done, 4)
    assert f"  to continue: OPENAI_BASE_URL={server.url} " in done.stderr
    again = called("--resume", tmp_path / "run", at=server.url, OPENAI_MODEL="m")
    assert (again.returncode, again.stdout) == (0, "42\n")


# ---- without an endpoint -------------------------------------------------------------------------


def test_a_run_that_is_answered_asks_nothing_and_another_one_says_what_it_needs(endpoint, tmp_path):
    server = endpoint(lambda request: complete("42"))
    out = tmp_path / "run"
    called("--question", "?", "--model", "m", "--out", out, at=server.url)
    assert called("--resume", out, at=server.url).stdout == "42\n" and len(server.requests) == 1
    called(
        "--question", "?", "--model", "m", "--out", tmp_path / "other", at="http://127.0.0.1:9/v1"
    )
    assert "no endpoint: set" in line_of(called("--resume", tmp_path / "other"))
