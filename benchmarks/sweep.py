#!/usr/bin/env python3
"""A benchmark's worth of questions at once: CPU time a call, with a server that answers at once.

    python benchmarks/sweep.py [QUESTIONS=360]

64 questions are in flight in threads, each of 14 calls: two decisions, and 4 sub-tasks of 3 calls in parallel, recording on. The
bare openai client makes the same calls and does nothing else. Each is the median of 3 new processes, taken in turn.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from overhead import ROOT, bare, in_new_process, medians, ours, running

K, IN_FLIGHT = 4, 64


def measure(what: str, url: str, questions: int) -> dict[str, float]:
    once = {"ours": ours, "bare": bare}[what](url, K)
    once()
    cpu, start = time.process_time(), time.perf_counter()
    with ThreadPoolExecutor(IN_FLIGHT) as executor:
        calls = sum(executor.map(lambda _: once(), range(questions)))
    took_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    return {"calls": calls, "wall_s": took_s, "cpu_ms": cpu_s / calls * 1e3}


def main(questions: int) -> None:
    rows: dict[str, list[dict[str, float]]] = {"bare": [], "ours": []}
    with running(ROOT / "benchmarks/scripted_server.py", 0, K) as url:
        for _ in range(3):
            for what, measured in rows.items():
                measured.append(in_new_process(__file__, what, url, questions))
    a, b = medians(rows["ours"]), medians(rows["bare"])
    for name, row in (("ours", a), ("bare", b)):
        print(
            f"{name}: {row['calls']:.0f} calls in {row['wall_s']:.1f} s, CPU {row['cpu_ms']:.2f} ms a call"
        )
    print(f"CPU ours / bare {a['cpu_ms'] / b['cpu_ms']:.2f}, wall {a['wall_s'] / b['wall_s']:.2f}")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 360)
