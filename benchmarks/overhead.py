#!/usr/bin/env python3
"""What the program adds to the latency of the models: K sub-tasks of 3 calls each, recording on.

    python benchmarks/overhead.py [PROCESSES=5]

The physical limit is 5 x latency: a decision, three calls of each sub-agent in parallel, an answer. One requests.Session and the bare
openai client make the same calls in a thread pool and do nothing else. Each figure is the median of PROCESSES new processes, taken in turn; each
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
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from common import in_new_process, medians, running

MARKS = {
    (8, 0.05): 1.25,
    (32, 0.05): 1.25,
    (128, 0.05): 2.4,
}  # (K, latency): wall / limit
MIB_MARK = 55  # at K=128
CPU_MARK_MS = 1.5  # a call, at K=32
SERVER = Path(__file__).with_name("scripted_server.py")


def scripted_pool(url: str) -> Any:
    """A pool of the one scripted model."""
    from orchestra.kernel.vocabulary import Backend, Pool, Price

    backend = Backend("scripted", "scripted", url, "", {"txt": 1.0}, Price(0, 0))
    return Pool((backend,), "scripted")


def with_echo(parts: Any, _: Any = None) -> Any:
    """Parts with all tools, and EchoAction."""
    from echo import echo

    from orchestra.methods import all_tools

    return replace(parts, tools={**all_tools(), "EchoAction": echo})


def ours(url: str, k: int) -> Callable[[], int]:
    from orchestra_min import Options, orchestrate

    pool = scripted_pool(url)
    options = Options(parallel=k)
    kept = (
        tempfile.TemporaryDirectory()
    )  # removed at the end: it is not what is measured
    runs = (Path(kept.name, f"run-{n}") for n in count())

    def once() -> int:
        run = orchestrate(
            "How?", pool=pool, options=options, out=next(runs), change=with_echo
        )
        assert run.answer == "42" and run.calls == 3 * k + 2, run
        return run.calls

    return once


def bare(url: str, k: int) -> Callable[[], int]:
    """The same calls by the openai client."""
    import openai

    client = openai.OpenAI(base_url=url, api_key="none")

    def chat(messages: Any) -> None:
        client.chat.completions.create(model="scripted", messages=messages)

    return same_calls(chat, k)


def alone(url: str, k: int) -> Callable[[], int]:
    """The same calls by one requests.Session."""
    import requests
    from requests.adapters import HTTPAdapter

    session = requests.Session()
    session.trust_env = False
    session.mount("http://", HTTPAdapter(pool_maxsize=k))

    def chat(messages: Any) -> None:
        body = {"model": "scripted", "messages": messages}
        session.post(f"{url}/chat/completions", json=body).json()

    return same_calls(chat, k)


def same_calls(chat: Callable[[Any], None], k: int) -> Callable[[], int]:
    system = {"role": "system", "content": "rules " * 400}

    def ask(text: str) -> None:
        chat([system, {"role": "user", "content": text}])

    def sub_task(_: int) -> None:
        for _step in range(3):
            ask("look at number 1 " * 30)

    def once() -> int:
        ask("You are the main agent " + "found it (" * k)
        with ThreadPoolExecutor(k) as executor:
            list(executor.map(sub_task, range(k)))
        ask("You are the main agent " + "found it (" * k)
        return 3 * k + 2

    return once


def measure(what: str, url: str, k: int) -> dict[str, float]:
    once = {"ours": ours, "requests": alone, "openai": bare}[what](url, k)
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
    print("wall / limit, CPU a call and peak memory of ours, of requests and of openai")
    for (k, delay_s), mark in MARKS.items():
        rows: dict[str, list[dict[str, float]]] = {
            n: [] for n in ("ours", "requests", "openai")
        }
        with running(SERVER, delay_s, k) as url:
            for _ in range(processes):
                for what, measured in rows.items():
                    measured.append(in_new_process(__file__, what, url, k))
        found = [medians(measured) for measured in rows.values()]
        walls = ", ".join(f"{row['wall_s'] / (5 * delay_s):.3f}" for row in found)
        cpus = ", ".join(f"{row['cpu_ms']:.2f}" for row in found)
        peaks = ", ".join(f"{row['mib']:.0f}" for row in found)
        print(
            f"K={k:<4} {delay_s * 1e3:.0f} ms | {walls} (mark {mark}) | {cpus} ms | {peaks} MiB",
            flush=True,
        )
    print(f"marks, ours: {CPU_MARK_MS} ms a call at K=32, {MIB_MARK} MiB at K=128")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
