"""The experiment of the paper's Table 2 on MiniGAIA: which arm solves more tasks?

    python -m training.result --model SmolLM2-135M-Instruct --out runs/result

    untrained       the model as it is
    SFT             imitation of the expert
    SFT, longer     SFT and then imitation for as many seconds as DA-GRPO took
    GRPO, outcome   from SFT, paid if the task ends right when the expert goes on (vanilla GRPO)
    DA-GRPO         from SFT, paid by the rubric of Eq. 29

Both GRPO arms decide in states that the SFT model reached by itself, so that they can learn to
recover from its mistakes. SFT imitates the expert in states that the expert reached.

Each arm plays held-out tasks to their end with its likeliest decisions, as do the expert and two
fixed rules. The table has the tasks solved, in all and of held-out shapes and operations, the
invalid decisions, the mean reward of a decision, and the rounds and wasted sub-tasks of a task.
After a stop, the same command continues: trainings resume, and an arm whose games are in OUT/played
is not trained again. --jobs trains several seeds in parallel: two processes with a core each are
faster than one with both.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

from evaluation.scores import matches
from orchestra.vocabulary import Complete, ConfigError
from runtime.command_line import OneLineParser, ended
from runtime.run_folder import write_whole
from runtime.tape import read
from training.examples import Example, write
from training.options import parse
from training.rewards import read_decision, rubric_scores
from training.tasks import TOOL
from training.world import ROUNDS, World, example, examples, expert, new_world, prompt

Row = dict[str, Any]
Run = Callable[[], Path | None]  # trains, and returns the folder; None: no training
Decide = Callable[[Sequence[World]], Sequence[tuple[str, bool]]]  # texts, and which were cut
MAX_TOKENS = 180  # of a decision; the expert says at most 157
COMMON = f"--batch 4 --max-tokens {MAX_TOKENS} --save-every 5 --no-checkpointing"
SFT = f"{COMMON} --stage sft --lr 1e-3"
GRPO = f"{COMMON} --stage grpo --rollouts local --micro-batch 8"
ORDER = 1000  # added to the seed after SFT: other states, the same for all arms
PERCENT = ("solved", "shape", "operation", "invalid")  # shape, operation: solved of held-out ones
COLUMNS = (*PERCENT, "reward", "rounds", "wasted")
EXAMPLES = 3000  # decisions to train on
OWN_TASKS = 40  # training tasks that the SFT model plays for the states of both GRPO arms
RESAMPLED = 10_000  # sets of tasks and seeds behind an interval

# ---- playing -------------------------------------------------------------------------------------


def play(worlds: Sequence[World], decide: Decide) -> list[Row]:
    """Play tasks to their end, one round of all tasks at a time. A reply without a decision uses
    up its round. Returns a row for each task.
    """
    rewards: list[list[float]] = [[] for _ in worlds]
    invalid, solved = [0] * len(worlds), dict[int, bool]()
    for _ in range(ROUNDS):
        live = [n for n in range(len(worlds)) if n not in solved]
        for n, (text, cut) in zip(live, decide([worlds[n] for n in live]), strict=True):
            world, state = worlds[n], worlds[n].state()
            reading = read_decision(text, state, cut)
            rewards[n].append(rubric_scores(world, reading).total)
            if isinstance(reading.decision, Complete):
                answer = reading.decision.answer
                solved[n] = matches(answer, world.mini.answer, state.task.question)
            elif reading.decision:
                world.carry_out(reading.decision)
            else:
                invalid[n] += 1
                world.round += 1
    rows = []
    for n, world in enumerate(worlds):
        row = {"solved": float(solved.get(n, False)), "reward": statistics.mean(rewards[n])}
        row |= {world.mini.group: row["solved"], "invalid": invalid[n] / len(rewards[n])}
        rows.append({**row, "rounds": len(rewards[n]), "wasted": world.wasted})
    return rows


def tasks(count: int) -> list[World]:
    """The held-out tasks of the experiment."""
    return [new_world(random.Random(f"result {n}"), "held_out", n) for n in range(count)]


def model_policy(model: Path, run: Run, temperature: float = 0.0) -> Decide:
    """The decisions of a model after a training. Temperature 0: the likeliest."""
    import torch

    from training.policy import Policy
    from training.rollouts import LocalRollouts

    out = run()
    policy = Policy(model, torch.device("cpu"), adapter=out / "adapter" if out else None)
    rollouts, seeds = LocalRollouts(policy, MAX_TOKENS, at_once=32), count()

    def decide(worlds: Sequence[World]) -> list[tuple[str, bool]]:
        prompts = [policy.encode(prompt(world.state())) for world in worlds]
        groups = rollouts.sample(prompts, list(islice(seeds, len(prompts))), 1, temperature)
        return [(g.texts[0], g.cut[0]) for g in groups]

    return decide


# ---- policies without a model: a JSON decision in each state -------------------------------------


def question(world: World) -> Row:
    """The question and all that was found, to one sub-agent with every tool."""
    context = " ".join(h.answer for h in world.history)
    return _delegated({"task_instruction": world.mini.task.question, "context": context})


def files(world: World) -> Row:
    """A sub-task for each file, its tool by the ending; then the answer of the newest report."""
    task = world.mini.task
    rows = [{"task_instruction": m.name, "tools": [TOOL[m.modality]]} for m in task.media]
    if world.round == 1 and rows:
        return _delegated(*rows)
    answer = world.history[-1].answer.split(";")[0] if world.history else ""
    return {"action": "complete", "reasoning": "", "params": {"answer": answer or "0"}}


def _delegated(*rows: Row) -> Row:
    return {"action": "delegate_task", "reasoning": "", "params": {"tasks": rows}}


FIXED: Mapping[str, Callable[[World], Row]] = {
    "expert": expert, "rule: question": question, "rule: files": files
}  # fmt: skip


def fixed(rule: Callable[[World], Row]) -> Decide:
    return lambda worlds: [(json.dumps(rule(world)), False) for world in worlds]


# ---- the arms ------------------------------------------------------------------------------------


def states(a: Any, seed: int, sft: Run) -> Path:
    """A file of the states that the SFT model reaches in training tasks, its mistakes included; the
    same for both rewards.
    """
    file: Path = a.out / f"states-{seed}.jsonl"
    if not file.exists():
        rng, met = random.Random(f"states {seed}"), list[Example]()
        policy = model_policy(a.model, sft, temperature=1.0)

        def noted(worlds: Sequence[World]) -> Sequence[tuple[str, bool]]:
            met.extend([example(w, "train", len(met) + n) for n, w in enumerate(worlds)])
            return policy(worlds)

        play([new_world(rng, "train", n) for n in range(OWN_TASKS)], noted)
        write(file, met)
    return file


def trained(
    a: Any, name: str, seed: int, flags: str, start: Path | None = None, data: Path | None = None
) -> Path:
    """The folder of a run of train_da_grpo.py, which is started or resumed if it has not ended.
    Raises SystemExit with its exit code.
    """
    import train_da_grpo

    out: Path = a.out / f"{name}-{seed}"
    if not (out / "adapter/adapter_config.json").exists():  # what is saved last
        paths = ["--model", a.model, "--data", data or a.out / "train.jsonl", "--out", out]
        paths += ["--adapter", start / "adapter"] if start else []
        resume = ["--resume"] if (out / "options.json").exists() else []
        if code := train_da_grpo.main(parse([*map(str, paths), *flags.split(), *resume])):
            raise SystemExit(code)
    return out


def arms(a: Any, seed: int) -> dict[str, Run]:
    """What trains each arm; the untrained model belongs to seed 0. The longer SFT has as many steps
    as fit in the time of DA-GRPO.
    """
    more = f"--steps {a.grpo_steps} --seed {ORDER + seed}"

    def sft() -> Path:
        return trained(a, "sft", seed, f"{SFT} --steps {a.sft_steps} --seed {seed}")

    def grpo(reward: str) -> Path:
        flags = f"{GRPO} --reward {reward} {more}"
        return trained(a, reward, seed, flags, sft(), states(a, seed, sft))

    def longer() -> Path:
        runs = grpo("rubric"), sft()
        spent, each = ([row["seconds"] for row in read(run / "metrics.jsonl")] for run in runs)
        steps = max(1, round(sum(spent) / (statistics.median(each) or 1.0)))
        flags = f"{SFT} --steps {steps} --seed {ORDER + seed}"
        return trained(a, "longer", seed, flags, sft())

    of_reward = {"DA-GRPO": partial(grpo, "rubric"), "GRPO, outcome": partial(grpo, "outcome")}
    untrained: dict[str, Run] = {"untrained": lambda: None} if seed == 0 else {}
    return {"SFT": sft, **of_reward, "SFT, longer": longer, **untrained}


def played(a: Any, arm: str, seed: int, make: Callable[[], Decide]) -> list[Row]:
    """A row for each task, from OUT/played if this arm was played before."""
    file: Path = a.out / "played" / f"{arm}-{seed}.json"
    if not file.exists():
        rows = [{"arm": arm, "seed": seed, **row} for row in play(tasks(a.tasks), make())]
        write_whole(file, json.dumps(rows))
        solved = sum(row["solved"] for row in rows)
        print(f"{arm}, seed {seed}: {solved:.0f} of {a.tasks} solved", flush=True)
    found: list[Row] = json.loads(file.read_text(encoding="utf-8"))
    return found


def of_seed(a: Any, seed: int) -> list[Row]:
    """The rows of all arms with this seed."""
    if a.jobs > 1:
        import torch

        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // a.jobs))
    makes = {arm: partial(model_policy, a.model, run) for arm, run in arms(a, seed).items()}
    return [row for arm, make in makes.items() for row in played(a, arm, seed, make)]


def all_rows(a: Any) -> list[Row]:
    """A row for each arm, seed and task."""
    rows = [row for arm, rule in FIXED.items() for row in played(a, arm, 0, partial(fixed, rule))]
    if a.jobs == 1:
        return rows + [row for seed in range(a.seeds) for row in of_seed(a, seed)]
    with ProcessPoolExecutor(a.jobs, multiprocessing.get_context("spawn")) as pool:
        return sum(pool.map(partial(of_seed, a), range(a.seeds)), rows)


# ---- the report ----------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> str:
    """Means over tasks and seeds, the first four in percent; how many tasks more DA-GRPO solves, in
    points, with its interval. As Markdown.
    """
    titles = [*COLUMNS, "DA-GRPO solves more", "95 %"]
    lines = [f"| | {' | '.join(titles)} |", "| --- |" + " ---: |" * len(titles)]
    of_arm: dict[str, dict[int, list[Row]]] = {}  # arm -> seed -> a row for each task
    for row in rows:
        of_arm.setdefault(row["arm"], {}).setdefault(row["seed"], []).append(row)
    for arm, seeds in of_arm.items():
        cells = []
        for column in COLUMNS:
            found = [row[column] for seed in seeds.values() for row in seed if column in row]
            factor = 100 if column in PERCENT else 1
            cells.append(f"{factor * statistics.mean(found):.2f}" if found else "")
        gaps = [
            [100 * (x["solved"] - y["solved"]) for x, y in zip(mine, other, strict=True)]
            for seed, mine in of_arm["DA-GRPO"].items()
            for other in [seeds.get(seed, seeds[0])]
        ]
        low, high = interval(gaps)
        mean = statistics.mean(map(statistics.mean, gaps))
        cells += [f"{mean:+.1f}", f"{low:+.1f} to {high:+.1f}"]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def interval(gaps: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The 95 % bootstrap interval of the mean of gaps[seed][task], by resampling seeds and tasks; a
    task is drawn for all seeds at once.
    """
    rng, means = random.Random(0), []
    for _ in range(RESAMPLED):
        seeds = rng.choices(gaps, k=len(gaps))
        drawn = rng.choices(range(len(gaps[0])), k=len(gaps[0]))
        means.append(statistics.fmean(seed[task] for seed in seeds for task in drawn))
    means.sort()
    return means[round(0.025 * (RESAMPLED - 1))], means[round(0.975 * (RESAMPLED - 1))]


def begin(a: Any) -> None:
    """Write the examples and the flags to --out. Raises ConfigError if it has other flags."""
    (a.out / "played").mkdir(parents=True, exist_ok=True)
    free = ("out", "jobs")
    now = {k: str(v) for k, v in vars(a).items() if k not in free} | {"model": a.model.name}
    note = a.out / "experiment.json"
    if not (a.out / "train.jsonl").exists():
        write(a.out / "train.jsonl", list(islice(examples("train", 0), EXAMPLES)))
    if not note.exists():
        write_whole(note, json.dumps(now))
    if json.loads(note.read_text(encoding="utf-8")) != now:
        raise ConfigError(f"--out {a.out}: has an experiment with other flags; give another folder")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code; a user's mistake is one line on standard error."""
    parser = OneLineParser(prog="python -m training.result", description="See training/README.md.")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    numbers = {"tasks": 120, "seeds": 3, "sft-steps": 240, "grpo-steps": 20, "jobs": 1}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default, help="(%(default)s)")

    def work() -> None:
        a = parser.parse_args(arguments)
        if any(getattr(a, name.replace("-", "_")) < 1 for name in numbers):
            raise ConfigError(f"--{', --'.join(numbers)}: give 1 or more")
        begin(a)
        text = table(all_rows(a))
        (a.out / "table.md").write_text(text, encoding="utf-8")
        print(text)

    return ended(parser.prog, work)


if __name__ == "__main__":
    sys.exit(main())
