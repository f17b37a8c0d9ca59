#!/usr/bin/env python3
"""Time from the start of the program to its first request, against `import openai` and one call; and --help.

python benchmarks/startup.py [N=9]      medians of N, taken in turn
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from common import ROOT

from tests.scripted import Endpoint, Raw

CALL = """
import openai, sys
client = openai.OpenAI(base_url=sys.argv[1], api_key="none")
client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
"""
arrived: list[float] = []


def respond(_: Any) -> Raw:
    arrived.append(time.perf_counter())
    return Raw(401, {"error": {"message": "enough"}})


def first_request_s(command: list[str], **environment: str) -> float:
    started = time.perf_counter()
    env = {**os.environ, **environment}
    env.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # files are compiled once, not at every start
    subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=False)
    return arrived[-1] - started


def main() -> None:
    url = Endpoint(respond).url
    ours, bare, helps = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for n in range(1 + (int(sys.argv[1]) if len(sys.argv) > 1 else 9)):
            bare.append(first_request_s([sys.executable, "-c", CALL, url]))
            ask = [
                "orchestra_min.py",
                "--question",
                "x",
                "--model",
                "m",
                "--out",
                f"{folder}/{n}",
            ]
            ours.append(first_request_s([sys.executable, *ask], OPENAI_BASE_URL=url))
            started = time.perf_counter()
            show = [sys.executable, "orchestra_min.py", "--help"]
            subprocess.run(show, cwd=ROOT, capture_output=True, check=True)
            helps.append(time.perf_counter() - started)
    a, b, h = (statistics.median(xs[1:]) for xs in (ours, bare, helps))
    print(f"start to first request {a:.3f} s; import openai + one call {b:.3f} s")
    print(f"ratio {a / b:.2f} (mark 0.6); --help {h:.3f} s (mark 0.3)")


if __name__ == "__main__":
    main()
