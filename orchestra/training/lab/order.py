"""Which training comes next: an arm after those that it needs, seed by seed, on several cores."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

from orchestra.training.lab.arms import BY_NAME

Job = tuple[str, int]  # an arm and a seed
Work = Callable[[str, int], None]
REACT = "react"  # the base as a ReAct agent: nothing is trained
EVERY = (*BY_NAME, REACT)


def needs(name: str) -> list[str]:
    """The arms that an arm needs directly."""
    if name == REACT:
        return ["base"]
    arm = BY_NAME[name]
    return [needed for needed in (arm.after, arm.as_few_as) if needed]


def with_needs(names: Iterable[str]) -> list[str]:
    """The arms and all that they need, in the order of EVERY."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting += [needed for needed in needs(name) if needed not in found]
    return [name for name in EVERY if name in found]


def run_all(names: Sequence[str], seeds: int, processes: int, work: Work) -> None:
    """Do the work of all arms and seeds. What one process raises is raised here."""
    jobs = [(name, seed) for seed in range(seeds) for name in names]
    if processes == 1:
        for name, seed in jobs:
            work(name, seed)
        return
    done: set[Job] = set()
    running: dict[Future[None], Job] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context) as pool:
        while jobs or running:
            while len(running) < processes and (job := _ready(jobs, done)):
                jobs.remove(job)
                running[pool.submit(work, *job)] = job
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                future.result()
                done.add(running.pop(future))


def _ready(jobs: Sequence[Job], done: set[Job]) -> Job | None:
    """The first job that can begin."""
    for name, seed in jobs:
        if all((needed, seed) in done for needed in needs(name)):
            return name, seed
    return None
