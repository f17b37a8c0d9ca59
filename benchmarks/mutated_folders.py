#!/usr/bin/env python3
"""Thousands of mutated run folders and sweeps through every command that reads one.

    python benchmarks/mutated_folders.py [N=2000] [SEED=0]

Bytes are cut, flipped and lost; fields of the JSON get other types, huge numbers, deep nesting, NaN and
half surrogate pairs; files become links, pipes, sockets, devices, folders and huge sparse files. Each command
runs in a process with 1 GiB of address space and 10 s. It must succeed, or end with one line and no
traceback, and must change no file outside of the folder. Two commands for each mutation. Exits with 1 where one does not.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import common  # noqa: F401  the program on the path

from tests import mutated_folders

os.environ.update(OPENAI_BASE_URL="http://127.0.0.1:9/v1", OPENAI_API_KEY="k")


def main(count: int = 2000, seed: int = 0) -> None:
    import orchestra.evaluation.command
    import orchestra.report.command
    import orchestra.training.examples  # noqa: F401  their time must not count
    from fixtures import results  # noqa: F401

    codes: Counter[int] = Counter()
    problems = 0
    most_mib = most_s = 0.0
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as top:
        for number in range(count):
            here = Path(top, str(number))
            here.mkdir()
            for outcome in mutated_folders.outcomes(here, f"{seed}/{number}"):
                codes[outcome.code] += 1
                most_mib = max(most_mib, outcome.mib)
                most_s = max(most_s, outcome.wall_s)
                if outcome.problem():
                    problems += 1
                    print(f"{outcome.what}\n    {outcome.problem()}", flush=True)
            shutil.rmtree(here)
    wall_s = time.perf_counter() - started
    shown = ", ".join(f"{n} with exit code {code}" for code, n in sorted(codes.items()))
    print(
        f"{count} mutations: {shown}; {problems} problems; {most_mib:.0f} MiB, {most_s:.1f} s at most ({wall_s:.0f} s)"
    )
    sys.exit(problems > 0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
