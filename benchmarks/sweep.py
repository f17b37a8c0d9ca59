#!/usr/bin/env python3
"""A benchmark's worth of questions at once: CPU time a call, with a server that answers at once.

    python benchmarks/sweep.py [QUESTIONS=360 [LATENCY_S=0]]
    python benchmarks/sweep.py marks [QUESTIONS=5000]

64 questions are in flight in threads, each of 14 calls: two decisions, and 4 sub-tasks of 3 calls in parallel, recording on; once
by `orchestrate` alone, once by `evaluate run` with scores and rows. The bare openai client makes the same calls and does nothing else.
Each is the median of 3 new processes, taken in turn.

`marks`: QUESTIONS questions of one call each by the command `evaluate run`, against the marks of 60 s and 120 MiB. On a shared machine,
its CPU time says more than its wall time.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path

from common import in_new_process, medians, running
from overhead import SERVER, bare, ours, scripted_pool

K, IN_FLIGHT = 4, 64
ECHO = Path(__file__).with_name("echo.py")


def swept(url: str, questions: int) -> int:
    """The same questions by `evaluate run`, a run folder each. Returns the calls."""
    from orchestra.evaluation.answering import Plan
    from orchestra.evaluation.questions import Question
    from orchestra.evaluation.sweep import Budget, sweep
    from orchestra_min import Options

    options = Options.of(parallel=K, tools=[f"{ECHO}:echo"])
    plan_of = partial(Plan, pool=scripted_pool(url), options=options)
    asked = [
        Question(question="How?", answer="42", id=str(n)) for n in range(questions)
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(IN_FLIGHT) as executor,
    ):
        Path(folder, "runs").mkdir()
        plan = plan_of(Path(folder))
        budget = Budget(None, plan, [])
        rows = list(sweep(asked, plan, executor, IN_FLIGHT, budget, print))
    assert all(row["exact"] for row in rows) and len(rows) == questions
    return sum(row["calls"] for row in rows)


def measure(what: str, url: str, questions: int) -> dict[str, float]:
    if what == "evaluate":
        many = partial(swept, url)
    else:
        once = {"ours": ours, "bare": bare}[what](url, K)

        def many(count: int) -> int:
            with ThreadPoolExecutor(IN_FLIGHT) as executor:
                return sum(executor.map(lambda _: once(), range(count)))

    many(1)
    cpu, start = time.process_time(), time.perf_counter()
    calls = many(questions)
    took_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "calls": calls,
        "wall_s": took_s,
        "cpu_ms": cpu_s / calls * 1e3,
        "mib": peak_mib,
    }


def commanded(url: str, questions: int) -> dict[str, float]:
    """A sweep by the command itself, from the file of questions to its rows."""
    from orchestra.evaluation import command as evaluate

    os.environ["OPENAI_BASE_URL"] = url
    with (
        tempfile.TemporaryDirectory() as folder,
        Path(os.devnull).open("w") as nowhere,
        redirect_stderr(nowhere),
    ):
        data = Path(folder, "data.jsonl")
        asked = (
            {"question": f"What is {n}?", "answer": "42"} for n in range(questions)
        )
        data.write_text("\n".join(map(json.dumps, asked)))
        flags = f"run --data {data} --out {folder}/out --method react --model m".split()
        began_s = time.monotonic()
        assert evaluate.main(flags) == 0
        took_s = time.monotonic() - began_s
        used = resource.getrusage(resource.RUSAGE_SELF)  # before the folder is deleted
        rows = len(Path(folder, "out", "rows.jsonl").read_text().splitlines())
    assert rows == questions
    return {
        "wall_s": took_s,
        "user_s": used.ru_utime,
        "system_s": used.ru_stime,
        "mib": used.ru_maxrss / 1024,
    }


def marks(questions: int) -> None:
    with running(SERVER, 0, 0) as url:
        row = in_new_process(__file__, "commanded", url, questions)
    print(
        f"{questions} questions: {row['wall_s']:.1f} s (mark: 60), CPU {row['user_s']:.1f} s user and {row['system_s']:.1f} s system, "
        f"peak {row['mib']:.0f} MiB (mark: 120)"
    )


def main(questions: int, delay_s: float) -> None:
    rows: dict[str, list[dict[str, float]]] = {"bare": [], "ours": [], "evaluate": []}
    with running(SERVER, delay_s, K) as url:
        for _ in range(3):
            for what, measured in rows.items():
                measured.append(in_new_process(__file__, what, url, questions))
    bare_row = medians(rows["bare"])
    for name, measured in rows.items():
        row = medians(measured)
        print(
            f"{name}: {row['calls']:.0f} calls in {row['wall_s']:.1f} s ({row['wall_s'] / bare_row['wall_s']:.2f} of bare), "
            f"CPU {row['cpu_ms']:.2f} ms a call ({row['cpu_ms'] / bare_row['cpu_ms']:.2f}), peak {row['mib']:.0f} MiB"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["marks"]:
        marks(int(sys.argv[2]) if len(sys.argv) > 2 else 5000)
    elif sys.argv[1:2] == ["commanded"]:
        print(json.dumps(commanded(sys.argv[2], int(sys.argv[3]))))
    elif len(sys.argv) > 3:
        print(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
    else:
        arguments = [float(argument) for argument in sys.argv[1:]]
        main(
            int(arguments[0]) if arguments else 360,
            arguments[1] if len(arguments) > 1 else 0.0,
        )
