#!/usr/bin/env python3
"""Random scripted runs of all methods, each made again unchanged, forked with settings that it had, and then varied in a
random round: is exactly what is equal reused, by a comparison of the tapes, and is the result the same under any timing
of threads?

python benchmarks/variations.py [N=200]
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

import common  # noqa: F401  the program on the path

from tests.variations import (
    named_again,
    plain,
    recorded,
    rows,
    unchanged,
    varied,
)


def main(n: int) -> None:
    total: Counter[str] = Counter()
    for seed in range(n):
        with tempfile.TemporaryDirectory() as temporary:
            here = Path(temporary)
            run, server = recorded(seed, here / "run")
            unchanged(run, server, here / "again", threads=1 + seed % 8)
            named_again(seed, run, server, here / "same")
            server.close()
            same = {"unique": False, "delay_s": 0.004}
            fork, k, change = varied(seed, run, here / "fork", **same)
            other, _, _ = varied(seed, run, here / "other", **same)
            assert plain(fork.events) == plain(other.events), seed
            made = rows(here / "fork")
            total["runs"] += 1
            total["calls"] += run.calls
            total["kept"] += sum(row.kept for row in made)
            reused = [row for row in made if row.reused and not row.kept]
            total["reused later"] += len(reused)
            own = {(r.call, str(r.outcome)) for r in rows(run.run)}
            elsewhere = [r for r in reused if (r.call, str(r.outcome)) not in own]
            total["of these, another call's"] += len(elsewhere)
            total["made"] += sum(not row.reused for row in made)
            total[f"changed {min(change)}"] += 1
            total[f"from round {k}"] += 1
    print(
        f"{n} runs unchanged, and {n} forks with settings that they had: nothing paid, the same "
        f"events. {n} varied: as the tapes say."
    )
    print(", ".join(f"{name} {count}" for name, count in total.items()))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
