"""The flags of train_da_grpo.py, and every check that needs no model: nothing heavy is imported."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from orchestra.vocabulary import ConfigError
from runtime.command_line import OneLineParser
from runtime.run_folder import sha256_of, unwritable
from training.examples import read
from training.rewards import REWARDS

AGGREGATIONS = ("dapo", "grpo", "dr_grpo")
FREE = {"resume", "vllm_url", "save_every", "out"}  # may differ at a resume
COUNTS = (
    "batch", "micro_batch", "sample_batch", "group", "max_prompt", "max_tokens", "iterations",
    "save_every", "eval_every", "eval_limit", "lora_rank", "steps",
)  # fmt: skip
ABOVE_0 = (
    "epochs", "lr", "max_grad_norm", "temperature", "clip", "clip_high", "importance_cap"
)  # fmt: skip
FROM_0 = ("warmup", "lr_floor", "beta", "min_std", "seed")
SHARES = ("warmup", "lr_floor")
EXIT_CODES = "exit codes: 0 trained, 2 usage or configuration, 4 a server failed: vLLM or the judge"


def parser() -> argparse.ArgumentParser:
    p = OneLineParser(
        prog="train_da_grpo.py",
        description="Train the main agent on decision examples. Defaults are the paper's.",
        epilog=EXIT_CODES,
    )
    p.add_argument("--stage", choices=("sft", "grpo"), required=True)
    p.add_argument("--model", type=Path, required=True, metavar="DIR", help="a Hugging Face folder")
    p.add_argument("--data", type=Path, required=True, metavar="FILE", help="examples, JSONL")
    p.add_argument("--out", type=Path, required=True, metavar="DIR", help="for all that is written")
    p.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    length = p.add_argument_group("length")
    length.add_argument("--steps", type=int, help="optimizer steps; else --epochs over the data")
    length.add_argument("--epochs", type=float, default=5.0, help="(%(default)g)")
    length.add_argument("--batch", type=int, default=24, help="examples a step (%(default)s)")
    length.add_argument("--micro-batch", type=int, default=8, metavar="N",
                        help="completions of a prompt, one forward pass (%(default)s)")  # fmt: skip
    length.add_argument("--max-prompt", type=int, default=24_576, metavar="TOKENS")
    length.add_argument(
        "--max-tokens", type=int, default=4096, help="of a completion (%(default)s)"
    )
    _weights(p.add_argument_group("weights"))
    _grpo(p.add_argument_group("grpo"))
    notes = p.add_argument_group("notes")
    notes.add_argument("--seed", type=int, default=0)
    notes.add_argument("--save-every", type=int, default=10, metavar="STEPS", help="(%(default)s)")
    notes.add_argument("--eval-data", type=Path, metavar="FILE", help="held-out examples")
    notes.add_argument("--eval-every", type=int, default=10, metavar="STEPS", help="(%(default)s)")
    notes.add_argument("--eval-limit", type=int, default=64, metavar="N", help="(%(default)s)")
    return p


def _weights(p: Any) -> None:
    kind = p.add_mutually_exclusive_group()
    kind.add_argument("--lora-rank", type=int, default=16, metavar="R", help="(%(default)s)")
    kind.add_argument("--full", action="store_true", help="train all weights, without an adapter")
    p.add_argument("--dtype", choices=("auto", "bfloat16", "float32", "float64"), default="auto",
                   help="auto: bfloat16, or what the base of an adapter has, if wider")  # fmt: skip
    p.add_argument("--lr", type=float, default=5e-6, help="at its height (%(default)g)")
    p.add_argument("--warmup", type=float, default=0.05, help="share of the steps (%(default)g)")
    p.add_argument("--lr-floor", type=float, default=0.1, help="share of --lr (%(default)g)")
    p.add_argument("--max-grad-norm", type=float, default=1.0, help="(%(default)g)")
    p.add_argument(
        "--checkpointing", action="store_true", help="recompute activations: less memory"
    )


def _grpo(p: Any) -> None:
    p.add_argument("--reward", choices=sorted(REWARDS), default="rubric", help="(%(default)s)")
    p.add_argument("--reward-setting", action="append", default=[], metavar="K=V",
                   help="an argument of the reward, as JSON or text; repeatable")  # fmt: skip
    p.add_argument("--rollouts", choices=("vllm", "local"), default="local", help="(%(default)s)")
    p.add_argument("--vllm-url", metavar="URL", help="as in http://127.0.0.1:8000")
    p.add_argument("--sample-batch", type=int, default=64, metavar="N",
                   help="completions at once, of local rollouts (%(default)s)")  # fmt: skip
    p.add_argument("--group", type=int, default=8, metavar="G", help="completions (%(default)s)")
    p.add_argument("--temperature", type=float, default=1.0, help="(%(default)g)")
    p.add_argument(
        "--iterations", type=int, default=1, help="optimizer steps a batch (%(default)s)"
    )
    p.add_argument("--aggregation", choices=AGGREGATIONS, default="dapo", help="(%(default)s)")
    p.add_argument("--beta", type=float, default=0.01, help="of the KL (%(default)g)")
    p.add_argument("--clip", type=float, default=0.2, help="epsilon of Eq. 31 (%(default)g)")
    p.add_argument("--clip-high", type=float, metavar="X", help="clip-higher, as 0.28 (as --clip)")
    p.add_argument("--importance-cap", type=float, default=2.0, help="(%(default)g)")
    p.add_argument(
        "--min-std", type=float, default=1e-6, help="of a group that teaches (%(default)g)"
    )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags, checked as far as that needs no model, with `steps` and `clip_high` filled in. A
    mistake ends the program with one line.
    """
    p = parser()
    try:
        o = p.parse_args(arguments)
        check(o, world=int(os.environ.get("WORLD_SIZE", "1")))
    except ConfigError as error:
        p.exit(2, f"{p.prog}: {error}\n" if os.environ.get("RANK", "0") == "0" else None)
    return o


def check(o: argparse.Namespace, world: int = 1) -> None:
    """Raises ConfigError."""
    if not (o.model / "config.json").is_file():
        raise ConfigError(f"--model {o.model}: no config.json there; give a Hugging Face folder")
    _in_range(o)
    if o.batch % world:
        raise ConfigError(f"--batch {o.batch}: give a multiple of the {world} processes")
    if o.stage == "sft" and o.rollouts == "vllm":
        raise ConfigError("--rollouts vllm: SFT samples nothing that a server could; leave it out")
    if (o.rollouts == "vllm") != bool(o.vllm_url):
        raise ConfigError("--rollouts vllm and --vllm-url go together; give both or neither")
    if o.stage == "grpo" and o.group < 2:
        raise ConfigError("--group 1: has nothing to compare; give 2 or more")
    n = len(read(o.data))
    o.lora_rank = 0 if o.full else o.lora_rank
    o.steps = o.steps or max(1, round(o.epochs * n / o.batch))
    o.clip_high = o.clip if o.clip_high is None else o.clip_high


def _in_range(o: argparse.Namespace) -> None:
    """Raises ConfigError for the first number that no run could be made with."""

    def wanted(names: Sequence[str], fits: Callable[[float], bool], what: str) -> None:
        for name in names:
            value = getattr(o, name)
            if value is not None and not (math.isfinite(value) and fits(value)):
                raise ConfigError(f"--{name.replace('_', '-')} {value:g}: give {what}")

    wanted(COUNTS, lambda v: v >= 1, "1 or more")
    wanted(ABOVE_0, lambda v: v > 0, "a number above 0")
    wanted(FROM_0, lambda v: 0 <= v < 2**63, "0 or more")
    wanted(SHARES, lambda v: v <= 1, "a share, from 0 to 1")


def reward_settings(pairs: list[str]) -> dict[str, Any]:
    """KEY=VALUE pairs as arguments. Raises ConfigError."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign:
            raise ConfigError(f"--reward-setting {pair}: write KEY=VALUE")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


@contextlib.contextmanager
def settled(o: argparse.Namespace) -> Iterator[None]:
    """Make --out ready, note the options there, and keep other runs out. Raises ConfigError where
    that would lose a run, where a resume asks for another one, and where one is at work.
    """
    path, now = o.out / "options.json", _noted(o)
    before = _before(path)
    if o.resume and before is None:
        raise ConfigError(f"--resume: {o.out} holds no run; check --out, or leave --resume out")
    if before is not None and not o.resume:
        raise ConfigError(f"--out {o.out}: holds a run; add --resume, or take another folder")
    if before is not None and before != now:
        names = sorted(k for k in now.keys() | before if before.get(k) != now.get(k))
        raise ConfigError(
            f"--resume: {o.out} was started with other values of {', '.join(names)}; give the same"
        )
    try:
        o.out.mkdir(parents=True, exist_ok=True)
        folder = os.open(o.out, os.O_RDONLY)
    except OSError as error:
        raise unwritable(o.out, error) from None
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, folder)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until the process ends, however
            if before is None:
                part = path.with_suffix(".part")
                part.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
                part.rename(path)
        except BlockingIOError:
            raise ConfigError(f"--out {o.out}: another run is at work there; wait for it") from None
        except OSError as error:
            raise unwritable(o.out, error) from None
        yield


def _before(path: Path) -> dict[str, Any] | None:
    """The options of the run that is there, if one is. Raises ConfigError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: is damaged; take another --out")
    return found


def _noted(o: argparse.Namespace) -> dict[str, Any]:
    """What a run's metrics follow from."""
    kept = {name: value for name, value in vars(o).items() if name not in FREE}
    plain = {n: str(v) if isinstance(v, Path) else v for n, v in kept.items()}
    held_out = sha256_of(o.eval_data) if o.eval_data else ""
    shas = {"data": sha256_of(o.data), "eval_data": held_out, "model": weights_sha256(o.model)}
    return {**plain, **{f"{name}_sha256": sha for name, sha in shas.items()}}


def weights_sha256(model: Path) -> str:
    """Of the names and contents of a model's weights files, in their order."""
    files = sorted(model.glob("*.safetensors")) or sorted(model.glob("*.bin"))
    whole = "".join(f"{sha256_of(path)}  {path.name}\n" for path in files)
    return hashlib.sha256(whole.encode()).hexdigest()
