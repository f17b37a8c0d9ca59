#!/usr/bin/env python3
"""Replays with random threads, delays and environments: is the content the same? And a big tape: time to load and look up.

python benchmarks/replays.py [N=1000]
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import common  # noqa: F401  the program on the path

from orchestra.kernel.folder import first_difference
from orchestra.kernel.tape import Tape
from orchestra_min import orchestrate, replay
from tests.conftest import pool_at
from tests.scripted import Endpoint, act, complete, delegate, finish, is_main, last_text

opened: list[Any] = []
NAMES = [
    "OPENAI_API_KEY",
    "SERPER_API_KEY",
    "TOKENIZER_NAME",
    "MY_TOKEN",
    "HTTPS_PROXY",
    "LANG",
    "TZ",
]


def count_sockets(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect":
        opened.append(arguments)


def script(request: dict[str, Any]) -> str:
    """Eight sub-tasks of unequal length: two to four calls each."""
    text = last_text(request)
    if is_main(request):
        return (
            complete("42")
            if "=> result" in text
            else delegate(*(f"task {n}" for n in range(8)))
        )
    number = int(text.split("task ")[1][0])
    if text.count("Observation:") < 1 + number % 3:
        return act("Nothing", f"note {number}")
    return finish(f"result {number}")


def random_delays(event: dict[str, Any]) -> None:
    time.sleep(random.random() * 0.002)


def many_replays(folder: Path, n: int) -> None:
    server = Endpoint(script)
    run = orchestrate("What?", pool=pool_at(server.url), out=folder)
    server.close()
    opened.clear()
    different = 0
    started = time.perf_counter()
    for i in range(n):
        name, value = (
            random.choice(NAMES),
            random.choice(["result 3", "Nothing", "task", "42" * 5]),
        )
        with mock.patch.dict(os.environ, {name: value}):
            again = replay(folder, parallel=1 + i % 17, listeners=[random_delays])
        different += bool(first_difference(run.events, again.events))
    wall = time.perf_counter() - started
    print(
        f"{n} replays, 1-17 threads, random environments: {different} differ, {len(opened)} sockets, {wall:.0f} s"
    )


def big_tape(folder: Path, n: int = 10_000) -> None:
    folder.mkdir()

    def exchange(tape: Tape, i: int) -> None:
        request = {"url": f"http://x/{i}", "pad": "x" * 3000}
        with tape.call("r1", f"t{i}", "s1"):
            tape.exchange("page", request, lambda: "y" * 3000)

    with closing(Tape(folder / "tape.jsonl", "record")) as tape:
        for i in range(n):
            exchange(tape, i)
    size = (folder / "tape.jsonl").stat().st_size >> 20
    started = time.perf_counter()
    tape = Tape(folder / "tape.jsonl", "replay")
    load_s = time.perf_counter() - started
    started = time.perf_counter()
    for i in random.sample(range(n), n):
        exchange(tape, i)
    per_ms = (time.perf_counter() - started) / n * 1e3
    print(
        f"{n} exchanges, {size} MiB: load {load_s:.2f} s (mark 2), look-up {per_ms:.3f} ms (mark 0.5)"
    )


if __name__ == "__main__":
    sys.addaudithook(count_sockets)
    with tempfile.TemporaryDirectory() as temporary:
        many_replays(
            Path(temporary) / "run", int(sys.argv[1]) if len(sys.argv) > 1 else 1000
        )
        big_tape(Path(temporary) / "big")
