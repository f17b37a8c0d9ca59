#!/usr/bin/env python3
"""kill -9 at random moments, each time resumed, with each method: is the answer the same, is anything paid twice?

python benchmarks/kills.py [KILLS=20]        of each method; a run that has ended is followed by another
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from latency import layers

from runtime.command_line import METHODS
from runtime.tape import read
from tests.scripted import Endpoint, act, complete, delegate, finish, is_main, last_text

PARALLEL = 8
ANSWER = '<tool_call>{"name": "answer", "arguments": {"model": "answer-1"}}</tool_call>'
ONE_TASK = delegate("task").replace('{"tasks": [', "").replace("]}}", "}")
REASON = ANSWER.replace('"answer"', '"enhance_reasoning"').replace("answer-1", "reasoner-1")


def script(request: dict[str, Any]) -> str:
    """The same reply to the same request. Orchestra-o1: three rounds of eight sub-tasks of five calls."""
    system, text = request["messages"][0], last_text(request)
    if system["role"] == "user":  # an expert, an agent of a graph
        return "a thought\nAnswer: 42"
    if "tools" in request:
        return ANSWER if text.count("a thought") == 6 else REASON
    if "You design a system of agents" in system["content"]:
        return layers()
    if is_main(request):
        linear = "one sub-agent after another" in system["content"]
        done = text.count("Result: 42" if linear else "=> 42")
        if done == (3 if linear else 3 * PARALLEL):
            return complete("42")
        return ONE_TASK if linear else delegate(*(f"task {n}" for n in range(PARALLEL)))
    return act("Nothing", "a note") if text.count("Observation:") < 4 else finish("42")


def killed(command: list[str], server: Endpoint, environment: dict[str, str]) -> tuple[bool, int]:
    """Whether a kill came before the end of the command, and how many calls were in flight."""
    before = len(server.requests)
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while len(server.requests) == before and process.poll() is None:
        time.sleep(0.01)  # up to its first request: kills before it prove nothing
    time.sleep(random.random() * 0.12)
    if process.poll() is not None:
        return False, 0
    in_flight = len(server.in_flight)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(0.1)  # the server is done with the dead
    return True, in_flight


def one_run(method: str, folder: Path, kills: int) -> tuple[int, int, int]:
    """A run that is killed at most so often: kills, calls in flight at them, calls paid beyond the minimum."""
    server, done, in_flight = Endpoint(script, delay_s=0.05), 0, 0
    environment = {**os.environ, "OPENAI_BASE_URL": server.url}
    program = [sys.executable, "orchestra_min.py", "--json"]
    asked = f"What? --model m --method {method} --out {folder} --parallel {PARALLEL}".split()
    again = ["--resume", str(folder)]
    while done < kills:
        died, flying = killed([*program, *(again if done else asked)], server, environment)
        if not died:
            break
        done, in_flight = done + 1, in_flight + flying
    ended = subprocess.run(
        [*program, *again], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    answer = json.loads(ended.stdout)
    paid = [(row["call"], row["key"]) for row in read(folder / "tape.jsonl") if "answer" in row]
    assert (answer["answer"], answer["fallback"]) == ("42", False), answer
    assert len(paid) == len(set(paid)) == answer["calls"], (
        "an answer on the tape was paid for twice"
    )
    server.close()
    return done, in_flight, len(server.requests) - len(paid)


def main(kills: int) -> None:
    for method in METHODS:
        runs, total = 0, (0, 0, 0)
        while total[0] < kills:
            with tempfile.TemporaryDirectory() as folder:
                row = one_run(method, Path(folder) / "run", kills - total[0])
            runs, total = runs + 1, tuple(a + b for a, b in zip(total, row, strict=True))
        print(
            f"{method:<14} {total[0]} kills in {runs} runs: each answered 42, nothing on a tape was paid twice; "
            f"{total[2]} calls beyond the minimum, {total[1]} were in flight at the kills",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
