#!/usr/bin/env python3
"""kill -9 at random moments, then resume, with each method: is the answer the same, is anything paid twice?

python benchmarks/kills.py [KILLS=20]        kills of each method; when a run has ended, another one is started
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import ROOT, killed
from latency import layers

from orchestra.kernel.tape import Answer, exchanges
from orchestra.methods import METHODS
from tests.scripted import Endpoint, act, complete, delegate, finish, is_main, last_text

PARALLEL = 8
ANSWER = '<tool_call>{"name": "answer", "arguments": {"model": "answer-1"}}</tool_call>'
ONE_TASK = (
    delegate("task").replace('{"tasks": [', "").replace("]}}", "}")
)  # AOrchestra's
REASON = ANSWER.replace('"answer"', '"enhance_reasoning"').replace(
    "answer-1", "reasoner-1"
)


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


def answers_on(folder: Path) -> list[tuple[str, str]]:
    """The call and the key of each answer on a tape."""
    rows = exchanges(folder / "tape.jsonl")
    return [(row.call, row.key) for row in rows if isinstance(row.outcome, Answer)]


def one_run(method: str, folder: Path, kills: int) -> tuple[int, int, int]:
    """A run that is killed up to `kills` times: kills, calls in flight at them, calls beyond the minimum."""
    server, done, in_flight = Endpoint(script, delay_s=0.05), 0, 0
    program = [sys.executable, "orchestra_min.py", "--json", "--quiet"]
    asked = f"What? --model m --method {method} --out {folder} --parallel {PARALLEL}".split()
    again = ["--resume", str(folder)]
    while done < kills:
        command = [*program, *(again if done else asked)]
        calls = killed(command, server, random.random() * 0.12)
        if calls is None:
            break
        done, in_flight = done + 1, in_flight + calls
    os.environ["OPENAI_BASE_URL"] = server.url
    ended = subprocess.run(
        [*program, *again], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    answer = json.loads(ended.stdout)
    paid = answers_on(folder)
    assert (answer["answer"], answer["fallback"]) == ("42", False), answer
    assert len(paid) == len(set(paid)) == answer["calls"], "a call was paid for twice"
    server.close()
    return done, in_flight, len(server.requests) - len(paid)


def main(kills: int) -> None:
    for method in METHODS:
        runs, total = 0, (0, 0, 0)
        while total[0] < kills:
            with tempfile.TemporaryDirectory() as folder:
                row = one_run(method, Path(folder) / "run", kills - total[0])
            runs, total = (
                runs + 1,
                tuple(a + b for a, b in zip(total, row, strict=True)),
            )
        print(
            f"{method:<14} {total[0]} kills in {runs} runs: each answered 42, nothing on a tape was paid twice; "
            f"{total[2]} calls beyond the minimum, {total[1]} were in flight at the kills",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
