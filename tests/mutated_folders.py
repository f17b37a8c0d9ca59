"""Run folders and sweeps as an attacker or a broken disk would leave them, and the commands that read
one in a process with limits. benchmarks/mutated_folders.py makes thousands of them.
"""

import contextlib
import gc
import json
import os
import random
import resource
import shutil
import signal
import socket
import stat
import sys
import time
import traceback
from pathlib import Path
from typing import NamedTuple

from tests.conftest import ROOT
from tests.sweeps import recorded

MAX_BYTES, MAX_S = 1 << 30, 10
RUNS = tuple(f"equinox{name}" for name in ("", "-mas-orchestra", "-react", "-aorchestra"))
POOL = ROOT / "fixtures" / "pools" / "qwen-local.toml"
KEPT = 3  # runs of a sweep
DEEP, SURROGATE = "<deep>", "<half a pair>"  # replaced in the JSON text
ODD = (
    None, True, 0, -1, 1.5, -1e300, 1e300, float("nan"), float("inf"), 10**30, 1 << 70, "", "x", "../..", "/etc/passwd", "a/b", ".",
    "x" * 5000, [], {}, [[]], [None], {"a": 1}, [1, 2], DEEP, SURROGATE, "r" + "9" * 5000, -(2**31), "\0", "\n# x",
)  # fmt: skip
ODD_LINES = (
    b"[]",
    b"{}",
    b"null",
    b"5",
    b'"x"',
    b"{",
    b"\xff\xfe",
    b"\0" * 100,
    b'{"resumed": 1}',
    b'{"event": "end"}',
    b'{"event": "run"}',
)


class Outcome(NamedTuple):
    code: int  # below 0: a signal
    err: str
    mib: float  # more than this process has
    wall_s: float
    what: str = ""

    def problem(self) -> str:
        """What must not happen, or ""."""
        if (
            self.err.startswith("Traceback")
            or "\nTraceback" in self.err
            or self.code < 0
            or self.code not in (0, 1, 2, 3, 4)
        ):
            return f"exit {self.code}: {self.err[-1500:]}"
        if self.mib > MAX_BYTES >> 20:
            return f"{self.mib:.0f} MiB"
        lines = [x for x in self.err.splitlines() if "left out" not in x]
        is_diff = self.code == 3 and "differs from its recording" in self.err
        if self.code > 1 and len(lines) != 1 and not is_diff:
            return f"exit {self.code} with {len(lines)} lines: {self.err[-1500:]}"
        return ""


# ---- what is mutated -----------------------------------------------------------------------------


def make(folder, chance):
    """A copy of a run or a sweep, as a folder of its own. Returns its kind."""
    kind = chance.choice(["run", "run", "sweep"])
    if kind == "run":
        shutil.copytree(ROOT / "fixtures/runs" / chance.choice(RUNS), folder / "run")
        return kind
    sweep, source = folder / "react", recorded("react")
    lines = (source / "rows.jsonl").read_text().splitlines()[:KEPT]
    sweep.mkdir()
    shutil.copy(source / "sweep.json", sweep)
    (sweep / "rows.jsonl").write_text("\n".join(lines) + "\n")
    for row in map(json.loads, lines):
        shutil.copytree(source / "runs" / row["run"], sweep / "runs" / row["run"])
    return kind


def commands(folder, kind):
    """The commands that read it."""
    if kind == "sweep":
        return (
            ["evaluate", "report", folder / "react"], ["report", folder], ["report", folder / "react"],
            ["runs", folder / "react/runs"], *(["report", run] for run in sorted(folder.glob("react/runs/*"))[:1]),
        )  # fmt: skip
    run = folder / "run"
    again = ["resume", run, "--quiet", "--backends", POOL, "--timeout", 1]
    return (
        ["--quiet", "--replay", run], again, [*again, "--from-round", 1, "--out", folder.parent / "fork"], ["runs", folder], ["report", run],
        ["diff", ROOT / "fixtures/runs/equinox", run], ["report", folder], ["explain", run], ["examples", run, "--out", folder.parent / "examples.jsonl"],
    )  # fmt: skip


def mutate(folder, chance):
    """Change one thing, sometimes two. Returns what."""
    done = []
    for _ in range(chance.choice([1, 1, 2])):
        files = sorted(
            p
            for p in folder.rglob("*")
            if p.is_file() and not p.is_symlink() and p.stat().st_size < 8 << 20
        )
        of_text = [p for p in files if p.suffix in (".json", ".jsonl")]
        if not files:
            break
        change = chance.choice([in_bytes, in_a_field, in_a_field, in_a_field, in_lines, of_kind])
        path = chance.choice(files if change is of_kind else of_text or files)
        done.append(f"{path.relative_to(folder)}: {change(path, chance)}")
    return "; ".join(done)


def in_bytes(path, chance):
    data = bytearray(path.read_bytes())
    at = chance.randrange(len(data) + 1)
    kind = chance.choice(["cut", "flip", "hole", "empty", "insert", "twice"])
    if kind == "cut":
        del data[at:]
    elif kind == "flip":
        for _ in range(chance.choice([1, 10, 100]) if data else 0):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif kind == "hole":
        del data[at : at + chance.choice([1, 50, 5000])]
    elif kind == "empty":
        data.clear()
    elif kind == "insert":
        data[at:at] = chance.randbytes(20)
    else:
        data = data * 2
    path.write_bytes(data)
    return f"{kind} at {at}"


def as_text(value):
    deep = "[" * 3000 + "]" * 3000
    return json.dumps(value).replace(f'"{DEEP}"', deep).replace(SURROGATE, "\\ud800")


def in_a_field(path, chance):
    """Another value, or none, in one place of the JSON."""
    text = path.read_text("utf-8", "replace")
    is_lines = path.suffix == ".jsonl"
    lines = text.splitlines() if is_lines else [text]
    if not lines:
        return "nothing in it"
    n = chance.randrange(len(lines))
    try:
        row = json.loads(lines[n])
    except (ValueError, RecursionError):
        return "not JSON"
    if not isinstance(row, dict | list) or not row:
        return "nothing in it"
    where = []
    here = row
    while True:
        key = chance.choice(sorted(here) if isinstance(here, dict) else range(len(here)))
        where.append(key)
        inner = here[key]
        if not (isinstance(inner, dict | list) and inner and chance.random() < 0.75):
            break
        here = inner
    value = chance.choice(ODD)
    if chance.random() < 0.15:
        del here[key]
        value = "deleted"
    else:
        here[key] = value
    lines[n] = as_text(row)
    path.write_text("\n".join(lines) + ("\n" if is_lines else ""))
    return f"{n}.{'.'.join(map(str, where))} = {str(value)[:40]}"


def in_lines(path, chance):
    """Lines that are lost, twice, in another order, or not ours."""
    lines = path.read_bytes().splitlines()
    kind = chance.choice(["lost", "twice", "shuffled", "odd", "joined"])
    at = chance.randrange(len(lines) + 1)
    if kind == "lost":
        del lines[at : at + 1]
    elif kind == "twice":
        lines[at:at] = lines[at : at + 1] * 3
    elif kind == "shuffled":
        chance.shuffle(lines)
    elif kind == "odd":
        lines[at:at] = [chance.choice(ODD_LINES)] * chance.choice([1, 1, 2000])
    path.write_bytes((b"" if kind == "joined" else b"\n").join(lines) + b"\n")
    return f"{kind} at {at}"


def of_kind(path, chance):
    """Something else than the file, in its place, in that of its folder, or next to it."""
    mine = next(p for p in path.parents if (p / "mine").is_dir()) / "mine"
    target = chance.choice(
        [
            path,
            path,
            path,
            path.parent,
            path.with_name("media"),
            path.with_name("work"),
            path.parent / "more",
        ]
    )
    if target == mine.parent / "data":
        target = path
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
    kind = chance.choice(
        [
            "none",
            "link",
            "link to itself",
            "link to a folder",
            "pipe",
            "socket",
            "device",
            "folder",
            "sparse",
            "big",
            "lists",
            "empty",
        ]
    )
    if kind == "link":
        target.symlink_to(mine / chance.choice(["file", "tape.jsonl", "missing"]))
    elif kind == "link to itself":
        target.symlink_to(target)
    elif kind == "link to a folder":
        target.symlink_to(chance.choice([mine, Path("/")]))
    elif kind == "pipe":
        os.mkfifo(target)
    elif kind == "socket":
        here = socket.socket(socket.AF_UNIX)
        with contextlib.chdir(target.parent):  # its name may have 107 characters
            here.bind(target.name)
        here.close()
    elif kind == "device":
        try:
            os.mknod(target, 0o666 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero
        except PermissionError:
            os.mkfifo(target)
    elif kind == "folder":
        target.mkdir()
        (target / "x").touch()
    elif kind == "sparse":
        target.touch()
        os.truncate(target, chance.choice([20 << 20, 900 << 20, 3 << 30, 1 << 42]))
    elif kind == "big":
        target.write_bytes(
            chance.choice([b"[]\n", b"{}\n", b"{\n", b"\n", b'{"resumed": 1}\n']) * 3_000_000
        )
    elif kind == "lists":
        target.write_bytes(chance.choice([b"[", b'{"call": [', b""]) + b"[]," * 5_000_000)
    elif kind == "empty":
        target.touch()
    return f"{kind} as {target.name}"


# ---- a mutation and what becomes of it -----------------------------------------------------------


def outcomes(here, seed):
    """Two commands on a mutated folder. `here` is empty, and stays so but for what they read."""
    chance = random.Random(seed)
    for name in ("mine", "data"):
        (here / name).mkdir()
    (here / "mine" / "file").write_text("mine")
    shutil.copy(ROOT / "fixtures/runs/equinox/tape.jsonl", here / "mine")
    before = snapshot(here / "mine")
    kind = make(here / "data", chance)
    what = mutate(here / "data", chance)
    for argv in chance.sample(commands(here / "data", kind), 2):
        outcome = run(argv, here)
        words = " ".join(str(word).replace(str(here), "") for word in argv)
        outcome = outcome._replace(what=f"{seed}: {what} | {words}")
        if snapshot(here / "mine") != before:
            outcome = outcome._replace(code=99, err="a file outside was changed")
        yield outcome


def snapshot(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


# ---- a command in a process with limits ----------------------------------------------------------


def run(argv, folder):
    """The outcome of a command in a fork of this process."""
    output = folder / "output"
    held_mib = held(1) / (1 << 20)
    started = time.perf_counter()
    child = os.fork()
    if not child:
        _in_child([str(word) for word in argv], output)
    _, status, usage = os.wait4(child, 0)
    wall_s = time.perf_counter() - started
    code = os.waitstatus_to_exitcode(status)
    return Outcome(
        code, output.read_text("utf-8", "replace"), usage.ru_maxrss / 1024 - held_mib, wall_s
    )


def held(which):
    """Bytes of this process: 0 its addresses, 1 its memory. A fork has them, too."""
    pages = Path("/proc/self/statm").read_text().split()
    return int(pages[which]) * resource.getpagesize()


def _in_child(argv, output):
    code = 70
    try:
        gc.freeze()  # what other tests left, such as a client of Dask, is not closed here
        os.setsid()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(MAX_S)
        most = held(0) + MAX_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.stderr = output.open("w")
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
        os.dup2(sys.stderr.fileno(), 2)
        code = _main(argv)
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 70)


def _main(argv):
    if argv[0] == "examples":
        from orchestra.training import examples

        return examples.main(argv[1:])
    import orchestra_min

    return orchestra_min.main(argv)
