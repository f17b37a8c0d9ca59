#!/usr/bin/env python3
"""How fast the pages of `report` are: a run of 1,100 calls and a folder of 1,000 runs, in Chromium.
And what a panel of Eq. 20 takes for a history of 3,328 pieces.

python benchmarks/pages.py
python benchmarks/pages.py panel    the panel alone, without Chromium

Each page is opened twice at three widths. The time is that of its first paint with the data, from
the start of the navigation.
"""

import itertools
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import common  # noqa: F401, puts the program on the path

from fixtures import results
from orchestra.kernel.memory import compress
from orchestra.kernel.vocabulary import Evidence, Task
from orchestra.report import command as report
from orchestra.report.explain import deciding
from orchestra_min import Options, orchestrate
from tests import browser
from tests.conftest import pool_at
from tests.scripted import Endpoint, act, complete, delegate, finish, is_main, last_text

ROUNDS = 122  # of a decision and four sub-tasks of two calls
RUNS = 1000
WIDTHS = (1400, 900, 420)
ENTRIES = 128  # of the history of a panel; each has a head and 25 sentences
PAINTED = "performance.getEntriesByName('shown')[0].startTime"


def long_run(folder: Path) -> None:
    rounds = itertools.count()

    def respond(request):
        if is_main(request):
            is_over = next(rounds) == ROUNDS
            return (
                complete("42")
                if is_over
                else delegate(*(f"look at part {n}" for n in range(4)))
            )
        return (
            finish("it is 42")
            if "not exist" in last_text(request)
            else act("NoAction", "hm")
        )

    endpoint = Endpoint(respond)
    options = Options(rounds=ROUNDS + 1)
    orchestrate("What is it?", pool=pool_at(endpoint.url), options=options, out=folder)
    endpoint.close()
    print(f"a run of {len(endpoint.requests)} calls")


def many_runs(folder: Path) -> None:
    results.unpack(results.PACKED, packed := folder.with_name("recorded"))
    recorded = sorted(file.parent for file in packed.glob("*/runs/*/run.json"))
    for n, run in zip(range(RUNS), itertools.cycle(recorded), strict=False):
        shutil.copytree(run, folder / f"{n:04}", ignore=shutil.ignore_patterns("media"))
    print(f"a folder of {RUNS} runs")


def measure(folder: Path) -> None:
    began_s = time.process_time()
    page = report.write(folder, None, None)
    print(
        f"  written in {time.process_time() - began_s:.1f} s of CPU time, {page.stat().st_size >> 10} KiB"
    )
    for width in WIDTHS * 2:
        profiles = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        with profiles as profile, browser.opened(page, profile, width=width) as opened:
            paint_ms = opened.evaluate(PAINTED)
            print(f"  {width} px: {paint_ms:.0f} ms, errors: {len(opened.errors)}")


def long_history() -> tuple[Evidence, ...]:
    draw = random.Random(1)
    words = [f"word{n}" for n in range(400)]

    def entry(n: int) -> Evidence:
        sentences = (" ".join(draw.choices(words, k=6)) + "." for _ in range(25))
        summary = " ".join(sentences)
        part = f"Look at part {n}."
        return Evidence(1 + n // 8, f"t{n}", part, "b", (), "done", f"a{n}", summary)

    return tuple(map(entry, range(ENTRIES)))


def measure_panel() -> None:
    """A run is read before its panels are made, so the time of the first one does not count."""
    task, history, options = (
        Task("Which word is it?"),
        long_history(),
        Options(context_tokens=6000),
    )
    context = compress(task.question, history, 6000)
    state = SimpleNamespace(task=task, history=history, context=context, round=17)
    round = SimpleNamespace(state=state, options=options, method=deciding.PAPER)
    times_s = []
    for _ in range(20):
        began_s = time.process_time()
        (panel,) = deciding.context(round)
        times_s.append(time.process_time() - began_s)
    fastest_ms = min(times_s[1:]) * 1e3
    print(f"a panel of {len(panel.rows)} pieces: {fastest_ms:.0f} ms of CPU time")


if __name__ == "__main__":
    measure_panel()
    if sys.argv[1:] == ["panel"]:
        sys.exit()
    with tempfile.TemporaryDirectory() as made:
        for make in (long_run, many_runs):
            make(Path(made, make.__name__))
            measure(Path(made, make.__name__))
