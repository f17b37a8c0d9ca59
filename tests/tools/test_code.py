"""Programs as a model writes them, behind each wall there is. What they try to break is in tests/attacks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tools import ToolError, code, wall

IMPORTS = "from datetime import *\nfrom zoneinfo import ZoneInfo\n"


@pytest.fixture(params=wall.WALLS)
def level(request: pytest.FixtureRequest) -> wall.Wall:
    if request.param != "bare" and not wall.holds(request.param):
        pytest.skip(f"{request.param} can not be built on this machine")
    return request.param


@pytest.fixture
def program(level, tmp_path):
    """Run a program behind each wall, in the folder of one sub-agent."""

    def run(text: str, kind: str = "python", timeout_s: float = 10) -> str:
        return code.run(text, kind, timeout_s, tmp_path / "work", level=level, marked=True)[
            "observation"
        ]

    return run


def unmarked(observation: str) -> str:
    """An observation without the marks of data around what was printed."""
    return "\n".join(r for r in observation.splitlines() if not r.startswith(("<data ", "</data ")))


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("1 + 1", "2"),
        ("x = 2\nx * 3", "6"),
        ("print('a')\n'b'", "a\n'b'"),
        ("print('only')", "only"),
        ("'\u017elutý'", "'\u017elutý'"),
        (f"{IMPORTS}datetime(2025, 9, 23, 7, 49, tzinfo=ZoneInfo('Europe/Prague')).timestamp()", "1758606540.0"),
    ],
)  # fmt: skip
def test_what_is_printed_and_the_value_of_the_last_expression_are_seen(text, seen, program):
    assert unmarked(program(text)) == seen


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("import pickle\nclass A: pass\ntype(pickle.loads(pickle.dumps(A()))) is A", "True"),
        ("from multiprocessing import Pool\ndef f(x): return x * x\nwith Pool(2) as p: print(p.map(f, [1, 2]))", "[1, 4]"),
        ("import dataclasses, typing\n@dataclasses.dataclass\nclass N:\n  n: 'N | None'\nlen(typing.get_type_hints(N))", "1"),
        ("sorted(n for n in dir() if n[0] != '_')", "[]"),
    ],
)  # fmt: skip
def test_what_a_program_defines_is_found_in_its_main_module_and_nothing_else(text, seen, program):
    assert unmarked(program(text)) == seen


@pytest.mark.parametrize("text", ["", "x = 1", "None"])
def test_a_program_that_shows_nothing_is_told_to_print(text, program):
    assert program(text) == "[the program ended well and printed nothing; use print()]"


def test_an_exception_is_seen_with_its_line_and_none_of_ours(program):
    assert unmarked(program("print('before')\n\n1 / 0")) == (
        'before\nTraceback (most recent call last):\n  File "<code>", line 3, in <module>\n'
        "ZeroDivisionError: division by zero\n[the program failed with exit status 1]"
    )


@pytest.mark.parametrize(
    "text",
    ["x = (", "  x = 1\ny", "a\0b", "(" * 100_000, "x = " + "-" * 10**6 + "1", "raise KeyboardInterrupt"],
)  # fmt: skip
def test_what_python_will_not_run_is_an_observation_and_no_failure_of_ours(text, program):
    seen = program(text)
    assert seen.endswith("[the program failed with exit status 1]") and "<string>" not in seen


def test_a_python_program_of_20_mb_runs(program):
    assert program(f"x = '{'y' * 20_000_000}'\nlen(x)", timeout_s=40) == "20000000"


@pytest.mark.parametrize("length", [10, 99_000, 140_000, 3_000_000])
def test_bash_of_any_length_runs(length, program):
    assert program(f"# {'x' * length}\necho $((6 * 7)); read x || exit 3", "bash") == (
        "42\n[the program failed with exit status 3]"
    )


def test_bash_with_a_null_byte_is_an_observation(program):
    seen = program("echo one\necho a\0b", "bash")
    assert "one" in seen and "Traceback" not in seen


def test_bash_has_process_substitution(program):
    assert program("cat <(echo read)", "bash") == "read"


def test_a_program_that_takes_too_long_is_stopped_and_what_it_printed_is_seen(program):
    started = time.monotonic()
    seen = program("print('so far')\nimport time\ntime.sleep(60)", timeout_s=2)
    assert seen == "so far\n[stopped: the program took longer than 2 s]"
    assert time.monotonic() - started < 8


def test_a_program_that_stops_itself_is_ended(program):
    seen = program("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", timeout_s=0.7)
    assert seen == "-\n[stopped: the program took longer than 0.7 s]"


def test_a_crash_leaves_no_core_file(program, tmp_path):
    assert "exit status 139]" in program("import ctypes; ctypes.string_at(0)")
    assert not list((tmp_path / "work").iterdir())


def test_nothing_but_a_few_plain_names_is_in_the_environment(program):
    seen = unmarked(program("import os\nprint(*sorted(os.environ))")).split()
    plain = {"HOME", "LANG", "PATH", "PWD", "OLDPWD", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}
    assert {"HOME", "PATH"} <= set(seen) <= plain


def test_the_folder_may_be_relative_as_runs_are_by_default(level, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "a" / "media").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "media" / "m.txt").write_text("seen")
    folder, media = Path("runs/a/work/r1-t1"), Path("runs/a/media")
    ran = code.run("open('f', 'w').write(open('media/m.txt').read())", "python", 10, folder, media, level)  # fmt: skip
    assert ran["observation"] == "4" and (tmp_path / folder / "f").read_text() == "seen"


def test_input_is_at_its_end(program):
    assert "EOFError" in program("input()")


def processes_with(mark: str) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            data = place.read_bytes()
        except OSError:
            continue
        if mark.encode() in data and int(place.parts[2]) != os.getpid():
            found.append(int(place.parts[2]))
    return found


PARENT = """
import sys
from pathlib import Path
from tools import code
code.run(sys.argv[1], "python", 120, Path(sys.argv[2]), level=sys.argv[3])
"""
STAYS = """
import ctypes, subprocess, time
ctypes.CDLL(None).prctl(1, 0)  # no signal when the parent dies
subprocess.Popen(['setsid', 'sleep', '{seconds}'])
time.sleep(0.2); open('on', 'w').close(); time.sleep(100)
"""


def test_a_program_and_its_detached_child_end_with_a_killed_parent(level, tmp_path):
    seconds = f"1{wall.WALLS.index(level)}{os.getpid()}"
    command = [sys.executable, "-c", PARENT, STAYS.format(seconds=seconds), str(tmp_path / "work"), level]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT) as parent:
        give_up = time.monotonic() + 20
        while not (tmp_path / "work" / "on").exists() and time.monotonic() < give_up:
            time.sleep(0.02)
        assert processes_with(seconds)
        parent.kill()
    give_up = time.monotonic() + 5
    while processes_with(seconds) and time.monotonic() < give_up:
        time.sleep(0.05)
    assert not processes_with(seconds)


def test_a_bubblewrap_that_can_not_mount_is_not_chosen(tmp_path, monkeypatch):
    """As in containers where it starts, but /proc can not be mounted."""
    fake = tmp_path / "bwrap"
    fake.write_text('#!/bin/sh\ncase "$*" in *--proc*) exit 1;; esac\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    wall.holds.cache_clear()
    try:
        assert not wall.holds("bubblewrap")
    finally:
        wall.holds.cache_clear()


def test_a_wall_that_is_not_installed_does_not_hold(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    wall.holds.cache_clear()
    try:
        assert not wall.holds("bubblewrap") and not wall.holds("unshare")
    finally:
        wall.holds.cache_clear()


@pytest.mark.parametrize(("asked", "allowed"), [(0, 1), (-5, 1), (7, 7), (9999, 60)])
def test_the_time_a_model_asks_for_has_bounds(asked, allowed, bench):
    tools = bench()
    tools.use("ExecuteCodeAction", code="1", timeout_sec=asked)
    assert f'\\"timeout_s\\": {allowed}' in (tools.folder / "tape.jsonl").read_text()


def test_a_program_runs_once_and_is_replayed(bench):
    tools, counted = bench(), "open('runs', 'a').write('x')\nprint(open('runs').read())"
    assert tools.use("ExecuteCodeAction", code=counted) == "x"
    assert tools.use("ExecuteCodeAction", "replay", code=counted) == "x"
    assert (tools.folder / "work" / "runs").read_text() == "x"


@pytest.mark.parametrize("text", ["print('\\ud800')", "print('a\\0b')", "print('\\xff')"])
def test_odd_characters_go_through_the_tape(text, bench):
    def outcome(mode):
        try:
            return tools.use("ExecuteCodeAction", mode, code=text)
        except ToolError as error:
            return str(error)

    tools = bench()
    assert outcome("record") == outcome("replay")
