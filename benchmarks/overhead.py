#!/usr/bin/env python3
"""What the program adds to the latency of the models: K sub-tasks of 3 calls each, recording on.

    python benchmarks/overhead.py [PROCESSES=5]

The physical limit is 5 x latency: a decision, three calls of each sub-agent in parallel, an answer. The bare openai client makes
the same calls in a thread pool and does nothing else. Each figure is the median of PROCESSES new processes, taken in turn; each
gives the median of 3 runs after a warm-up.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import in_new_process, medians, running

MARKS = {
    (8, 0.05): 1.0,
    (32, 0.05): 0.95,
    (128, 0.05): 0.7,
}  # (K, latency): ours / bare
CPU_MARK_MS = 1.5  # a call, at K=32
SERVER = Path(__file__).with_name("scripted_server.py")


def scripted_pool(url: str) -> Any:
    """A pool of the one scripted model; and every run gets EchoAction, a tool that does nothing."""
    import orchestra_min
    from orchestra.runtime.pool import Engine, Pool
    from orchestra.toolkit import Environment, tool
    from orchestra.tools.shipped import all_tools
    from orchestra.vocabulary import Backend, Price

    @tool("EchoAction", "txt")
    def echo(env: Environment, text: str) -> str:
        """Repeat a text.

        text: what
        """
        return text

    orchestra_min.tools_for = lambda task, code: {**all_tools(), "EchoAction": echo}  # type: ignore[attr-defined]
    backend = Backend("scripted", "scripted", url, "", {"txt": 1.0}, Price(0, 0))
    return Pool(
        backends=(backend,),
        engines={"image": Engine("local"), "audio": Engine("local")},
    )


def ours(url: str, k: int) -> Callable[[], int]:
    from orchestra_min import Options, orchestrate

    pool = scripted_pool(url)

    def once() -> int:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            run = orchestrate("How?", pool=pool, options=Options(parallel=k), out=out)
        assert run.answer == "42" and run.calls == 3 * k + 2, run
        return run.calls

    return once


def bare(url: str, k: int) -> Callable[[], int]:
    import openai

    client = openai.OpenAI(base_url=url, api_key="none")
    system = {"role": "system", "content": "rules " * 400}

    def chat(text: str) -> None:
        messages: Any = [system, {"role": "user", "content": text}]
        client.chat.completions.create(model="scripted", messages=messages)

    def sub_task(_: int) -> None:
        for _step in range(3):
            chat("look at number 1 " * 30)

    def once() -> int:
        chat("You are the main agent " + "found it (" * k)
        with ThreadPoolExecutor(k) as executor:
            list(executor.map(sub_task, range(k)))
        chat("You are the main agent " + "found it (" * k)
        return 3 * k + 2

    return once


def measure(what: str, url: str, k: int) -> dict[str, float]:
    once = {"ours": ours, "bare": bare}[what](url, k)
    once()
    walls, cpus = [], []
    for _ in range(3):
        cpu, start = time.process_time(), time.perf_counter()
        calls = once()
        walls.append(time.perf_counter() - start)
        cpus.append((time.process_time() - cpu) / calls * 1e3)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "wall_s": statistics.median(walls),
        "cpu_ms": statistics.median(cpus),
        "mib": peak_mib,
    }


def main(processes: int) -> None:
    print(
        f"{'K':>4} {'latency':>8} | wall / limit: ours, bare | ours / bare, mark | CPU a call: ours, bare | peak: ours, bare"
    )
    for (k, delay_s), mark in MARKS.items():
        rows: dict[str, list[dict[str, float]]] = {"bare": [], "ours": []}
        with running(SERVER, delay_s, k) as url:
            for _ in range(processes):
                for what, measured in rows.items():
                    measured.append(in_new_process(__file__, what, url, k))
        a, b, limit_s = medians(rows["ours"]), medians(rows["bare"]), 5 * delay_s
        print(
            f"{k:>4} {delay_s * 1e3:>5.0f} ms | {a['wall_s'] / limit_s:>18.3f} {b['wall_s'] / limit_s:>6.3f} | {a['wall_s'] / b['wall_s']:>11.2f} {mark:>5}"
            f" | {a['cpu_ms']:>13.2f} {b['cpu_ms']:>5.2f} ms | {a['mib']:>7.0f} {b['mib']:>4.0f} MiB",
            flush=True,
        )
    print(f"the mark of the CPU time a call, ours, at K=32: {CPU_MARK_MS} ms")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
