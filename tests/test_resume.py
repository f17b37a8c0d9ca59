"""Nothing paid for is lost: after a kill, a failure, a full disk or Ctrl-C, a resume pays the rest alone."""

import resource
import shlex
import signal
import sys
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from orchestra_min import orchestrate
from tests.conftest import Cancelled, EndpointError, Options, TapeWriteError, pool_at
from tests.program import called, line_of, replay, resume, start, tool_file
from tests.scripted import (
    DEBATE,
    Endpoint,
    Raw,
    act,
    complete,
    delegate,
    finish,
    is_main,
    last_text,
)

TASKS = (
    {"task_instruction": "when?", "tools": ["library_hours"]},
    {"task_instruction": "which city?", "tools": []},
)


def moment(request: dict[str, Any]) -> str:
    """Which call of the run below a request is."""
    text = last_text(request)
    if is_main(request):
        return "last decision" if "found 1" in text and "found 2" in text else "first decision"
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

    def __init__(self, endpoint: Callable[..., Endpoint], *names: str) -> None:
        self.let_go, self.arrived = threading.Event(), {n: threading.Event() for n in names}
        self.server = endpoint(self.respond)

    def respond(self, request: dict[str, Any]) -> Any:
        name = moment(request)
        if name in self.arrived:
            self.arrived[name].set()
            self.let_go.wait(60)
        return ANSWERS[name]

    def wait(self) -> None:
        assert all(arrived.wait(30) for arrived in self.arrived.values())


# ---- stopped from outside ------------------------------------------------------------------------


MOMENTS = [["first decision"], ["second step", "other sub-task"], ["last decision"]]


@pytest.mark.parametrize("names", MOMENTS)
def test_kill_9_loses_only_what_was_in_flight(names, endpoint, tmp_path):
    held = Held(endpoint, *names)
    flags = "--question", "?", "--model", "m", "--tools", tool_file(tmp_path), "--out", "run"
    with start(tmp_path, *flags, at=held.server.url) as process:
        held.wait()
        process.kill()
    with (tmp_path / "run" / "tape.jsonl").open("a") as file:
        file.write('{"v": 1, "call": "r')  # torn by the kill
    held.let_go.set()
    assert resume(tmp_path / "run").answer == "42"
    asked = [moment(r) for r in held.server.requests]
    assert {n: asked.count(n) for n in ANSWERS} == {n: 1 + (n in names) for n in ANSWERS}
    assert replay(tmp_path / "run").answer == "42"


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_with_130_and_the_line_that_it_prints_goes_on(stop, endpoint, tmp_path):
    held = Held(endpoint, "second step", "other sub-task")
    flags = "--question", "?", "--model", "m", "--tools", tool_file(tmp_path), "--out", "my run"
    with start(tmp_path, *flags, at=held.server.url) as process:
        held.wait()
        named = flags[4:6]
        in_use = called("--resume", tmp_path / "my run", *named, at=held.server.url)
        process.send_signal(stop)
        out, err = process.communicate(timeout=20)  # the endpoint goes on waiting
    assert (process.returncode, out) == (130, "")
    assert "my run" in line_of(in_use)
    held.let_go.set()
    hint = shlex.split(err[err.index("continue with: ") :])
    assert hint[hint.index("--resume") :] == ["--resume", "my run", *named]
    assert called("--resume", tmp_path / "my run", *named, at=held.server.url).stdout == "42\n"
    assert len(held.server.requests) == 5 + 2


# fails at d04ee41
def test_the_line_that_goes_on_names_this_python(endpoint, tmp_path):
    answers = iter([delegate("look"), finish("seen"), Raw(401, {})])
    server = endpoint(lambda request: next(answers))
    line = line_of(called("--question", "?", "--out", tmp_path / "run", at=server.url), 4)
    assert f"{shlex.quote(sys.executable)} " in line


def test_a_run_that_the_host_program_cancels_starts_no_further_call(endpoint, tmp_path):
    stop = threading.Event()

    def respond(request: dict[str, Any]) -> Any:
        stop.set()
        return ANSWERS[moment(request)]

    server = endpoint(respond)
    options, pool = Options(tools=(tool_file(tmp_path),)), pool_at(server.url)
    with pytest.raises(Cancelled):
        orchestrate("?", (), pool, options, tmp_path / "run", cancelled=stop)
    assert len(server.requests) == 1
    assert resume(tmp_path / "run").answer == "42" and len(server.requests) == 5


# ---- a disk that is full -------------------------------------------------------------------------


def test_no_call_starts_once_the_tape_can_not_be_written(endpoint, tmp_path):
    answers = {**ANSWERS, "first decision": delegate(TASKS[0])}

    def respond(request: dict[str, Any]) -> Any:
        return complete("42") if "found 1" in last_text(request) else answers[moment(request)]

    server, out = endpoint(respond), tmp_path / "run"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(event: dict[str, Any]) -> None:
        if event["event"] == "step":  # from now on the tape is as long as a file may be
            size = (out / "tape.jsonl").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

    options = Options(tools=(tool_file(tmp_path),))
    try:
        with pytest.raises(TapeWriteError):
            orchestrate("?", (), pool_at(server.url), options, out, listeners=[fill])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(server.requests) == 3  # the last of them is lost
    assert resume(out).answer == "42" and len(server.requests) == 5


# ---- what had failed -----------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [
    Raw(401, {}), Raw(402, {"error": {}}), Raw(500, {}, retry_after_ms="1", retry_after="0"), Raw(200, "<html>"), {"choices": []},
])  # fmt: skip
def test_a_failure_of_the_last_round_is_asked_again(failure, endpoint, tmp_path):
    broken = [True]

    def respond(request: dict[str, Any]) -> Any:
        if moment(request) == "last decision" and broken[0]:
            return failure
        return ANSWERS[moment(request)]

    server, options = endpoint(respond), Options(tools=(tool_file(tmp_path),))
    with pytest.raises(EndpointError):
        orchestrate("?", (), pool_at(server.url), options, tmp_path / "run")
    broken[0], asked = False, len(server.requests)
    assert resume(tmp_path / "run").answer == "42" and len(server.requests) == asked + 1
    for again in (replay, resume, replay):
        assert again(tmp_path / "run").answer == "42"
    assert len(server.requests) == asked + 1


def test_a_failure_that_a_later_round_read_is_kept(endpoint, tmp_path):
    dead = {"main": True}

    def respond(request: dict[str, Any]) -> Any:
        if not is_main(request):
            return Raw(400, {"error": {"message": "out of order"}}) if dead else finish("seen")
        if last_text(request).count("out of order") and "look again" in last_text(request):
            return Raw(401, {}) if dead else complete("42")
        return delegate("look again" if "out of order" in last_text(request) else "look")

    server, out = endpoint(respond), tmp_path / "run"
    with pytest.raises(EndpointError):
        orchestrate("?", (), pool_at(server.url), Options(rounds=3), out)
    dead.clear()
    asked = len(server.requests)
    assert resume(out).answer == "42"
    again = [last_text(r) for r in server.requests[asked:]]
    assert len(again) == 2 and "look again" in again[0]  # of the last round, and the decision
    assert replay(out).answer == "42"


def test_a_failure_that_a_later_step_went_on_from_is_kept(endpoint, tmp_path):
    """A role of a debate is refused once; the run is cancelled two rounds later."""
    stop, asked = threading.Event(), count()

    def respond(request: dict[str, Any]) -> Any:
        if request["messages"][0]["role"] == "system":
            return DEBATE
        if (number := next(asked)) == 5:
            stop.set()
        return Raw(401, {"error": {"message": "no"}}) if number == 0 else "Answer: 42"

    server, options = endpoint(respond), Options(method="mas-orchestra")
    with pytest.raises(Cancelled):
        orchestrate("?", (), pool_at(server.url), options, tmp_path / "run", cancelled=stop)
    assert resume(tmp_path / "run").answer == "42"
    assert len(server.requests) == 1 + 5 * 2 + 1  # the graph, five rounds of two roles, the verdict
    assert replay(tmp_path / "run").answer == "42"


def test_a_run_that_is_resumed_with_more_time_replays(endpoint, tmp_path):
    """What the main agent reads of a time-out names no number of seconds."""
    never, replies = threading.Event(), iter([delegate("look"), complete("42")])
    server = endpoint(lambda r: next(replies) if is_main(r) else never.wait(60))
    pool, out = pool_at(server.url), tmp_path / "run"
    assert orchestrate("?", (), pool, Options(timeout_s=0.5), out).answer == "42"
    asked = len(server.requests)
    assert resume(out, timeout_s=60.0).answer == "42" and len(server.requests) == asked
    assert replay(out).answer == "42"
    never.set()
