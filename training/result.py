"""The result: what DA-GRPO makes of a small model, in the shape of the paper's Table 2.

    python -m training.result --model SmolLM2-135M-Instruct --out fixtures/results/minigaia

Four arms on MiniGAIA decisions: the model as it is; imitation, stopped early (SFT); and from there
GRPO with the plain outcome as reward (vanilla) or with the rubric of Eq. 29 (DA-GRPO), both with
the same steps, states and seeds, in another order than SFT's. Each is measured by its likeliest
decisions on held-out states, whose templates and names nobody trained on; and beside them the
policies of constant.py, which are no model. What is done already in --work is kept: a run that was
stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from training import constant, minigaia
from training.examples import Example, read
from training.metrics import cut_short, graded
from training.rewards import Scores, make

Figures = dict[str, Any]  # of one arm and seed
SCRIPT = Path(__file__).resolve().parent.parent / "train_da_grpo.py"
MAX_TOKENS = 144  # of a decision
COMMON = f"--batch 4 --lora-rank 8 --max-tokens {MAX_TOKENS}"
SFT = f"{COMMON} --lr 1e-3"
GRPO = f"{COMMON} --lr 5e-4 --group 8 --micro-batch 8 --save-every 2"
ORDER = 1000  # what is added to the seed of GRPO: the states in an order that SFT did not have
RESAMPLED = 10_000  # sets of tasks that the interval of a difference comes from
REWARD = {"vanilla GRPO": "outcome", "DA-GRPO": "rubric"}
CONSTANT = {f"constant: {name}": policy for name, policy in constant.POLICIES.items()}
ARMS = (*CONSTANT, "untrained", "SFT", *REWARD)
KINDS = ("complete", "read", "compute", "search", "again")  # of a state: what its reference does
COLUMNS = {
    "reward": "reward (Eq. 29)",
    "reward/format": "format",
    "reward/action": "action",
    "reward/tool": "tool",
    "reward/decision": "decision",
    "exact": "exact",
    "invalid": "invalid",
}


# ---- the runs ------------------------------------------------------------------------------------


def threads(a: argparse.Namespace) -> int:
    """Of each of the runs side by side."""
    workers: int = a.workers
    return max(1, (os.cpu_count() or 1) // workers)


def train(a: argparse.Namespace, stage: str, model: Path, name: str, flags: str) -> Path:
    """A run of train_da_grpo.py, or what is left of it: one with other flags is refused there.
    Returns the folder of its model.
    """
    out: Path = a.work / name
    paths = ["--model", model, "--data", a.work / "data/train.jsonl", "--out", out]
    rest = [*flags.split(), *(["--resume"] if (out / "options.json").exists() else [])]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads(a))}
    command = [sys.executable, SCRIPT, "--stage", stage, *paths, *rest]
    subprocess.run(command, check=True, env=environment)
    return out / "model"


def models(a: argparse.Namespace) -> dict[tuple[str, int], Path]:
    """(arm, seed) -> its model. SFT stands first in the queue: what waits for it does not block."""

    def sft(seed: int) -> Path:
        return train(a, "sft", a.model, f"sft-{seed}", f"{SFT} --steps {a.sft_steps} --seed {seed}")

    def grpo(reward: str, seed: int, start: Future[Path]) -> Path:
        flags = f"{GRPO} --steps {a.grpo_steps} --seed {ORDER + seed} --reward {reward}"
        return train(a, "grpo", start.result(), f"{reward}-{seed}", flags)

    with ThreadPoolExecutor(a.workers) as pool:
        made = {("SFT", seed): pool.submit(sft, seed) for seed in range(a.seeds)}
        made |= {
            (arm, seed): pool.submit(grpo, reward, seed, made["SFT", seed])
            for seed in range(a.seeds)
            for arm, reward in REWARD.items()
        }
        return {("untrained", 0): a.model} | {key: run.result() for key, run in made.items()}


def measure(model: Path, examples: Sequence[Example], threads: int) -> Figures:
    """The rubric's scores of the likeliest decision in each state. In float32, in which a merged
    model is what was trained.
    """
    import torch

    from training.policy import Policy
    from training.rollouts import LocalRollouts, likeliest

    torch.set_num_threads(threads)
    policy = Policy(model, 0, "float32", torch.device("cpu"), reference=False)
    rollouts = LocalRollouts(policy, MAX_TOKENS, at_once=32)
    groups = likeliest(policy, examples, rollouts)
    short = [cut_short(g.ids, policy.eos)[0] for g in groups]
    return figures(examples, [g.texts[0] for g in groups], short)


def figures(
    examples: Sequence[Example], decisions: Sequence[str], cut: Sequence[bool] = ()
) -> Figures:
    """The rubric's scores of a decision in each state, as means; the reward by the kind of state
    too, and of how many states that is. One with a retry and more counts as a retry. `each`: the
    reward in each state. `cut`: which decisions stopped at the length limit, () for none.
    """
    rubric = make("rubric")
    short = cut or [False] * len(decisions)
    rows = zip(examples, decisions, short, strict=True)
    scores = [rubric(e, [text], [flag]) for e, text, flag in rows]
    of_kind: dict[str, list[Sequence[Scores | None]]] = {kind: [] for kind in KINDS}
    for example, one in zip(examples, scores, strict=True):
        of_kind[example.meta["kind"].split("+")[0]].append(one)
    row = graded(scores)
    for kind, some in of_kind.items():
        row |= {f"states/{kind}": len(some), f"reward/in {kind}": graded(some).get("reward", 0.0)}
    each = [s.total if s else 0.0 for one in scores for s in one]
    return {**row, "invalid": 1 - row["valid"], "each": each}


def constants(examples: Sequence[Example]) -> list[Figures]:
    """The policies that are no model, scored as a model is."""
    return [
        {"arm": arm, "seed": 0, **figures(examples, [policy(e) for e in examples])}
        for arm, policy in CONSTANT.items()
    ]


# ---- the report ----------------------------------------------------------------------------------


def table(rows: Sequence[Figures], columns: Mapping[str, str] = COLUMNS) -> str:
    """Mean and standard deviation over the seeds, in percent, as Markdown."""
    lines = ["| | " + " | ".join(columns.values()) + " |", "| --- |" + " ---: |" * len(columns)]
    for arm in ARMS:
        of_arm = [row for row in rows if row["arm"] == arm]
        cells = [_spread([100 * float(row[column]) for row in of_arm]) for column in columns]
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def by_kind(rows: Sequence[Figures]) -> str:
    """The reward by the kind of state, of the kinds that there are."""
    counts = {kind: rows[0][f"states/{kind}"] for kind in KINDS}
    found = {f"reward/in {k}": f"{k} ({n})" for k, n in counts.items() if n}
    return table(rows, found)


def differences(rows: Sequence[Figures], examples: Sequence[Example]) -> str:
    """What DA-GRPO's reward is above the other arms', in percent, as Markdown: in each seed, and
    the mean with the interval that 95 % of such sets of tasks fall into (percentile bootstrap; the
    states of a task go together, and the seeds stay as they are).
    """
    lines = ["| DA-GRPO less | of each seed | mean | 95 % |", "| --- | ---: | ---: | ---: |"]
    mine = _by_seed(rows, "DA-GRPO")
    for arm in ARMS[: ARMS.index("DA-GRPO")]:
        other = _by_seed(rows, arm)
        pairs = [(each, other.get(seed, other[0])) for seed, each in mine.items()]
        gaps = [[100 * (x - y) for x, y in zip(*pair, strict=True)] for pair in pairs]
        of_seed = ", ".join(f"{statistics.mean(gap):+.1f}" for gap in gaps)
        low, high = interval([statistics.mean(of) for of in zip(*gaps, strict=True)], examples)
        mean = statistics.mean(map(statistics.mean, gaps))
        lines.append(f"| {arm} | {of_seed} | {mean:+.1f} | {low:+.1f} to {high:+.1f} |")
    return "\n".join(lines) + "\n"


def _by_seed(rows: Sequence[Figures], arm: str) -> dict[int, list[float]]:
    return {row["seed"]: row["each"] for row in rows if row["arm"] == arm}


def interval(values: Sequence[float], examples: Sequence[Example]) -> tuple[float, float]:
    """The 2.5th and the 97.5th percentile of the mean of a value for each state, over sets of tasks
    drawn anew.
    """
    of_task: dict[str, list[float]] = {}
    for example, value in zip(examples, values, strict=True):
        of_task.setdefault(example.id.rpartition("-r")[0], []).append(value)
    tasks = [(sum(some), len(some)) for some in of_task.values()]
    dice = random.Random(0)
    sets = (dice.choices(tasks, k=len(tasks)) for _ in range(RESAMPLED))
    means = sorted(sum(s for s, _ in drawn) / sum(n for _, n in drawn) for drawn in sets)
    return means[round(0.025 * (RESAMPLED - 1))], means[round(0.975 * (RESAMPLED - 1))]


def _spread(values: Sequence[float]) -> str:
    several = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{several}"


def publish(a: argparse.Namespace, rows: Sequence[Figures], said: str) -> None:
    """The tables, the figures of each arm and seed, every run's metrics, and the adapters of seed
    0: DA-GRPO's, and SFT's that it stands on.
    """
    a.out.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (a.out / "results.jsonl").write_text(text, encoding="utf-8")
    (a.out / "table.md").write_text(said, encoding="utf-8")
    for name in (f"{kind}-{n}" for kind in ("sft", *REWARD.values()) for n in range(a.seeds)):
        shutil.copy(a.work / name / "metrics.jsonl", a.out / f"{name}.jsonl")
    for name, base in (("sft", a.model.name), (REWARD["DA-GRPO"], "sft-0")):
        run, target = a.work / f"{name}-0", a.out / f"{name}-0"
        target.mkdir(exist_ok=True)
        shutil.copy(run / "adapter/adapter_model.safetensors", target)
        config = json.loads((run / "adapter/adapter_config.json").read_text(encoding="utf-8"))
        config["base_model_name_or_path"] = base  # not a path of the machine it was made on
        text = json.dumps(config, indent=1, sort_keys=True) + "\n"
        (target / "adapter_config.json").write_text(text, encoding="utf-8")
        shutil.copy(run / "metrics.png", a.out / f"{name}-0.png")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code, that of train_da_grpo.py where it fails."""
    parser = argparse.ArgumentParser(
        prog="python -m training.result",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="what is published")
    parser.add_argument("--work", type=Path, default=Path("runs/minigaia"), metavar="DIR")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="runs side by side (%(default)s)")
    parser.add_argument("--sft-steps", type=int, default=96)
    parser.add_argument("--grpo-steps", type=int, default=20)
    parser.add_argument("--held-out", type=int, default=120, metavar="N", help="states to measure")
    a = parser.parse_args(arguments)
    if not (a.work / "data/held_out.jsonl").exists():
        minigaia.main(["--n", "3000", "--out", str(a.work / "data")])
    examples = read(a.work / "data/held_out.jsonl")[: a.held_out]
    rows = constants(examples)
    try:
        trained = models(a)
    except subprocess.CalledProcessError as error:  # it has said why
        return error.returncode
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(a.workers, mp_context=fresh) as pool:
        asked = [pool.submit(measure, model, examples, threads(a)) for model in trained.values()]
        for (arm, seed), measured in zip(trained, asked, strict=True):
            rows.append({"arm": arm, "seed": seed, **measured.result()})
            said = ", ".join(f"{c} {rows[-1][c]:.3f}" for c in COLUMNS)
            print(f"{arm}, seed {seed}: {said}", flush=True)
    said = "\n".join([table(rows), by_kind(rows), differences(rows, examples)])
    publish(a, rows, said)
    print(said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
