#!/usr/bin/env python3
"""How much faster two workers of a Dask cluster replay recorded runs than one: no call waits, so this is CPU time alone.

    python benchmarks/workers.py [QUESTIONS=40]        needs pip install -e '.[eval]'

A question is ten replays. Each worker is a process with one thread on this machine; the fastest of 5 rounds, all in turn, as other
load only adds. The limit of the machine is shown next to it: the same questions in one and in two processes that share nothing, half of
them each.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from pathlib import Path

from distributed import LocalCluster

ROOT = Path(__file__).resolve().parent.parent
RUN = ROOT / "fixtures" / "runs" / "equinox"


def replayed(_: int) -> str:
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from orchestra_min import replay

    return [replay(RUN).answer for _ in range(10)][
        0
    ]  # as long as a question of a few rounds


def seconds(workers: int, count: int) -> float:
    """The time of `count` questions, each a task of the cluster."""
    how = {"threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None}
    with (
        LocalCluster(n_workers=workers, **how) as cluster,
        cluster.get_client() as client,
        client.get_executor(pure=False) as executor,
    ):
        list(executor.map(replayed, range(4 * workers)))  # imports
        began = time.monotonic()
        assert len({*executor.map(replayed, range(count))}) == 1
        return time.monotonic() - began


def apart(processes: int, count: int) -> float:
    """The time of `count` questions in processes that share nothing."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(replayed, range(4 * processes), 4)  # imports
        began = time.monotonic()
        pool.map(replayed, range(count), count // processes)
        return time.monotonic() - began


if __name__ == "__main__":
    number = int(sys.argv[1]) if sys.argv[1:] else 40
    rounds = [
        [how(n, number) for how in (seconds, apart) for n in (1, 2)] for _ in range(5)
    ]
    one, two, *limit = (min(column) for column in zip(*rounds, strict=True))
    print(
        f"{number} questions: one worker {one:.1f} s, two workers {two:.1f} s: {one / two:.2f} times as fast; "
        f"processes that share nothing {limit[0]:.1f} s, {limit[1]:.1f} s: {limit[0] / limit[1]:.2f}"
    )
