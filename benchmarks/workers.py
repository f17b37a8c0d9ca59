#!/usr/bin/env python3
"""How much faster two workers of a Dask cluster replay recorded runs than one: no call waits, so this is CPU time alone.

    python benchmarks/workers.py [QUESTIONS=40]        needs pip install -e '.[eval]'

A question is ten replays. Each worker is a process with one thread on this machine; the medians of 3 rounds, the two clusters in turn.
"""

from __future__ import annotations

import statistics
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

    return [replay(RUN).answer for _ in range(10)][0]  # as long as a question of a few rounds


def seconds(workers: int, count: int) -> float:
    """The time of `count` questions, each a task of the cluster."""
    how = {
        "n_workers": workers,
        "threads_per_worker": 1,
        "host": "127.0.0.1",
        "dashboard_address": None,
    }
    with (
        LocalCluster(**how) as cluster,
        cluster.get_client() as client,
        client.get_executor(pure=False) as executor,
    ):
        list(executor.map(replayed, range(4 * workers)))  # imports
        began = time.monotonic()
        assert len({*executor.map(replayed, range(count))}) == 1
        return time.monotonic() - began


if __name__ == "__main__":
    number = int(sys.argv[1]) if sys.argv[1:] else 40
    rounds = [(seconds(1, number), seconds(2, number)) for _ in range(3)]
    one, two = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(
        f"{number} questions: one worker {one:.1f} s, two workers {two:.1f} s: {one / two:.2f} times as fast"
    )
