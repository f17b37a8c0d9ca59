"""The result: what DA-GRPO makes of a small model, in the shape of the paper's Table 2.

    python -m training.result --model SmolLM2-135M-Instruct --out fixtures/results/minigaia

Four arms on MiniGAIA decisions: the model as it is; imitation, stopped early (SFT); and from there
GRPO with the plain outcome as reward (vanilla) or with the rubric of Eq. 29 (DA-GRPO), both with
the same steps, states and seeds. All train on one file, and the states of GRPO are other states
than SFT's, drawn anew (few meet again by chance), the same for both. Each arm is measured by its
likeliest decisions on held-out states, whose templates and names nobody trained on; and beside them
the policies of constant.py, which are no model.

What is done already in --work is kept, runs and what was measured (measured.jsonl; put it away
after a change of the rule): a run that was stopped goes on.

Differences from the paper
1. Section 3.3 knows no SFT stage before DA-GRPO; here both GRPO arms start from SFT.
2. "Vanilla" rewards the right decision, by the same rule's `right`, and not the final answer of a
   run that was carried out.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_EXCEPTION,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from pathlib import Path

from orchestra.vocabulary import ConfigError
from runtime import tape as tapes
from runtime.command_line import OneLineParser
from runtime.run_folder import unwritable
from runtime.tape import TapeWriteError
from training import minigaia
from training.examples import Example, read
from training.metrics import cut_short, graded
from training.options import weights_sha256
from training.report import COLUMNS, CONSTANT, KINDS, REWARD, Figures, by_kind, differences, table
from training.rewards import Scores, make

SCRIPT = Path(__file__).resolve().parent.parent / "train_da_grpo.py"
MAX_TOKENS = 144  # of a decision
COMMON = f"--batch 4 --lora-rank 8 --max-tokens {MAX_TOKENS}"
SFT = f"{COMMON} --lr 1e-3"
GRPO = f"{COMMON} --lr 5e-4 --group 8 --micro-batch 8 --save-every 2"
ORDER = 1000  # what is added to the seed of GRPO: other states than SFT's, the same for both


# ---- the runs ------------------------------------------------------------------------------------


def threads(a: argparse.Namespace) -> int:
    """Of each of the runs in parallel."""
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
    """(arm, seed) -> its model. SFT stands first in the queue: what waits for it does not block.
    Where a run fails, or Ctrl-C is pressed, what has not begun does not begin. Raises
    CalledProcessError.
    """

    def sft(seed: int) -> Path:
        return train(a, "sft", a.model, f"sft-{seed}", f"{SFT} --steps {a.sft_steps} --seed {seed}")

    def grpo(reward: str, seed: int, start: Future[Path]) -> Path:
        flags = f"{GRPO} --steps {a.grpo_steps} --seed {ORDER + seed} --reward {reward}"
        return train(a, "grpo", start.result(), f"{reward}-{seed}", flags)

    pool = ThreadPoolExecutor(a.workers)
    try:
        made = {("SFT", seed): pool.submit(sft, seed) for seed in range(a.seeds)}
        made |= {
            (arm, seed): pool.submit(grpo, reward, seed, made["SFT", seed])
            for seed in range(a.seeds)
            for arm, reward in REWARD.items()
        }
        for run in wait(made.values(), return_when=FIRST_EXCEPTION).done:
            run.result()  # raises what one of them did
        return {("untrained", 0): a.model} | {key: run.result() for key, run in made.items()}
    finally:
        pool.shutdown(cancel_futures=True)


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


def measured(
    a: argparse.Namespace, made: Mapping[tuple[str, int], Path], examples: Sequence[Example]
) -> Iterator[Figures]:
    """The figures of each arm and seed, kept in --work. Raises TapeWriteError.

    What was measured before, with the same weights and as many states, is not measured again.
    """
    tape = a.work / "measured.jsonl"
    kept = {tuple(row["key"]): row["figures"] for row in tapes.read(tape)}
    keys = {of: (*of, len(examples), weights_sha256(model)) for of, model in made.items()}
    fresh = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(a.workers, mp_context=fresh)
    file = tapes.Appender(tape)
    try:
        asked = {
            of: pool.submit(measure, model, examples, threads(a))
            for of, model in made.items()
            if keys[of] not in kept
        }
        for of, key in keys.items():
            if of in asked:
                kept[key] = asked[of].result()
                file.append(json.dumps({"key": key, "figures": kept[key]}))
            yield {"arm": of[0], "seed": of[1], **kept[key]}
    finally:
        file.unlock()
        pool.shutdown(cancel_futures=True)


# ---- the report ----------------------------------------------------------------------------------


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


def _flags() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="python -m training.result",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="what is published")
    parser.add_argument("--work", type=Path, default=Path("runs/minigaia"), metavar="DIR")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="runs in parallel (%(default)s)")
    parser.add_argument("--sft-steps", type=int, default=96)
    parser.add_argument("--grpo-steps", type=int, default=20)
    parser.add_argument("--held-out", type=int, default=96, metavar="N", help="states to measure")
    return parser


def check(a: argparse.Namespace) -> None:
    """Raises ConfigError for a flag that makes no result and a folder that cannot be written."""
    for name in ("seeds", "workers", "sft_steps", "grpo_steps", "held_out"):
        if getattr(a, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {getattr(a, name)}: give 1 or more")
    for folder in (a.work, a.out):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(folder, error) from None


def held_out(a: argparse.Namespace) -> list[Example]:
    """The states to measure. Raises ConfigError where there are fewer than that."""
    file = a.work / "data/held_out.jsonl"
    examples = read(file)[: a.held_out]
    if len(examples) < a.held_out:
        raise ConfigError(f"--held-out {a.held_out}: {file} has only {len(examples)}; give less")
    return examples


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code, that of train_da_grpo.py where it fails; a user's mistake is one line
    on standard error.
    """
    parser = _flags()
    try:
        a = parser.parse_args(arguments)
        check(a)
        data = a.work / "data"
        if not (data / "held_out.jsonl").exists():
            code = minigaia.main(["--n", "3000", "--out", str(data)])
            if code:  # it has said why
                return code
        examples = held_out(a)
        rows = constants(examples)
        for row in measured(a, models(a), examples):
            rows.append(row)
            said = ", ".join(f"{c} {row[c]:.3f}" for c in COLUMNS)
            print(f"{row['arm']}, seed {row['seed']}: {said}", flush=True)
        report = "\n".join([table(rows), by_kind(rows), differences(rows, examples)])
        publish(a, rows, report)
    except subprocess.CalledProcessError as error:  # it has said why
        return error.returncode
    except KeyboardInterrupt:
        print(f"{parser.prog}: stopped; the same command goes on", file=sys.stderr)
        return 130
    except OSError as error:
        mistake: object = unwritable(Path(error.filename or a.out), error)
    except (ConfigError, TapeWriteError) as error:
        mistake = error
    else:
        print(report)
        return 0
    print(f"{parser.prog}: {mistake}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
