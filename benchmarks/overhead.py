#!/usr/bin/env python3
"""What the program adds to the latency of the models: K sub-tasks of 3 calls each, recording on.

    python benchmarks/overhead.py            the table: ours beside the bare openai client, in one run

The physical limit is 5 x latency: a decision, three calls of every sub-agent side by side, an answer. The bare client makes
the same calls in a thread pool and does nothing else. Each row is the median of 3 after a warm-up, each in its own process.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
ROWS = [(8, 0.05), (32, 0.05), (128, 1.0)]
REPEATS = {8: 9, 32: 9, 128: 3}  # the median of them
MARKS = {(8, 0.05): 1.35, (32, 0.05): 1.75, (128, 1.0): 1.10}


def ours(url: str, k: int) -> Callable[[], int]:
    import orchestra_min
    from orchestra.pool import Engine, Pool
    from orchestra.run_folder import Options
    from orchestra.vocabulary import Backend, Price
    from tools import Environment, all_tools, tool

    @tool("EchoAction", "txt")
    def echo(env: Environment, text: str) -> str:
        """Say it back.

        text: what
        """
        return text

    orchestra_min.tools_for = lambda task: {**all_tools(), "EchoAction": echo}  # type: ignore[attr-defined]
    backend = Backend("scripted", "scripted", url, skills={"txt": 1.0}, price=Price(0, 0, 0))
    pool = Pool((backend,), "scripted", {"image": Engine("local"), "audio": Engine("local")})

    def once() -> int:
        with tempfile.TemporaryDirectory() as folder:
            run = orchestra_min.orchestrate(
                "How?", pool=pool, options=Options(parallel=k), out=Path(folder) / "run"
            )
        assert run.answer == "42" and run.calls == 3 * k + 2, run
        return run.calls

    return once


def bare(url: str, k: int) -> Callable[[], int]:
    import openai

    client = openai.OpenAI(base_url=url, api_key="none")
    system = {"role": "system", "content": "rules " * 400}

    def chat(text: str) -> None:
        client.chat.completions.create(
            model="scripted", messages=[system, {"role": "user", "content": text}]
        )  # type: ignore

    def sub_task(_: int) -> None:
        for _step in range(3):
            chat("look " * 100)

    def once() -> int:
        chat("You are the main agent => found")
        with ThreadPoolExecutor(k) as executor:
            list(executor.map(sub_task, range(k)))
        chat("You are the main agent => found")
        return 3 * k + 2

    return once


def measure(what: str, url: str, k: int) -> dict[str, Any]:
    once = {"ours": ours, "bare": bare}[what](url, k)
    once()
    walls, cpus = [], []
    for _ in range(REPEATS[k]):
        cpu, start = time.process_time(), time.perf_counter()
        calls = once()
        walls.append(time.perf_counter() - start)
        cpus.append((time.process_time() - cpu) / calls * 1e3)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "wall_s": statistics.median(walls),
        "cpu_ms": statistics.median(cpus),
        "peak_mib": peak_mib,
    }


def main() -> None:
    print(
        f"{'K':>4} {'latency':>8} {'limit':>7} | {'ours':>6} {'mark':>5} {'bare':>6} | CPU/call ours, bare | peak ours, bare"
    )
    for k, delay_s in ROWS:
        command = [
            sys.executable,
            str(ROOT / "benchmarks" / "scripted_server.py"),
            str(delay_s),
            str(k),
        ]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdin and server.stdout
            url = f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
            rows = {}
            for what in ("bare", "ours"):
                out = subprocess.run(
                    [sys.executable, __file__, what, url, str(k)],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                rows[what] = json.loads(out.stdout)
            server.stdin.close()
        limit = 5 * delay_s
        a, b = rows["ours"], rows["bare"]
        print(
            f"{k:>4} {delay_s * 1e3:>5.0f} ms {limit:>5.2f} s | {a['wall_s'] / limit:>6.3f} {MARKS[k, delay_s]:>5} {b['wall_s'] / limit:>6.3f}"
            f" | {a['cpu_ms']:>6.2f} ms {b['cpu_ms']:>6.2f} ms | {a['peak_mib']:>5.0f} MiB {b['peak_mib']:>4.0f} MiB",
            flush=True,
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
    else:
        main()
