"""The methods as a solver of Inspect, with our questions and our scores.

    pip install 'orchestra-min[inspect]'
    inspect eval-set orchestra/questions --model none --log-dir logs \\
        -T data=questions.jsonl -T out=runs/inspect -T flags="--method react --backends pool.toml"
    inspect view --log-dir logs

Inspect has the order, the epochs, the log, the metrics and the viewer. The calls stay with this
program: each answer has a run folder, OUT/runs/ID@EPOCH, with its tape. It replays, and a folder
that was begun goes on, so the same command after a kill pays no answered call again. `none`,
because no model of Inspect is called.
"""

from __future__ import annotations

import asyncio
import math
import shlex
import threading
from collections.abc import Mapping
from pathlib import Path

from inspect_ai import Epochs, Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ModelOutput
from inspect_ai.scorer import (
    CORRECT,
    INCORRECT,
    Score,
    Scorer,
    Target,
    accuracy,
    scorer,
    stderr,
)
from inspect_ai.solver import Generate, Solver, TaskState, solver

from orchestra.command import words
from orchestra.evaluation import gaia
from orchestra.evaluation.answering import Plan, Watch, answer
from orchestra.evaluation.questions import Question, load
from orchestra.evaluation.running import plan_of
from orchestra.evaluation.scores import RULES

METRICS = [accuracy(), stderr()]


@task
def questions(data: str, out: str, flags: str = "", epochs: int = 1) -> Task:
    """A file of questions, answered by a method. `flags`: those of a single run, as `evaluate run`
    takes them. `epochs`: answers to each question; the log has their mean and pass@k.
    """
    asked = {q.id: q for q in load(gaia.data_file(Path(data)))}
    plan = plan_of(Path(out), words.of_runs(shlex.split(flags)))
    samples = [
        Sample(
            id=q.id,
            input=q.question,
            target=list(q.accepted),
            metadata={"level": q.level, "category": q.category},
        )
        for q in asked.values()
    ]
    return Task(
        name=plan.options.method,
        dataset=MemoryDataset(samples, name=Path(data).stem),
        solver=orchestra(plan, asked),
        scorer=[exact(), by_gaia(), match()],
        epochs=Epochs(
            epochs, ["mean", *(f"pass_at_{k}" for k in range(2, epochs + 1))]
        ),
        fail_on_error=False,
    )


@solver
def orchestra(plan: Plan, asked: Mapping[str, Question]) -> Solver:
    """Answers a question in its run folder. The metadata of the sample get its row of a sweep."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        q = asked[str(state.sample_id)].model_copy(update={"repeat": state.epoch})
        cancelled = threading.Event()
        watch = Watch(cancelled=cancelled)
        try:
            row = await asyncio.to_thread(answer, q, plan, math.inf, watch)
        finally:
            cancelled.set()  # of no effect on a run that has ended
        state.metadata |= row
        if row["status"] != "done":
            raise RuntimeError(row["why"])
        state.output = ModelOutput.from_content(plan.pool.main, row["answer"])
        return state

    return solve


def _by_rule(name: str) -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        given = state.output.completion
        is_right = RULES[name](given.strip(), target.target, state.input_text)
        return Score(value=CORRECT if is_right else INCORRECT, answer=given)

    return score


@scorer(metrics=METRICS)
def exact() -> Scorer:
    return _by_rule("exact")


@scorer(metrics=METRICS, name="gaia")
def by_gaia() -> Scorer:
    return _by_rule("gaia")


@scorer(metrics=METRICS)
def match() -> Scorer:
    return _by_rule("match")
