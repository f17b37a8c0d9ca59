"""The program as its user meets it: flags, output, exit codes, one line for what is wrong."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import orchestra_min
from orchestra.command_line import parse
from orchestra.lines import read
from orchestra.run_folder import locked
from tests.conftest import ROOT
from tests.scripted import Endpoint, Raw, complete, delegate, finish, is_main, last_text

PROGRAM = ROOT / "orchestra_min.py"
CLOCK = ROOT / "fixtures" / "media" / "clock.png"
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
Done = subprocess.CompletedProcess[str]


def respond(request: dict[str, Any]) -> Any:
    """A main agent that delegates once and then answers."""
    if not is_main(request):
        return finish("found it")
    return complete("42") if "found it" in last_text(request) else delegate("look")


def run_in(folder: Path, *arguments: Any, at: str = "", stdin: str = "", **variables: str) -> Done:
    where = {"OPENAI_BASE_URL": at} if at else {}
    return subprocess.run(
        [sys.executable, PROGRAM, *map(str, arguments)],
        input=stdin,
        env={**CLEAN, **where, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., Done]:
    """Run the program in an empty folder."""
    return lambda *arguments, **how: run_in(tmp_path, *arguments, **how)


@pytest.fixture
def called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """The same without a process of its own, which takes half a second to start."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: Any, at: str = "", **variables: str) -> Done:
        for name, value in {"OPENAI_BASE_URL": at, **variables}.items():
            monkeypatch.setenv(name, value)
        code = orchestra_min.main(parse([str(a) for a in arguments]))
        return Done(arguments, code, *capfd.readouterr())

    return call


@pytest.fixture
def server(endpoint: Callable[..., Endpoint]) -> Endpoint:
    return endpoint(respond)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Done]]:
    """The folder of one finished run, and what the program said, with --json."""
    folder, server = tmp_path_factory.mktemp("finished"), Endpoint(respond)
    pool = f'[[backend]]\nname = "small"\nbase_url = "{server.url}"\n'
    (folder / "pool.toml").write_text(pool + "price_usd_per_mtok = {input = 10, output = 100}\n")
    flags = ("--question", "?", "--backends", "pool.toml", "--out", "run", "--budget", 1, "--json")
    yield folder / "run", run_in(folder, *flags)
    server.close()


class Plain(NamedTuple):
    folder: Path
    server: Endpoint
    done: Done


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plain]:
    """One run with no flag but the question."""
    folder, server = tmp_path_factory.mktemp("plain"), Endpoint(respond)
    yield Plain(folder, server, run_in(folder, "--question", "?", at=server.url))
    server.close()


def line_of(done: Done, code: int = 2) -> str:
    """The one line on standard error of a command that failed."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("orchestra_min.py: ")
    return line.removeprefix("orchestra_min.py: ")


# ---- answers -------------------------------------------------------------------------------------


def test_the_answer_stands_alone_on_standard_output(plain):
    assert (plain.done.returncode, plain.done.stdout) == (0, "42\n")


def test_an_unknown_price_is_said_once_on_standard_error(plain):
    said = "cost unknown: a model used has no price, or a call got no answer\n"
    assert plain.done.stderr == said


def test_a_model_left_out_is_the_one_that_is_served(plain):
    assert {r["model"] for r in plain.server.requests} == {"scripted"}


def test_the_default_folder_of_a_run_is_under_runs(plain):
    [folder] = (plain.folder / "runs").iterdir()
    names = {"run.json", "tape.jsonl", "trajectory.jsonl", "log.txt"}
    assert names <= {p.name for p in folder.iterdir()}


def test_quiet_says_nothing_but_the_answer_of_the_model_that_is_named(program, server):
    done = program("--question", "?", "--quiet", "--model", "big", at=server.url)
    assert (done.stdout, done.stderr) == ("42\n", "")
    assert {r["model"] for r in server.requests} == {"big"}


def test_json_is_one_object_of_these_keys(finished):
    _, done = finished
    [line] = done.stdout.splitlines()
    keys = ["answer", "fallback", "cost_usd", "paid_usd", "calls", "rounds", "latency_s", "run"]
    assert list(json.loads(line)) == keys


def test_json_holds_what_the_run_came_to(finished):
    _, done = finished
    row = json.loads(done.stdout)
    assert 0 < row.pop("latency_s") < 30
    cost = pytest.approx(3 * (100 * 10 + 10 * 100) / 1e6)
    money = {"cost_usd": cost, "paid_usd": cost, "calls": 3}
    assert row == {"answer": "42", "fallback": False, "rounds": 2, "run": "run", **money}


def test_a_replay_prints_the_same_answer_and_pays_nothing(finished):
    folder, _ = finished
    row = json.loads(run_in(folder.parent, "--replay", "run", "--json", "--parallel", 3).stdout)
    assert (row["answer"], row["calls"], row["paid_usd"]) == ("42", 3, 0.0)
    assert row["cost_usd"] == pytest.approx(0.006)


def test_a_replay_needs_neither_key_nor_endpoint_and_writes_nothing(finished):
    folder, _ = finished
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    done = run_in(folder.parent, "--replay", folder)
    assert (done.returncode, done.stdout) == (0, "42\n")
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == before


def test_a_dash_reads_the_question_from_standard_input(program, server):
    done = program("--question", "-", "--quiet", at=server.url, stdin="Wie spät ist es\nin Prag?\n")
    assert done.stdout == "42\n"
    assert "Wie spät ist es\nin Prag?" in last_text(server.requests[0])


def test_a_fork_asks_again_from_its_round_and_leaves_its_parent_alone(program, server, tmp_path):
    program("--question", "?", "--out", "run", at=server.url)
    before = (tmp_path / "run" / "tape.jsonl").read_bytes()
    done = program("--resume", "run", "--from-round", 2, "--out", "new", "--json", at=server.url)
    assert json.loads(done.stdout)["run"] == "new"
    assert len(server.requests) == 3 + 1  # the second decision
    assert (tmp_path / "run" / "tape.jsonl").read_bytes() == before


def test_a_fork_from_a_round_that_was_not_reached_is_refused_and_leaves_nothing(finished, called):
    folder, _ = finished
    line = line_of(called("--resume", folder, "--from-round", 3, "--out", "new"))
    assert line.startswith(f"--from-round 3: the last round on the tape of {folder} is 2;")
    assert not Path("new").exists()


# ---- exit codes ----------------------------------------------------------------------------------


def test_a_fallback_answer_exits_with_1_and_is_called_one(program, endpoint):
    always = endpoint(lambda r: delegate("look") if is_main(r) else finish("found it"))
    done = program("--question", "?", "--rounds", 1, "--quiet", "--out", "run", at=always.url)
    assert (done.returncode, done.stdout) == (1, "found it\n")
    assert done.stderr == "a fallback answer, from the evidence; see run\n"


def test_no_answer_exits_with_1_and_is_null_in_json(program, endpoint):
    lost = endpoint(lambda request: "I do not know.")
    done = program("--question", "?", "--json", "--quiet", "--out", "run", at=lost.url)
    row = json.loads(done.stdout)
    assert (done.returncode, row["answer"], row["fallback"]) == (1, None, True)
    assert done.stderr == "no answer found; see run\n"


def test_a_tape_miss_exits_with_3_and_names_the_call(finished, tmp_path):
    folder, _ = finished
    for name in ("run.json", "tape.jsonl", "trajectory.jsonl"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    rows = (tmp_path / "tape.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "tape.jsonl").write_text("".join(r for r in rows if '"call": "r1/t1/s1"' not in r))
    done = run_in(tmp_path, "--replay", tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert "nothing recorded for the call 'r1/t1/s1'" in done.stderr


@pytest.mark.parametrize(
    "answer, said",
    [
        (lambda: Raw(401, {"error": {"message": "no"}}), "check the key in MY_KEY"),
        (lambda: Raw(429, {}, retry_after_ms="1"), "rate or quota limit; wait"),
        (lambda: Raw(200, "<html>\nhello", content_type="text/html"), "that is not JSON"),
    ],
)
def test_an_endpoint_that_fails_exits_with_4_in_one_line(answer, said, called, endpoint, tmp_path):
    failing = endpoint(lambda request: answer())
    pool = f'[[backend]]\nname = "small"\nbase_url = "{failing.url}"\napi_key_env = "MY_KEY"\n'
    (tmp_path / "pool.toml").write_text(pool)
    done = called("--question", "?", "--backends", "pool.toml", MY_KEY="a-secret-key-1234")
    line = line_of(done, 4)
    assert line.startswith(f"small at {failing.url}: ") and said in line
    assert "a-secret-key-1234" not in line


def test_an_endpoint_that_hangs_exits_with_4_after_the_timeout(called, endpoint):
    hanging = endpoint(lambda request: time.sleep(20))
    done = called("--question", "?", "--timeout", 0.2, "--model", "m", at=hanging.url)
    assert "no answer in time; is it up?" in line_of(done, 4)


def test_an_endpoint_that_is_not_there_exits_with_4(called):
    done = called("--question", "?", "--model", "m", at="http://127.0.0.1:9/v1")
    assert "m at http://127.0.0.1:9/v1: can not be reached (" in line_of(done, 4)


def test_help_answers_at_once_and_names_the_exit_codes(program):
    times = []
    for _ in range(3):
        started = time.monotonic()
        done = program("--help")
        times.append(time.monotonic() - started)
    assert min(times) < 0.3
    assert done.returncode == 0 and "130 interrupted" in done.stdout


# ---- bad input: one line, exit code 2, nothing asked, nothing left behind ------------------------


WHOLE = "is not a whole number from 1 to 10000"


@pytest.mark.parametrize(
    "flags, line",
    [
        (
            "",
            "--question is missing (or --replay RUN, --resume RUN); "
            'try --question "..." --image FILE, or make demo',
        ),
        ("--question ? --rounds 0", f"--rounds: '0' {WHOLE}"),
        ("--question ? --rounds many", f"--rounds: 'many' {WHOLE}"),
        ("--question ? --steps -1", f"--steps: '-1' {WHOLE}"),
        ("--question ? --parallel 1.5", f"--parallel: '1.5' {WHOLE}"),
        ("--question ? --budget nan", "--budget: 'nan' is not an amount of USD"),
        ("--question ? --budget -1", "--budget: '-1' is not an amount of USD"),
        ("--question ? --timeout 0", "--timeout: '0' is not a number of seconds"),
        (
            "--question ? --stop-threshold 2",
            "--stop-threshold: '2' is not a probability from 0 to 1",
        ),
        ("--question ? --colour red", "unrecognized arguments: --colour red"),
        ("--question", "--question: expected one argument"),
        ("--replay a --resume b", "--replay and --resume: give one of them"),
        ("--replay a --question ?", "--question: comes from the run folder a; leave it out"),
        ("--replay a --image b", "--image: comes from the run folder a; leave it out"),
        ("--resume a --budget 5", "--budget: comes from the run folder a; leave it out"),
        ("--question ? --from-round 2", "--from-round: needs --resume RUN"),
        ("--replay a --from-round 2", "--from-round: needs --resume RUN"),
        (
            "--replay a --out b",
            "--out: a replay or a resumed run has its folder; --out goes with --from-round",
        ),
    ],
)
def test_flags_that_do_not_fit_are_said_in_one_line(flags, line, program):
    assert line_of(program(*flags.split())) == f"{line} (see --help)"


@pytest.mark.parametrize("host", ["http://wiki/", "", "a b", "wiki:99999", "wiki:abc", "*"])
def test_an_internal_host_is_a_host(host, program):
    said = f"--allow-host: needs HOST or HOST:PORT, not {host!r} (see --help)"
    assert line_of(program("--question", "?", "--allow-host", host)) == said


def test_an_answer_that_could_not_be_written_is_no_success(finished, capfd):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, PROGRAM, "--replay", finished[0]],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=CLEAN,
        )
    assert done.returncode == 1
    assert done.stderr.endswith(
        "orchestra_min.py: stdout: No space left on device; the answer is in the run folder\n"
    )


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_stream_that_the_shell_closed_harms_nothing(stream, finished):
    closed = {"stdout": ">&-", "stderr": "2>&-"}[stream]
    line = f'"$1" "$2" --replay "$3" {closed}'
    call = ["sh", "-c", line, "sh", sys.executable, PROGRAM, finished[0]]
    done = subprocess.run(call, capture_output=True, text=True, env=CLEAN)
    assert done.returncode == 0 and "Traceback" not in done.stderr


def test_a_method_that_is_not_there_is_told_with_those_that_are(program):
    line = line_of(program("--question", "?", "--method", "magic"))
    assert line.startswith("--method: invalid choice: 'magic' (choose from ")
    assert "orchestra-o1" in line


def prepare(folder: Path) -> None:
    """The bad files that the next test names."""
    (folder / "empty.png").touch()
    (folder / "notes.png").write_text("these are notes\n" * 50)
    (folder / "full").mkdir()
    (folder / "full" / "mine.txt").write_text("mine")
    (folder / "broken.toml").write_text('[[backend]]\nname = "a\n')
    (folder / "typo.toml").write_text('[[backend]]\nname = "a"\nbase_uri = "http://x/v1"\n')
    (folder / "two.toml").write_text('[[backend]]\nname = "a"\nbase_url = "http://x/v1"\n' * 2)
    (folder / "newer").mkdir()
    (folder / "newer" / "run.json").write_text('{"v": 2}')
    with (folder / "huge.png").open("wb") as f:
        f.truncate(101 << 20)


@pytest.mark.parametrize(
    "flags, said",
    [
        ("--image gone.png", "--image gone.png: there is no such file; check the path"),
        ("--image empty.png", "--image empty.png: is empty; give another file"),
        ("--image full", "--image full: is not a file; name the file itself"),
        ("--image huge.png", "--image huge.png: 101 MiB is over the limit of 100 MiB; cut or"),
        ("--image notes.png", "--image notes.png: is no image file; no picture and no sound"),
        (f"--audio {CLOCK}", f"--audio {CLOCK}: is no audio file; it holds image: use --image"),
        ("--out full", "full: is there already and not empty; give another --out, or --resume"),
        ("--out full/mine.txt", "full/mine.txt: is there already and not empty; give another"),
        ("--backends gone.toml", "gone.toml: can not be read ("),
        ("--backends broken.toml", "broken.toml: not TOML: "),
        ("--backends typo.toml", "typo.toml:3: base_uri: unknown key; known: "),
        ("--backends two.toml", "two.toml:5: name: 'a' is there twice; give each backend its"),
        ("--budget 1", "--budget needs prices, and backend main has none: set price_usd_per_mtok"),
    ],
)
def test_bad_input_is_said_in_one_line_and_nothing_is_asked_or_left(
    flags, said, called, server, tmp_path
):
    prepare(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    line = line_of(called("--question", "?", *flags.split(), at=server.url))
    assert line.startswith(said)
    assert server.requests == []
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "flags, said",
    [
        ("--replay full", "full: is no run folder (it has no run.json); give a folder that a run"),
        ("--resume gone", "gone: is no run folder (it has no run.json); give a folder that a run"),
        ("--resume " + "x" * 300, "x" * 300 + ": is no run folder"),
        (
            "--resume newer",
            "newer/run.json: version 2, and this program reads up to 1; use a newer",
        ),
    ],
)
def test_a_folder_that_is_no_run_of_ours_is_said(flags, said, called, tmp_path):
    prepare(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert line_of(called(*flags.split())).startswith(said)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("flags", [["--replay"], ["--resume"], ["--from-round", 1, "--resume"]])
def test_a_run_folder_in_use_is_said(flags, finished, called, tmp_path):
    folder, _ = finished
    with locked(folder):
        line = line_of(called(*flags, folder))
    assert line == f"{folder}: is in use by another process; wait for it, or copy the folder"
    assert not any(tmp_path.glob("runs/*"))  # nor is the folder of the fork left


def test_an_empty_question_is_said(program, server, tmp_path):
    assert "the question is empty" in line_of(
        program("--question", "-", at=server.url, stdin=" \n")
    )
    assert server.requests == [] and list(tmp_path.iterdir()) == []


def test_a_question_that_is_no_utf_8_is_asked_all_the_same(server, tmp_path):
    done = subprocess.run(
        [sys.executable, PROGRAM, "--question", "-", "--quiet"],
        input=b"caf\xe9?",
        env={**CLEAN, "OPENAI_BASE_URL": server.url, "PYTHONIOENCODING": "utf-8:strict"},
        cwd=tmp_path,
        capture_output=True,
    )
    assert done.stdout == b"42\n"
    assert "caf" in last_text(server.requests[0])


def test_without_key_and_endpoint_the_demo_is_named(called, tmp_path):
    line = line_of(called("--question", "?"))
    for way in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "--backends FILE", "make demo", "--replay "):
        assert way in line
    assert list(tmp_path.iterdir()) == []


def test_a_key_that_a_pool_names_and_nobody_set_is_said(called, server, tmp_path):
    pool = f'[[backend]]\nname = "a"\nbase_url = "{server.url}"\napi_key_env = "NO_SUCH_KEY"\n'
    (tmp_path / "pool.toml").write_text(pool)
    line = line_of(called("--question", "?", "--backends", "pool.toml"))
    said = "the environment variable NO_SUCH_KEY is not set; set it to your key"
    assert line == f"backend a: {said}"
    assert server.requests == []


def test_several_served_models_are_named_and_no_folder_is_left(called, server, tmp_path):
    server.models = {"data": [{"id": "a"}, {"id": "b"}]}
    line = line_of(called("--question", "?", at=server.url))
    assert line == f"{server.url} serves a, b: name one with --model"
    assert server.requests == []
    assert list((tmp_path / "runs").iterdir()) == []


# ---- Ctrl-C --------------------------------------------------------------------------------------


def start(folder: Path, at: str, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, PROGRAM, "--question", "?", "--model", "m", *flags],
        env={**CLEAN, "OPENAI_BASE_URL": at},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_in_seconds_and_the_line_it_prints_goes_on(stop, endpoint, tmp_path):
    hangs = [True]

    def respond_late(request: dict[str, Any]) -> Any:
        if not is_main(request) and hangs[0]:
            time.sleep(30)
        return respond(request)

    server = endpoint(respond_late)
    process = start(tmp_path, server.url, "--out", "my run")
    while len(server.requests) < 2:
        time.sleep(0.01)
    started = time.monotonic()
    process.send_signal(stop)
    _, said = process.communicate(timeout=20)
    assert time.monotonic() - started < 2
    line = line_of(Done(process.args, process.returncode, "", said), 130)
    assert line.startswith(f"interrupted; go on with: python {PROGRAM} --resume ")
    hangs[0] = False
    command = shlex.split(line.partition(f"go on with: python {PROGRAM} ")[2])
    assert run_in(tmp_path, *command, at=server.url).stdout == "42\n"
    assert len(server.requests) == 2 + 2  # the sub-task once more, and the last decision


def test_ctrl_c_while_the_program_starts_shows_no_traceback(tmp_path):
    for delay_s in (0.25, 0.4):
        process = start(tmp_path, "http://127.0.0.1:9/v1")
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
        assert process.returncode in (-signal.SIGINT, 130)  # a shell calls both 130
        assert "Traceback" not in said


def test_a_reader_that_has_gone_away_is_no_traceback(server, tmp_path):
    process = start(tmp_path, server.url, "--quiet")
    assert process.stdout and process.stderr
    process.stdout.close()  # as in `| head -0`
    with process.stderr:
        said = process.stderr.read()
    assert process.wait(20) == 0
    assert said == ""


# ---- a full disk ---------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mount a small disk of so many MiB."""
    path = tmp_path / "disk"
    path.mkdir()

    def mount(mib: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(path)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("needs the right to mount a small disk (root)")
        return path

    yield mount
    if path.is_mount():
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(path: Path, leave: int) -> None:
    free = os.statvfs(path).f_bavail * os.statvfs(path).f_frsize
    (path / "filler").write_bytes(bytes(max(0, free - leave)))


def test_on_a_full_disk_nothing_is_asked_and_nothing_is_left(disk, server):
    path = disk(8)
    line = line_of(run_in(path, "--question", "?", at=server.url))
    assert "less than 16 MiB free on this disk; free some, or give another --out" in line
    assert server.requests == [] and list(path.iterdir()) == []


def test_media_that_do_not_fit_on_the_disk_are_said_before_anything_is_asked(disk, server):
    path = disk(20)
    big = path.parent / "big.png"
    big.write_bytes(CLOCK.read_bytes() + bytes(30 << 20))
    line = line_of(run_in(path, "--question", "?", "--image", big, at=server.url))
    assert "less than 46 MiB free on this disk; free some" in line
    assert server.requests == []
    assert not (path / "runs").exists()


@pytest.mark.parametrize("leave, missing", [(1 << 20, 0), (0, 1)])
def test_a_disk_that_fills_up_ends_the_run_in_one_line_and_it_goes_on_later(
    leave, missing, disk, endpoint
):
    """With some room left no further call is started; with none, the one in flight is lost."""
    path, armed = disk(32), [True]

    def respond_and_fill(request: dict[str, Any]) -> Any:
        if not is_main(request) and armed.pop():
            fill(path, leave)
            armed.append(False)
        return respond(request)

    server = endpoint(respond_and_fill)
    flags = ("--question", "?", "--model", "m", "--out", "run")
    line = line_of(run_in(path, *flags, at=server.url))
    again = f"go on with: python {PROGRAM} --resume run"
    assert line.endswith(f"free some space, then resume the run; {again}")
    assert len(server.requests) == 2
    (path / "filler").unlink()
    assert run_in(path, "--resume", "run", at=server.url).stdout == "42\n"
    assert len(server.requests) == 3 + missing
    calls = [row["call"] for row in read(path / "run" / "tape.jsonl") if "call" in row]
    assert sorted(calls) == ["r1/main/a1", "r1/t1/s1", "r2/main/a1"]


def test_a_tool_of_the_user_s_reaches_the_run(called, server, tmp_path):
    (tmp_path / "mine.py").write_text('def f(day: str) -> str:\n    """When."""\n    return day\n')
    flags = ("--tools", "mine.py:f", "--allow-host", "wiki.local:8080", "--out", "run")
    assert called("--question", "?", *flags, at=server.url).stdout == "42\n"
    options = json.loads((tmp_path / "run" / "run.json").read_text())["options"]
    mine = f"{tmp_path}/mine.py:f"  # wherever a replay starts
    assert (options["tools"], options["allow_hosts"]) == ([mine], ["wiki.local:8080"])
    assert "f(day: string)" in server.requests[0]["messages"][0]["content"]


def test_resume_can_wait_longer_than_the_run_did(called, endpoint, tmp_path):
    server = endpoint(respond, delay_s=0.5)
    flags = ("--question", "?", "--timeout", 0.1, "--out", "run")
    failed = called(*flags, at=server.url)
    assert failed.returncode == 4 and "--timeout waits longer" in failed.stderr
    server = endpoint(respond, delay_s=0.3)
    called("--question", "?", "--out", "slow", at=server.url)
    (tmp_path / "slow" / "tape.jsonl").write_text("")
    assert called("--resume", "slow", "--timeout", 0.1).returncode == 4
    assert called("--resume", "slow", "--timeout", 5).stdout == "42\n"


def test_a_replay_takes_no_timeout(capsys):
    with pytest.raises(SystemExit):
        parse(["--replay", "run", "--timeout", "5"])
    assert "--timeout: comes from the run folder run" in capsys.readouterr().err
