"""Programs as a model writes them; hostile ones are in tests/attacks."""

import os
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from orchestra.kernel.vocabulary import ToolError
from orchestra.tools import cgroup, execution, sandbox
from tests.conftest import ROOT, needs_sandbox

pytestmark = needs_sandbox


@pytest.fixture
def program(tmp_path):
    """Runs programs one after another in the folder of one sub-agent."""
    mounts = sandbox.Mounts(tmp_path / "work")
    return lambda text, kind="python", s=20: execution.run(text, kind, s, mounts)["observation"]


@pytest.mark.parametrize(("text", "seen"), [
    ("1 + 1", "2"), ("print('a')\nx = 2\nx * 3", "a\n6"), ("print('only')", "only"), ("'\u017elutý'", "'\u017elutý'"),
    *((silent, "[the program succeeded and printed nothing; use print()]") for silent in ("", "x = 1", "None")),
    ("from datetime import *\nfrom zoneinfo import ZoneInfo\ndatetime(2025, 9, 23, 7, 49, tzinfo=ZoneInfo('Europe/Prague')).timestamp()", "1758606540.0"),
    ("import pickle\nclass A: pass\ntype(pickle.loads(pickle.dumps(A()))) is A", "True"),
    ("from multiprocessing import Pool\ndef f(x): return x * x\nwith Pool(2) as p: print(p.map(f, [1, 2]))", "[1, 4]"),
    ("import dataclasses, typing\n@dataclasses.dataclass\nclass N:\n  n: 'N | None'\nlen(typing.get_type_hints(N))", "1"),
    ("sorted(n for n in dir() if n[0] != '_')", "[]"),
    ("print('before')\n\n1 / 0", "before\nTraceback (most recent call last):\n  File \"<code>\", line 3, in <module>\n"
                                 "ZeroDivisionError: division by zero\n[the program failed with exit status 1]"),
    (f"x = '{'y' * 5_000_000}'\nlen(x)", "5000000"),
], ids=range(14))  # fmt: skip
def test_what_is_printed_and_the_value_of_the_last_expression_are_seen(text, seen, program):
    assert program(text) == seen


@pytest.mark.parametrize(("text", "kind", "seen"), [
    ("```python\nprint(6 * 7)\n```", "python", "42"), ("\n~~~py\r\n6 * 7\r\n~~~\r\n", "python", "42"), ("```python\n6 * 7", "python", "42"),
    ("```bash\necho 42\n```", "bash", "42"), ("if true; then\r\n  echo 42\r\nfi\r\n", "bash", "42"), ("echo `echo 42`", "bash", "42"),
    ("    x = 42\n    print(x)\n", "python", "42"), ("\tif true; then\n\t\techo 42\n\tfi", "bash", "42"),
    ("x = \"\"\"\n```\n  a\n```\n\"\"\"\nprint(x)", "python", "```\n  a\n```"), ("````\nprint('```')\n````", "python", "```"),
], ids=range(10))  # fmt: skip
def test_a_program_runs_as_it_is_meant(text, kind, seen, program):
    assert program(text, kind).strip() == seen


def test_the_reason_of_a_failure_is_seen_behind_long_output(bench):
    text = "print('x\\n' * 9999)\nraise ValueError('the reason')"
    seen = bench().outcome("ExecuteCodeAction", code=text)
    assert "characters are left out here" in seen and "ValueError: the reason" in seen


def test_folders_nested_without_end_do_not_stop_the_next_program(program):
    program("import os\nfor _ in range(600):\n  os.mkdir('d'); os.chdir('d')")
    assert program("1 + 1") == "2"


@pytest.mark.parametrize("text", [
    "x = (", "  x = 1\ny", "a\0b", "(" * 100_000, "x = " + "-" * 10**6 + "1", "raise KeyboardInterrupt", "input()",
], ids=["open", "indented", "null", "deep", "long", "interrupt", "input"])  # fmt: skip
def test_what_python_will_not_run_is_an_observation_and_no_failure_of_ours(text, program):
    seen = program(text)
    assert seen.endswith("[the program failed with exit status 1]") and "<string>" not in seen


@pytest.mark.parametrize(("script", "seen"), [
    *((f"# {'x' * n}\ncat <(echo $((6 * 7))); read x || exit 3", "42\n[the program failed with exit status 3]") for n in (10, 99_000)),
    ("echo 1 > a; cp -a a b && install b c && sed -i s/1/2/ c && cat c > /dev/stderr", "2"), ("seq 1 1000000 | head -1", "1"),
    ("echo one\necho a\0b", "one\nab"),
], ids=range(5))  # fmt: skip
def test_bash_runs_with_the_programs_of_the_system(script, seen, program):
    assert program(script, "bash") == seen


@pytest.mark.parametrize(("ends", "printed"), [
    ("print('so far')\nimport time\ntime.sleep(60)", "so far"), ("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", "-"),
])  # fmt: skip
def test_a_program_that_takes_too_long_is_stopped_and_its_output_seen(ends, printed, program):
    assert program(ends, s=1) == f"{printed}\n[stopped: the program took longer than 1 s]"


def test_nothing_but_a_few_plain_names_is_in_the_environment(program):
    seen = set(program("import os\nprint(*sorted(os.environ))").split())
    plain = {"HOME", "LANG", "PATH", "PWD", "OLDPWD", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}
    assert {"HOME", "PATH"} <= seen <= plain


@pytest.mark.parametrize("unsafe", [False, True])
def test_the_folder_may_be_relative_as_runs_are_by_default(unsafe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, media = Path("runs/a/work/r1-t1"), Path("runs/a/media")
    media.mkdir(parents=True)
    (media / "m.txt").write_text("seen")
    copies = "open('f', 'w').write(open('media/m.txt').read())"
    ran = execution.run(copies, "python", 10, sandbox.Mounts(folder, media), unsafe)
    assert ran["observation"] == "4"
    assert (folder / "f").read_text() == "seen"


STAYS = """import ctypes, subprocess, time
ctypes.CDLL(None).prctl(1, 0)  # no signal when the parent dies
subprocess.Popen(['setsid', 'sleep', '{seconds}'])
time.sleep(100)"""


def test_a_program_and_its_detached_child_end_with_a_killed_parent():
    seconds = f"1{os.getpid()}"
    arguments = STAYS.format(seconds=seconds), "python", 120
    runs = f"from tools import execution, sandbox; execution.run(*{arguments!r}, sandbox.Mounts())"

    def becomes(running: bool) -> bool:
        find = ["pgrep", "-fx", f"sleep {seconds}"]  # not the parent, whose command names it
        found = (subprocess.run(find, check=False).returncode == 0 for _ in range(1000))
        return any(now == running or time.sleep(0.02) for now in found)

    with subprocess.Popen([sys.executable, "-c", runs], cwd=ROOT) as parent:
        assert becomes(running=True)
        parent.kill()
    assert becomes(running=False)


@pytest.mark.parametrize("script", ["", 'case "$*" in *--proc*) exit 1;; esac'])
def test_bubblewrap_that_is_missing_or_can_not_mount_does_not_work(script, tmp_path, monkeypatch):
    """In some containers bubblewrap starts, but /proc cannot be mounted."""
    if script:
        (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sandbox.trouble.__wrapped__()
    with pytest.raises(ToolError, match="No program can be started now"):
        execution.run("1", "python", 5, sandbox.Mounts())


@pytest.mark.parametrize(("ends", "words"), [
    ("1 / 0", "exit status 1"), ("while True: print('x' * 9999)", "printed more"), ("import time; time.sleep(9)", "took longer"),
])  # fmt: skip
def test_without_a_sandbox_time_and_output_are_limited(ends, words, tmp_path, monkeypatch):
    monkeypatch.setenv("A_KEY", "planted")
    text = f"import os; print('A_KEY' in os.environ, os.getcwd())\n{ends}"
    ran = execution.run(text, "python", 2, sandbox.Mounts(tmp_path / "w"), unsafe=True)
    assert ran["observation"].startswith(f"False {tmp_path}/w") and words in ran["observation"]


@pytest.mark.parametrize(("asked", "allowed"), [(0, 1), (-5, 1), (7, 7), (9999, 60)])
def test_the_time_a_model_asks_for_has_bounds(asked, allowed, bench, monkeypatch):
    monkeypatch.setattr(
        execution, "run", ran := Mock(return_value={"observation": "1", "well": True})
    )
    bench().use("ExecuteCodeAction", code="1", timeout_sec=asked)
    assert ran.call_args.args[2] == allowed


COUNTED = "open('runs', 'a').write('x')\nprint(open('runs').read())"


@pytest.mark.parametrize("text", [COUNTED, r"print('\ud800')", r"print('a\0b')", r"print('\xff')"])
def test_a_program_runs_once_and_is_replayed_whatever_it_prints(text, bench):
    tools = bench()
    seen = [tools.outcome("ExecuteCodeAction", m, code=text) for m in ("record", "replay")]
    assert seen[0] == seen[1] and (text != COUNTED or seen[1] == "x")


def test_a_cgroup_limits_the_memory_and_the_number_of_all_processes_together(monkeypatch, tmp_path):
    disks = sandbox.MAX_ADDED_BYTES + 2 * sandbox.TMP_BYTES
    monkeypatch.setattr(sandbox, "MAX_MEMORY_BYTES", (100 << 20) - disks)
    with sandbox.cgroup_for(tmp_path) as group:
        if not group:
            pytest.skip("no cgroup v2 can be made here; make test-cgroup does it in another kernel")

        def stderr_of(text: str) -> bytes:
            command = [sys.executable, "-c", f"import os, time\n{text}"]
            entered = [*cgroup.ENTER, str(group), *command]
            return subprocess.run(entered, stderr=subprocess.PIPE, check=False).stderr

        forks = "while True: os.fork() or time.sleep(2) or os._exit(0)"
        assert b"temporarily unavailable" in stderr_of(forks)
        assert not cgroup.ran_out_of_memory(group)
        assert stderr_of("len(bytearray(200 << 20)); os.write(2, b'GOT')") == b""
        assert cgroup.ran_out_of_memory(group)
    assert not group.exists()
