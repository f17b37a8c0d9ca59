"""Ctrl-C and SIGTERM at any moment end a command in seconds, without a traceback and with all kept."""

import contextlib
import fcntl
import json
import logging
import os
import pty
import re
import signal
import stat
import threading
import time
import tomllib

import pytest

import orchestra_min
from orchestra.command import log as logs
from orchestra.command.log import Log
from tests.conftest import ROOT
from tests.program import called, program, resume, start
from tests.scripted import Raw, complete, delegate, finish, is_main

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
OUT = "--question", "?", "--model", "m", "--out"
RUN = *OUT, "run"
SLEEPS = "import pathlib, time\npathlib.Path('here').touch()\ntime.sleep(60)\n"
HANGS = f"""from orchestra.methods.orchestra_o1 import OrchestraO1
class Own(OrchestraO1):
    def decide(self, *rest):
        {SLEEPS.replace(chr(10), "; ")}"""


def appeared(path, process):
    while not path.exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)


def ended(process, *signals):
    """What an interrupted command printed. The time limit is for a busy machine."""
    for number in signals:
        process.send_signal(number)
        time.sleep(0.02)
    printed, told = process.communicate(timeout=30)
    assert process.returncode in {128 + number for number in signals}, told
    assert "Traceback" not in told and "Exception ignored" not in told
    return printed, told


@pytest.fixture
def held(endpoint):
    """An endpoint that answers nothing until the test ends; `arrived` is set by a call."""
    let_go, arrived = threading.Event(), threading.Event()
    server = endpoint(lambda request: arrived.set() or let_go.wait(60) or complete("42"))
    server.arrived = arrived
    yield server
    let_go.set()


@pytest.mark.parametrize("stop", [INT, TERM])
def test_while_the_program_is_imported(stop, tmp_path, monkeypatch):
    (tmp_path / "argparse.py").write_text(SLEEPS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with start(tmp_path, *RUN) as process:
        appeared(tmp_path / "here", process)
        assert ended(process, stop) == ("", "interrupted\n")


@pytest.mark.parametrize("stop", [INT, TERM, HUP])
def test_the_installed_command_ends_as_the_script_does(stop, held, tmp_path, monkeypatch):
    module, _, function = PROJECT["scripts"]["orchestra-min"].partition(":")
    script = tmp_path / "orchestra-min"  # as pip writes it
    script.write_text(f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    monkeypatch.setattr("tests.program.PROGRAM", script)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    heed_hup = {"preexec_fn": lambda: signal.signal(HUP, signal.SIG_DFL)}
    with start(tmp_path, *RUN, "--method", "react", at=held.url, **heed_hup) as process:
        assert held.arrived.wait(30)
        began_s = time.monotonic()
        assert "  to continue: " in ended(process, stop)[1]
        assert time.monotonic() - began_s < 10


@pytest.mark.parametrize("signals", [[HUP, HUP], [TERM] + [INT] * 9])
def test_during_a_call(signals, held, tmp_path):
    heed_hup = {"preexec_fn": lambda: signal.signal(HUP, signal.SIG_DFL)}  # nohup ignores it
    with start(tmp_path, *RUN, at=held.url, **heed_hup) as process:
        assert held.arrived.wait(30)
        printed, told = ended(process, *signals)
    assert printed == "" and "interrupted\n  to continue: " in told


def test_a_spinner_is_gone_before_the_last_words(held, tmp_path):
    terminal, theirs = pty.openpty()
    with start(tmp_path, *RUN, at=held.url, stderr=theirs) as process:
        os.close(theirs)
        assert held.arrived.wait(30)
        for _ in range(2):
            process.send_signal(INT)
            time.sleep(0.02)
        shown = b""
        with contextlib.suppress(OSError):  # the end
            while True:
                shown += os.read(terminal, 1 << 16)
    os.close(terminal)
    assert re.search(rb"decides.*\x1b\[2K\S+: interrupted\r\n  to continue: [^\x1b]*$", shown, re.S)


def test_while_a_call_waits_for_its_next_attempt(endpoint, tmp_path):
    server = endpoint(lambda request: Raw(429, {}, retry_after="60"))
    with start(tmp_path, *RUN, at=server.url) as process:
        assert any("the next attempt is in 60 s" in line for line in process.stderr)
        assert "  to continue: " in ended(process, INT)[1]


def test_while_the_users_python_runs(tmp_path):
    (tmp_path / "own.py").write_text(HANGS)
    at = "http://127.0.0.1:9"
    with start(tmp_path, *RUN, "--method", "own.py:Own", at=at) as process:
        appeared(tmp_path / "here", process)
        assert "interrupted" in ended(process, INT, INT)[1]


def test_during_a_replay(endpoint, tmp_path):
    own = tmp_path / "own.py"
    own.write_text("from orchestra.methods.orchestra_o1 import OrchestraO1 as Own")
    method = "--method", str(own) + ":Own"
    server = endpoint(lambda request: complete("42"))
    assert called(*OUT, tmp_path / "run", *method, at=server.url).stdout == "42\n"
    own.write_text(HANGS)
    with start(tmp_path, "--replay", "run", *method) as process:
        appeared(tmp_path / "here", process)
        assert ended(process, TERM, TERM)[1].endswith("interrupted\n")


def test_while_nobody_reads_the_answer(endpoint, tmp_path):
    server = endpoint(lambda request: complete("42" * 10**4))
    with start(tmp_path, *RUN, at=server.url, pipesize=4096) as process:
        assert os.read(process.stdout.fileno(), 1) == b"4"
        for _ in range(2):
            process.send_signal(INT)
            time.sleep(0.02)
        assert process.wait(30) == 130
    assert len(resume(tmp_path / "run").answer) == 2 * 10**4 and len(server.requests) == 1


def test_during_a_sweep(held, tmp_path):
    rows = [{"question": f"What is {n}?", "answer": "42"} for n in range(3)]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    flags = "--data", "data.jsonl", "--out", "sweep", "--model", "m"
    with start(tmp_path, "evaluate", "run", *flags, at=held.url) as process:
        assert held.arrived.wait(30)
        assert "interrupted; what is done is kept" in ended(process, TERM, TERM)[1]


def test_an_answer_that_arrives_after_an_interrupt_is_kept(endpoint, tmp_path):
    stopped, arrived = threading.Event(), threading.Event()

    def respond(request):
        if not is_main(request):
            arrived.set()
            stopped.wait(60)
            time.sleep(0.2)
            return finish("xyzzy")
        return complete("42") if "xyzzy" in str(request) else delegate("look")

    server = endpoint(respond)
    with start(tmp_path, *RUN, at=server.url) as process:
        assert arrived.wait(30)
        threading.Timer(0.1, stopped.set).start()
        ended(process, INT)
    assert resume(tmp_path / "run").answer == "42" and len(server.requests) == 3


def test_a_signal_that_is_ignored_stays_ignored(held, tmp_path):
    ignore = {"preexec_fn": lambda: signal.signal(INT, signal.SIG_IGN)}  # as nohup does
    with start(tmp_path, *RUN, at=held.url, **ignore) as process:
        assert held.arrived.wait(30)
        process.send_signal(INT)
        with pytest.raises(Exception, match="timed out"):
            process.wait(0.7)
        ended(process, TERM, TERM)


# ---- a program that calls us ---------------------------------------------------------------------


def test_main_works_in_a_thread_and_changes_no_handler_of_its_host(endpoint, tmp_path, monkeypatch):
    server = endpoint(lambda request: complete("42"))
    before = signal.getsignal(INT), signal.getsignal(TERM)
    flags = ("--question", "?", "--model", "m", "--quiet", "--out", str(tmp_path / "{}"))
    codes = []
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    work = [
        lambda: codes.append(orchestra_min.main([f.format("a") for f in flags])),
        lambda: codes.append(orchestra_min.main(["evaluate", "report", str(tmp_path)])),
    ]
    for one in work:
        thread = threading.Thread(target=one)
        thread.start()
        thread.join()
    assert called(*(f.format("b") for f in flags), at=server.url).returncode == 0
    assert codes == [0, 2] and (signal.getsignal(INT), signal.getsignal(TERM)) == before


def test_a_mistake_of_a_users_agent_waits_for_the_calls_that_are_paid_for(endpoint, tmp_path):
    (tmp_path / "wrong.py").write_text(f"""import pathlib, time
def run(job):
    if job.u.id == "t2":
        return job.result("done", job.ask([{{"role": "user", "content": "a"}}]).text, "")
    while not pathlib.Path("{tmp_path}/asked").exists():
        time.sleep(0.01)""")

    def respond(request):
        if is_main(request):
            return delegate("one", "two")
        (tmp_path / "asked").touch()
        time.sleep(0.3)
        return "xyzzy"

    flags = tmp_path / "run", "--agent", f"{tmp_path}/wrong.py:run"
    with pytest.raises((AttributeError, TypeError)):  # with its traceback
        called(*OUT, *flags, at=endpoint(respond).url)
    assert "xyzzy" in (tmp_path / "run/tape.jsonl").read_text()


# ---- log.txt -------------------------------------------------------------------------------------


def test_a_lock_that_another_user_holds_in_tmp_stops_no_run(endpoint, tmp_path, monkeypatch):
    server = endpoint(lambda request: complete("42"))
    shared = tmp_path / f"orchestra-min-{os.getuid()}"
    shared.mkdir()
    with (shared / ".__log.txt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        assert program(tmp_path, *RUN, at=server.url).stdout == "42\n"


EVENT = {"event": "notice", "at": [], "message": "a line"}


def test_a_lock_in_the_run_folder_loses_lines_of_the_log_and_nothing_else(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(logs, "CLOSE_S", 0.3)
    lock = Log(tmp_path / "log.txt").lock
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with logs.logged_in(tmp_path) as log:
            log(EVENT)
            deadline = time.monotonic() + 30
            while stat.S_IMODE(lock.stat().st_mode) != 0o600 and time.monotonic() < deadline:
                time.sleep(0.02)
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    assert capsys.readouterr().err == "log.txt misses lines: another process holds its lock\n"


def test_the_log_has_a_line_for_each_event_and_leaves_no_lock_file(endpoint, tmp_path):
    decisions = iter([delegate("a"), complete("42")])
    server = endpoint(lambda request: next(decisions) if is_main(request) else finish("4"))
    called(*OUT, tmp_path / "run", at=server.url)
    folder = tmp_path / "run"
    lines = (folder / "log.txt").read_text().splitlines()
    events = (folder / "trajectory.jsonl").read_text().splitlines()
    assert len(lines) == len(events) > 4
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_the_log_can_be_followed_while_a_run_goes_on(tmp_path):
    log = Log(tmp_path / "log.txt")
    log(EVENT)
    file, deadline = tmp_path / "log.txt", time.monotonic() + 30
    while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert file.read_text().endswith(" a line\n")
    assert log.close()


def test_lines_that_come_together_are_written_together_and_in_order(tmp_path, monkeypatch):
    written = []
    handler = logging.NullHandler()
    monkeypatch.setattr(handler, "emit", lambda record: written.append(record.msg))
    monkeypatch.setattr(logs, "handler_of", lambda path, lock: handler)
    monkeypatch.setattr(logs, "BATCH_S", 60)  # but closing does not wait for it
    log = Log(tmp_path / "log.txt")
    for number in range(100):
        log({**EVENT, "message": f"line {number}"})
    assert log.close()
    (batch,) = written
    assert [line.split()[-1] for line in batch.splitlines()] == [str(n) for n in range(100)]


def test_a_full_disk_under_the_log_is_silent(tmp_path, capfd):
    (tmp_path / "log.txt").symlink_to("/dev/full")
    log = Log(tmp_path / "log.txt")
    for _ in range(3):
        log(EVENT)
    assert log.close() and capfd.readouterr() == ("", "")


def test_a_forked_child_ends_at_sigterm_and_the_log_of_its_parent_goes_on(endpoint, tmp_path):
    (tmp_path / "own.py").write_text("""import os, signal, time
from orchestra.methods.orchestra_o1 import OrchestraO1
class Own(OrchestraO1):
    def decide(self, *rest):
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(theirs, b"I run")  # CPython forgets a signal that comes before
            time.sleep(20)
            os._exit(0)
        os.read(ours, 1)
        os.kill(child, signal.SIGTERM)
        assert os.waitpid(child, 0)[1] == signal.SIGTERM
        return super().decide(*rest)""")
    server = endpoint(lambda request: complete("42"))
    done = program(tmp_path, *RUN, "--method", "own.py:Own", at=server.url)
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
    assert "42" in (tmp_path / "run" / "log.txt").read_text()
