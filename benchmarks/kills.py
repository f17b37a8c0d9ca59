#!/usr/bin/env python3
"""kill -9 at random moments of one run, each time resumed: what is paid twice?

python benchmarks/kills.py [KILLS=20]
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

from tests.scripted import Endpoint, act, complete, delegate, finish, is_main, last_text  # noqa: E402

PARALLEL = 8


def script(request: dict[str, Any]) -> str:
    """Three rounds of eight sub-tasks of five calls: 124 calls at least."""
    text = last_text(request)
    if is_main(request):
        rounds = text.count("=> result") // PARALLEL
        return complete("42") if rounds == 3 else delegate(*(f"task {n}" for n in range(PARALLEL)))
    if text.count("Observation:") < 4:
        return act("Nothing", "a note")
    return finish("result " + text.split("task ")[1][0])


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    server = Endpoint(script, delay_s=0.05)
    env = {**os.environ, "OPENAI_BASE_URL": server.url}
    with tempfile.TemporaryDirectory() as temporary:
        run = f"{temporary}/run"
        first = ["--question", "What?", "--model", "m", "--out", run, "--parallel", str(PARALLEL)]
        killed = in_flight = 0
        arguments = first
        while killed < kills:
            command = [sys.executable, "orchestra_min.py", *arguments, "--json"]
            before = len(server.requests)
            process = subprocess.Popen(
                command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            while len(server.requests) == before and process.poll() is None:
                time.sleep(0.01)  # up to its first request: kills before it prove nothing
            time.sleep(random.random() * 0.12)
            if process.poll() is not None:
                break
            in_flight += len(server.in_flight)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            killed += 1
            time.sleep(0.1)  # the server is done with the dead
            if Path(run, "run.json").exists():
                arguments = ["--resume", run]
        command = [sys.executable, "orchestra_min.py", "--resume", run, "--json"]
        done = subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, check=True
        )
        answer = json.loads(done.stdout)
        asked, least = len(server.requests), answer["calls"]
    print(f"{killed} kills: answer {answer['answer']!r}; {asked} calls paid, {least} needed")
    print(f"{asked - least} beyond the minimum; {in_flight} were in flight at the kills")


if __name__ == "__main__":
    main()
