"""What the benchmarks share. To import it puts the program on the path."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.scripted import Endpoint


@contextmanager
def running(*command: object) -> Iterator[str]:
    """The base URL of a scripted server in a process of its own; `command` calls `serve`."""
    words = [sys.executable, *map(str, command)]
    with subprocess.Popen(words, stdin=-1, stdout=-1, text=True) as server:
        assert server.stdin and server.stdout
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
        server.stdin.close()


def in_new_process(*command: object) -> Any:
    """The JSON that a script prints on its last line."""
    words = [sys.executable, "-W", "ignore", *map(str, command)]
    printed = subprocess.run(
        words, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    return json.loads(printed.splitlines()[-1])


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def killed(command: list[str], server: Endpoint, after_s: float | None) -> int | None:
    """Start a command and kill it `after_s` after its first request. Returns how many calls were in
    flight, or None if the command ended by itself.
    """
    before, quiet = (
        len(server.requests),
        dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL),
    )
    environment = {**os.environ, "OPENAI_BASE_URL": server.url}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, **quiet)
    while len(server.requests) == before and process.poll() is None:
        time.sleep(0.01)  # kills before the first request prove nothing
    try:
        process.wait(after_s)
        return None
    except subprocess.TimeoutExpired:
        in_flight = len(server.in_flight)
        process.kill()
        process.wait()
    time.sleep(0.2)  # the server ends the calls of the killed process
    return in_flight
