"""The result: what DA-GRPO makes of a small model, in the shape of the paper's Table 2.

    python -m training.result --model SmolLM2-135M-Instruct --out fixtures/results/minigaia

Four arms on MiniGAIA decisions: the model as it is; imitation, stopped early (SFT); and from there
GRPO with the plain outcome as reward (vanilla) or with the rubric of Eq. 29 (DA-GRPO), both with
the same steps, data and seeds. Each is measured by its likeliest decisions on held-out states,
whose templates and names nobody trained on; and beside them the policies of constant.py, which are
no model. What is done already in --work is kept: a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from training import constant, minigaia
from training.examples import Example, read
from training.metrics import Row, graded
from training.rewards import Scores, make

SCRIPT = Path(__file__).resolve().parent.parent / "train_da_grpo.py"
MAX_TOKENS = 144  # of a decision
COMMON = f"--batch 4 --lora-rank 8 --max-tokens {MAX_TOKENS}"
SFT = f"{COMMON} --lr 1e-3"
GRPO = f"{COMMON} --lr 5e-4 --group 8 --micro-batch 8 --save-every 2"
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


def train(a: argparse.Namespace, stage: str, model: Path, name: str, flags: str) -> Path:
    """A run of train_da_grpo.py, or what is left of it: one with other flags is refused there.
    Returns the folder of its model.
    """
    out: Path = a.work / name
    paths = ["--model", model, "--data", a.work / "data/train.jsonl", "--out", out]
    rest = [*flags.split(), *(["--resume"] if (out / "options.json").exists() else [])]
    threads = str(max(1, (os.cpu_count() or 1) // a.workers))
    environment = {**os.environ, "OMP_NUM_THREADS": threads}
    command = [sys.executable, SCRIPT, "--stage", stage, *paths, *rest]
    subprocess.run(command, check=True, env=environment)
    return out / "model"


def models(a: argparse.Namespace) -> dict[tuple[str, int], Path]:
    """(arm, seed) -> its model. SFT stands first in the queue: what waits for it does not block."""

    def sft(seed: int) -> Path:
        return train(a, "sft", a.model, f"sft-{seed}", f"{SFT} --steps {a.sft_steps} --seed {seed}")

    def grpo(reward: str, seed: int, start: Future[Path]) -> Path:
        flags = f"{GRPO} --steps {a.grpo_steps} --seed {seed} --reward {reward}"
        return train(a, "grpo", start.result(), f"{reward}-{seed}", flags)

    with ThreadPoolExecutor(a.workers) as pool:
        made = {("SFT", seed): pool.submit(sft, seed) for seed in range(a.seeds)}
        made |= {
            (arm, seed): pool.submit(grpo, reward, seed, made["SFT", seed])
            for seed in range(a.seeds)
            for arm, reward in REWARD.items()
        }
        return {("untrained", 0): a.model} | {key: run.result() for key, run in made.items()}


def measure(model: Path, examples: Sequence[Example]) -> Row:
    """The rubric's scores of the likeliest decision in each state. In float32, in which a merged
    model is what was trained.
    """
    import torch

    from training.policy import Policy
    from training.rollouts import LocalRollouts, likeliest

    policy = Policy(model, 0, "float32", torch.device("cpu"), reference=False)
    rollouts = LocalRollouts(policy, MAX_TOKENS, at_once=32)
    return figures(examples, [g.texts[0] for g in likeliest(policy, examples, rollouts)])


def figures(examples: Sequence[Example], decisions: Sequence[str]) -> Row:
    """The rubric's scores of a decision in each state, as means; the reward by the kind of state
    too, and of how many states that is. One with a retry and more counts as a retry.
    """
    rubric = make("rubric")
    scores = [rubric(e, [text]) for e, text in zip(examples, decisions, strict=True)]
    of_kind: dict[str, list[list[Scores | None]]] = {kind: [] for kind in KINDS}
    for example, one in zip(examples, scores, strict=True):
        of_kind[example.meta["kind"].split("+")[0]].append(one)
    row = graded(scores)
    for kind, some in of_kind.items():
        row |= {f"states/{kind}": len(some), f"reward/in {kind}": graded(some).get("reward", 0.0)}
    return {**row, "invalid": 1 - row["valid"]}


def constants(examples: Sequence[Example]) -> list[dict[str, str | float]]:
    """The policies that are no model, scored as a model is."""
    return [
        {"arm": arm, "seed": 0, **figures(examples, [policy(e) for e in examples])}
        for arm, policy in CONSTANT.items()
    ]


# ---- the report ----------------------------------------------------------------------------------


def table(rows: Sequence[dict[str, str | float]], columns: Mapping[str, str] = COLUMNS) -> str:
    """Mean and standard deviation over the seeds, in percent, as Markdown."""
    lines = ["| | " + " | ".join(columns.values()) + " |", "| --- |" + " ---: |" * len(columns)]
    for arm in ARMS:
        of_arm = [row for row in rows if row["arm"] == arm]
        cells = [_spread([100 * float(row[column]) for row in of_arm]) for column in columns]
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def by_kind(rows: Sequence[dict[str, str | float]]) -> str:
    """The reward by the kind of state, of the kinds that there are."""
    counts = {kind: rows[0][f"states/{kind}"] for kind in KINDS}
    found = {f"reward/in {k}": f"{k} ({n:.0f})" for k, n in counts.items() if n}
    return table(rows, found)


def _spread(values: Sequence[float]) -> str:
    several = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{several}"


def publish(a: argparse.Namespace, rows: Sequence[dict[str, str | float]]) -> None:
    """The table, the figures of each arm and seed, every run's metrics, and the adapters of seed 0:
    DA-GRPO's, and SFT's that it stands on.
    """
    a.out.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (a.out / "results.jsonl").write_text(text, encoding="utf-8")
    (a.out / "table.md").write_text(f"{table(rows)}\n{by_kind(rows)}", encoding="utf-8")
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
    parser.add_argument("--sft-steps", type=int, default=32)
    parser.add_argument("--grpo-steps", type=int, default=10)
    parser.add_argument("--held-out", type=int, default=64, metavar="N", help="states to measure")
    a = parser.parse_args(arguments)
    if not (a.work / "data/held_out.jsonl").exists():
        minigaia.main(["--n", "2000", "--out", str(a.work / "data")])
    examples = read(a.work / "data/held_out.jsonl")[: a.held_out]
    rows = constants(examples)
    try:
        trained = models(a)
    except subprocess.CalledProcessError as error:  # it has said why
        return error.returncode
    for (arm, seed), model in trained.items():
        rows.append({"arm": arm, "seed": seed, **measure(model, examples)})
        said = ", ".join(f"{c} {rows[-1][c]:.3f}" for c in COLUMNS)
        print(f"{arm}, seed {seed}: {said}", flush=True)
    publish(a, rows)
    print(f"{table(rows)}\n{by_kind(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
