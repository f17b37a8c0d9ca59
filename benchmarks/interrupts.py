#!/usr/bin/env python3
"""SIGINT and SIGTERM at random moments of short commands: does each end in 5 s, without a traceback, and can it go on?

python benchmarks/interrupts.py [INTERRUPTS=1000] [AT_ONCE=2] [SEED=0]

All methods, a run with retries, replay, evaluate run, report and runs. A fifth of the commands get a second signal, a
tenth get ten. Every tenth interrupted run is resumed and must answer 42. A signal that arrives before the program has set its handlers,
while Python itself starts, is counted apart: no program can handle it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from common import ROOT
from kills import script

from orchestra.methods import METHODS
from tests.scripted import Endpoint, Raw

LIMIT_S = 5.0
PROGRAM = [sys.executable, str(ROOT / "orchestra_min.py")]
STOPS = (signal.SIGINT, signal.SIGTERM)
HANDLED = 1 << (signal.SIGTERM - 1)  # in SigCgt; Python alone does not handle SIGTERM


class Case(NamedTuple):
    name: str
    words: list[str]  # {out}: a new folder
    resumable: bool = False


class Ended(NamedTuple):
    """How an interrupted command ended. `handled`: the program had set its handlers."""

    case: str
    handled: bool
    code: int
    took_s: float
    problem: str


def flaky(request: dict[str, Any]) -> Any:
    """Every fifth answer is an error, after which the program waits."""
    busy = Raw(503, {"error": {"message": "busy"}}, retry_after="1")
    return busy if random.random() < 0.2 else script(request)


def cases(folder: Path, done: Path) -> list[Case]:
    data = folder / "data.jsonl"
    rows = [{"question": f"What is {n}?", "answer": "42"} for n in range(6)]
    data.write_text("\n".join(map(json.dumps, rows)))
    new = ["What?", "--model", "m", "--parallel", "8", "--out", "{out}"]
    found = [Case(m, [*new, "--method", m], True) for m in METHODS]
    sweep = f"evaluate run --data {data} --out {{out}} --model m --workers 4"
    found += [
        Case("retries", [*new, "--method", "orchestra-o1"], True),
        Case("replay", ["--replay", str(done), "--json"]),
        Case("evaluate", sweep.split()),
        Case("report", ["report", str(done)]),
        Case("runs", ["runs", str(done.parent)]),
    ]
    return found


def started(words: list[str], url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, *words],
        env={**os.environ, "OPENAI_BASE_URL": url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def has_handlers(process: subprocess.Popen[str]) -> bool:
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return False
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return int(caught.split()[1], 16) & HANDLED > 0


def further(stop: signal.Signals, dice: random.Random) -> Iterator[signal.Signals]:
    """The signals after the first one."""
    kind = dice.random()
    if kind < 0.1:
        yield from [stop] * 9  # Ctrl-C held down
    elif kind < 0.3:
        yield dice.choice(STOPS)


def interrupted(
    case: Case, folder: Path, url: str, life_s: float, dice: random.Random
) -> Ended | None:
    """One command and its interrupt; None if it ended by itself before."""
    out = Path(tempfile.mkdtemp(dir=folder)) / "out"
    words = [word.format(out=out) for word in case.words]
    with started(words, url) as process:
        time.sleep(dice.random() * life_s)
        handled = has_handlers(process)
        if process.poll() is not None:
            process.communicate()
            return None
        stop = dice.choice(STOPS)
        began_s = time.monotonic()
        process.send_signal(stop)
        sent = {stop}
        for another in further(stop, dice):
            time.sleep(0.03)
            sent.add(another)
            process.send_signal(another)
        try:
            printed, told = process.communicate(timeout=3 * LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            printed, told = process.communicate()
            told += "\nHANG"
        took_s = time.monotonic() - began_s
    problem = problem_of(process.returncode, sent, printed, told, took_s)
    if handled and case.resumable and not problem and dice.random() < 0.1:
        problem = problem_of_resume(out, url)
    return Ended(case.name, handled, process.returncode, took_s, problem)


def problem_of(
    code: int, sent: set[signal.Signals], printed: str, told: str, took_s: float
) -> str:
    """What is wrong with an end; "" if nothing. If two signals arrive at once, either may count."""
    if "HANG" in told or took_s > LIMIT_S:
        return f"hang: {took_s:.1f} s"
    if "Traceback" in told or "Exception ignored" in told or "Fatal" in told:
        return f"traceback: {told}"
    if code == 0 and (printed.strip() or "6 of 6" in told):
        return ""  # it had ended already
    if code not in {128 + number for number in sent}:
        return f"exit code {code} after {sent}: {told}"
    return ""


def problem_of_resume(out: Path, url: str) -> str:
    """Whether an interrupted run goes on to the same answer; "" if it does, or kept nothing."""
    if not (out / "run.json").is_file() or not (out / "tape.jsonl").is_file():
        return ""
    with started(["--resume", str(out), "--json", "--quiet"], url) as process:
        printed, told = process.communicate(timeout=120)
    if process.returncode != 0 or json.loads(printed)["answer"] != "42":
        return f"resume: {process.returncode} {printed} {told}"
    tape = (out / "tape.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, tape) if "answer" in row]
    calls = {(row["call"], row["key"]) for row in rows}
    return "" if len(calls) == len(rows) else "a call was paid for twice"


def lives_s(all_cases: list[Case], folder: Path, urls: dict[str, str]) -> list[float]:
    """How long each command takes without an interrupt, on this machine and load."""
    found = []
    for case in all_cases:
        words = [w.format(out=folder / f"whole-{case.name}") for w in case.words]
        began_s = time.monotonic()
        with started(words, urls[case.name]) as process:
            process.communicate(timeout=300)
        found.append(time.monotonic() - began_s)
    return found


def main(interrupts: int = 1000, at_once: int = 2, seed: int = 0) -> None:
    for (
        stop
    ) in STOPS:  # a shell may have started this in the background, with SIGINT ignored
        signal.signal(stop, signal.default_int_handler)
    steady = Endpoint(script, delay_s=0.02)
    unsteady = Endpoint(flaky, delay_s=0.02)
    ended: list[Ended] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        done = folder / "runs" / "done"
        with started(["What?", "--model", "m", "--out", str(done)], steady.url) as run:
            run.communicate()
        all_cases = cases(folder, done)
        urls = {case.name: steady.url for case in all_cases} | {"retries": unsteady.url}
        lives = lives_s(all_cases, folder, urls)

        def one(number: int) -> Ended | None:
            n = number % len(all_cases)
            dice = random.Random(seed * 1_000_000 + number)
            case = all_cases[n]
            return interrupted(case, folder, urls[case.name], lives[n], dice)

        number = 0
        with ThreadPoolExecutor(at_once) as threads:
            while (count := sum(row.handled for row in ended)) < interrupts:
                print(f"{count} interrupts", end="\r", file=sys.stderr, flush=True)
                numbers = range(number, number + 4 * at_once)
                ended += [row for row in threads.map(one, numbers) if row]
                number += 4 * at_once
    steady.close()
    unsteady.close()
    report(ended)


def report(ended: list[Ended]) -> None:
    rows = [row for row in ended if row.handled]
    early = [row for row in ended if not row.handled]
    problems = [row for row in rows if row.problem]
    for row in problems:
        print(f"{row.case}: {row.problem}")
    kinds = Counter(row.problem.split(":")[0] for row in problems)
    slowest = max(rows, key=lambda row: row.took_s)
    middle_s = sorted(row.took_s for row in rows)[len(rows) // 2]
    whole = sum(row.code == 0 for row in rows)
    print(
        f"{len(rows)} interrupts: {kinds['hang']} hangs, {kinds['traceback']} tracebacks, "
        f"{len(problems)} problems; {whole} had their answer in time; from signal to exit "
        f"{middle_s:.2f} s, at most {slowest.took_s:.2f} s ({slowest.case})"
    )
    codes = dict(Counter(row.code for row in early))
    hangs = sum("hang" in row.problem for row in early)
    print(f"{len(early)} more while Python started: {hangs} hangs, exit codes {codes}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
