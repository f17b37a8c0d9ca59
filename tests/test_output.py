"""What a user gets: an answer, one object for --json, a folder of files, and no secret in any of it."""

import json
import re
import resource
import subprocess
import sys
from argparse import Namespace
from urllib.parse import quote

import pytest

from orchestra.command import terminal
from orchestra.command.names import load
from orchestra.command.status import Status
from orchestra.tools.python_function import tool_of
from tests.conftest import ROOT
from tests.program import HOURS, any_method, called, line_of, program, tool_file
from tests.scripted import Raw, act, complete, delegate, finish, is_main, last_text
from tests.tools.conftest import raw

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")
KEYS = {"answer", "fallback", "cost_usd", "paid_usd", "calls", "rounds", "latency_s", "run"}
KEYS |= {"tokens", "failed_subtasks", "state", "cause", "why", "reused_calls", "saved_usd"}


def using_the_tool(request):
    """Delegates to library_hours, and answers with what the sub-agent copied from it."""
    seen = "closed on" in last_text(request)
    if is_main(request):
        task = {"task_instruction": "when?", "tools": ["library_hours"]}
        return complete("42") if seen else delegate(task)
    return finish("closed on Sunday") if seen else act("library_hours", day="Sunday")


@pytest.mark.parametrize("status, code", [("done", 0), ("partial", 1), ("blocked", 1)])
def test_an_answer_that_the_one_agent_marks_as_partial_is_a_fallback(status, code, endpoint):
    server = endpoint(lambda request: finish("42", status=status))
    done = called("--question", "?", "--method", "react", at=server.url)
    assert (done.returncode, done.stdout) == (code, "42\n")


@pytest.mark.parametrize("copied_by", ["main", "sub"])
def test_no_answer_holds_the_marks_around_data(copied_by, run, tmp_path):
    def respond(request):
        marked = re.findall(r"<data.*?</data.*?>", last_text(request), re.S)
        if not marked or is_main(request) != (copied_by == "main"):
            return using_the_tool(request)
        return complete(marked[-1]) if copied_by == "main" else finish(marked[-1])

    tools = {"library_hours": tool_of(load(tool_file(tmp_path), ""))}
    result = run(respond=respond, tools=tools, rounds=2)
    reports = [e["answer"] for e in result.events if e["event"] == "result"]
    answer = result.answer if copied_by == "main" else reports[0]
    assert "closed on Sunday" in answer and "<data" not in answer and "</data" not in answer


def test_what_a_tool_or_a_server_prints_does_not_reach_standard_output(endpoint, tmp_path):
    (tmp_path / "mine.py").write_text(HOURS.replace("    return", '    print("noise")\n    return'))
    flags = "--model", "m", "--quiet", "--tools", "mine.py:library_hours", "--mcp", raw()
    done = program(tmp_path, "?", *flags, "--out", "run", at=endpoint(using_the_tool).url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "noise\n")
    assert (tmp_path / "run" / "mcp.log").read_text() == "started\n"


@pytest.mark.parametrize("flags, code, failed", [
    ("", 0, 1), ("--rounds 1", 1, 1), ("--budget 1", 2, 0), ("--file gone.png", 2, 0), ("--model refused", 4, 0),
])  # fmt: skip
def test_json_is_always_one_object_with_these_keys(flags, code, failed, endpoint):
    def respond(request):
        if request["model"] == "refused" or not is_main(request):
            return Raw(401, {"error": {"message": "who are you"}})
        return complete("42") if "who are you" in last_text(request) else delegate("look")

    done = called("--question", "?", "--json", *flags.split(), at=endpoint(respond).url)
    row = json.loads(done.stdout)
    assert done.returncode == code and set(row) == KEYS
    assert row["failed_subtasks"] == failed and (row["why"] or code < 2)


@pytest.mark.parametrize("stream", ["2>&-", ">&-", ">/dev/full", "| head -c 0"])
def test_a_stream_that_is_closed_or_full_is_no_traceback(stream, run):
    run()
    line = f'"$1" "$2" --replay run {stream}'
    call = ["sh", "-c", line, "sh", sys.executable, str(ROOT / "orchestra_min.py")]
    done = subprocess.run(call, capture_output=True, text=True, timeout=60)
    assert done.returncode == (2 if "full" in stream else 0) and "Traceback" not in done.stderr


@pytest.mark.parametrize("files", [10, 22])
def test_too_few_file_descriptors_are_no_traceback(files, endpoint, tmp_path):
    tasks = delegate(*[{"task_instruction": "do it"}] * 16)
    server = endpoint(
        lambda r: tasks if is_main(r) and "do it" not in last_text(r) else finish("42")
    )
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))  # noqa: E731
    flags = "--model", "m", "--parallel", 16, "--rounds", 1
    done = program(tmp_path, "?", *flags, at=server.url, preexec_fn=limit)
    assert done.returncode in (0, 1, 2, 4) and "Traceback" not in done.stderr
    assert done.returncode < 2 or "Too many open files" in done.stderr


# ---- secrets -------------------------------------------------------------------------------------

KEY, VENDOR = 'pa"ss/word-0123456789', "sk-abcdefghij0123456789"
SAID = f"{KEY} {quote(KEY, safe='')} {VENDOR} redis://:a-password-1@host"
SECRETS = KEY, json.dumps(KEY)[1:-1], quote(KEY, safe=""), VENDOR, "a-password-1"


@pytest.mark.parametrize("echoed_by", ["endpoint", "tool", "question"])
def test_no_secret_lands_in_a_run_folder(echoed_by, endpoint, tmp_path):
    (tmp_path / "echo.txt").write_text(f"closed on {SAID if echoed_by == 'tool' else 'Sunday'} ")
    text = HOURS.replace('f"closed on {day}"', 'Path("echo.txt").read_text()')
    (tmp_path / "mine.py").write_text(text)

    def respond(request):
        answer = using_the_tool(request)
        echoes = echoed_by == "endpoint" and "finish" in answer
        return answer.replace("Sunday", json.dumps(SAID)[1:-1]) if echoes else answer

    asked = SAID if echoed_by == "question" else "?"
    flags = "--question", asked, "--tools", "mine.py:library_hours", "--out", "run"
    done = called(*flags, at=endpoint(respond).url, OPENAI_API_KEY=KEY)
    assert (done.returncode, done.stdout) == (0, "42\n")
    written = [p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()]
    assert [w for w in SECRETS for data in written if w.encode() in data] == []
    assert called("--replay", "run", *flags[2:4]).stdout == "42\n"


def test_no_error_shows_a_key(endpoint):
    server = endpoint(lambda request: Raw(401, {"error": {"message": f"bad key {KEY}"}}))
    done = called("--question", "?", "--model", "m", at=server.url, OPENAI_API_KEY=KEY)
    assert "bad key" in line_of(done, 4) and KEY not in done.stderr
    assert f"Bearer {KEY}" in server.headers[0].values()


# ---- the files of a run --------------------------------------------------------------------------


def test_the_files_of_a_run_are_as_readable_as_any_and_no_lock_is_left(run, tmp_path):
    run()
    files = [p for p in run.folder.rglob("[!.]*") if p.is_file()]
    (tmp_path / "any").touch()
    usual = (tmp_path / "any").stat().st_mode
    assert [p.name for p in files if p.stat().st_mode != usual] == []
    assert "lock" not in [p.name for p in files]


def test_a_trajectory_grows_with_the_rounds_and_not_with_their_square(run):
    sizes, work = [], finish("castle " * 300, summary="s " * 300)
    for rounds in (5, 20):
        run(*[delegate("look")] * (rounds + 9), work=work, rounds=rounds, out=f"run{rounds}")
        sizes.append((run.folder / "trajectory.jsonl").stat().st_size)
    assert sizes[1] < 6 * sizes[0]


def test_verbose_prints_each_step(endpoint):
    def respond(request):
        if is_main(request):
            return complete("42") if "it is 42" in last_text(request) else delegate("look")
        return finish("it is 42")

    done = called("?", "--verbose", at=endpoint(respond).url)
    assert (
        "r1/t1/s1 finish(result='it is 42'" in done.stderr and "USD unknown so far" in done.stderr
    )


def test_the_lines_of_a_step_stay_together(monkeypatch):
    told = []
    monkeypatch.setattr(terminal, "tell", told.append)
    step = {"event": "step", "at": [1, 2, 3], "action": "look", "params": {}, "failed": False}
    with terminal.progress(Namespace(verbose=True, quiet=False), str) as (show,):
        show({**step, "memory": "a note", "observation": "seen"})
    lines = "r1/t2/s3 look()", "    thought: a note", "    observation: seen"
    assert told == ["\n".join(lines)]


def test_a_single_agent_does_not_delegate(endpoint):
    done = called("?", "--method", "react", at=endpoint(any_method).url)
    assert "r1/main/a1 one agent answers the whole question" in done.stderr


def test_the_status_line_says_who_is_at_work_since_when_and_the_cost():
    status = Status(now=lambda: 10.0)
    status.listen({"event": "run", "at": [0], "pool": {"main": "small"}})
    status.listen({"event": "decision", "at": [1, 0, 1], "cost_usd": 0.5})
    for n in (1, 2):
        status.listen(
            {"event": "subtask", "at": [1, n, 0], "subtask": {"id": f"part{n}", "backend": "big"}}
        )
    status.listen({"event": "step", "at": [1, 2, 1], "spent_usd": 0.25})
    status.listen({"event": "notice", "at": (), "message": "attempt 2 of 3"})
    seen = status.text(now_s=13.0)
    assert (
        seen
        == "USD 0.7500; 2 sub-tasks; r1/t1 (part1) big, 3 s; r1/t2 (part2) big, step 2, 3 s; attempt 2 of 3"
    )


def test_the_status_line_has_no_control_characters_of_a_run_from_someone_else():
    status = Status(now=lambda: 10.0)
    status.listen({"event": "run", "at": [0], "pool": {"main": "\x1b]0;owned\x07m"}})
    status.listen({"event": "notice", "at": (), "message": "\x1b[2J\u202e"})
    assert status.text(now_s=10.0).isprintable()


def test_the_status_of_a_second_run_forgets_the_first():
    status = Status(now=lambda: 10.0)
    assert status.text(now_s=11.0) == "USD 0.0000; starting, 1 s"
    for main in "first", "second":
        status.listen({"event": "run", "at": [0], "pool": {"main": main}})
        assert status.text(now_s=11.0) == f"USD 0.0000; {main} decides, 1 s"
        status.listen(
            {"event": "subtask", "at": [1, 1, 0], "subtask": {"id": "part1", "backend": "big"}}
        )


def test_a_user_is_told_which_sub_tasks_wait(endpoint):
    def respond(request):
        if is_main(request):
            return complete("42") if "it is 42" in last_text(request) else delegate("a", "b", "c")
        return finish("it is 42")

    done = called("?", "--k-max", "2", at=endpoint(respond).url)
    assert "r1: waiting for a later round: t3 (--k-max)" in done.stderr


def test_json_is_one_object_also_after_a_bug_of_a_method(endpoint, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from orchestra.kernel.method import Method\n\n\n"
        "class Mine(Method):\n    def decide(self, *state):\n        return {}['gone']\n"
    )
    flags = "--method", "mine.py:Mine", "--model", "m", "--json", "--out", "run"
    done = program(tmp_path, "?", *flags, at=endpoint("").url)
    row = json.loads(done.stdout)
    assert row["cause"] == "bug" and "KeyError" in done.stderr and done.returncode == 1
