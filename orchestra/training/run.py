"""What a run has: what it needs before its first step, its folder, its checkpoints and its metrics.

Every process calls these functions, and the first one writes. A checkpoint has all that a run needs
to continue as if nothing had happened: the trained weights, the optimizer and the next step. The
place in the data, the seeds of the sampling and the learning rate follow from the step. It is
written under another name and renamed, so a run that is killed at any moment leaves a complete one.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from transformers import AutoConfig, AutoTokenizer

from orchestra.command.names import source_file
from orchestra.kernel.folder import sha256_of, write_whole
from orchestra.kernel.tape import Appender, rows_of
from orchestra.kernel.vocabulary import ConfigError
from orchestra.training import examples, rewards
from orchestra.training.examples import Example
from orchestra.training.options import TrainingOptions
from orchestra.training.policy import Policy, prompt_ids, reference_ids, usable
from orchestra.training.processes import Processes
from orchestra.training.rollouts import LocalRollouts, Rollouts
from orchestra.training.samples import Row
from orchestra.training.vllm_rollouts import VllmRollouts, served

# Options that may differ at a resume. The paths of files may, but not their contents.
FREE = {"resume", "out", "vllm_url", "model", "adapter", "data", "eval_data", "log"}
FREE_SETTINGS = "timeout_s=", "parallel=", "cache="  # of the judge
STATE = StateDictOptions(  # of a checkpoint: whole, and without what is not trained
    full_state_dict=True, cpu_offload=True, ignore_frozen_params=True, strict=False
)
SHOWN = ("loss", "reward", "eval/reward", "kl", "zero_variance", "grad_norm")


# ---- before the first step -----------------------------------------------------------------------


def read(
    options: TrainingOptions,
) -> tuple[list[Example], list[Example], rewards.Scorer | None]:
    """The examples to train on, those to evaluate on, and what scores sampled decisions, if any.

    Raises ConfigError for a file, an example, a reward, a model or a server that cannot be used. No
    model is loaded.
    """
    train = examples.read(options.data)
    held_out = [] if options.eval_data is None else examples.read(options.eval_data)
    scorer = None
    if options.samples:
        settings = dict(pair.split("=", 1) for pair in options.reward_setting)
        reward = rewards.make(options.reward, **settings)
        scorer = rewards.Scorer(options.reward, reward)
    _check_lengths(options, train, held_out)
    if scorer:
        scorer.check([*train, *held_out] if options.stage == "grpo" else held_out)
        if options.rollouts == "vllm":
            served(options.vllm_url)
    return train, held_out, scorer


def _check_lengths(
    options: TrainingOptions, train: Sequence[Example], held_out: Sequence[Example]
) -> None:
    """Raises ConfigError for an example that is too long, or whose reference cannot be imitated,
    and for a model without a chat template.
    """
    model = f"--model {options.model}"
    tokenizer = usable(model, AutoTokenizer.from_pretrained, options.model)
    context = context_of(usable(model, AutoConfig.from_pretrained, options.model))
    imitated = len(train) if options.stage == "sft" else 0
    for number, example in enumerate([*train, *held_out]):
        why = ""
        prompt = len(usable(model, prompt_ids, tokenizer, example.messages))
        reply = options.max_tokens
        if number < imitated:
            reply = len(reference_ids(tokenizer, example)) + 1  # with the end token
            if not example.reference:
                why = "its reference is empty, and --stage sft imitates it"
            elif reply > options.max_tokens:
                limit = f"--max-tokens {options.max_tokens}"
                why = f"its reference has {reply} tokens, more than {limit}"
        if prompt + reply > context:
            size = f"{prompt + reply} tokens, more than the model's context"
            why = f"its prompt with a reply has {size} of {context}"
        if why:
            raise ConfigError(f"example {example.id}: {why}")


def context_of(config: Any) -> float:
    """The tokens that a model can read, as far as its configuration says."""
    text = config.get_text_config()
    limit = getattr(text, "max_position_embeddings", None) or math.inf
    rope = getattr(text, "rope_parameters", None) or {}
    original = rope.get("original_max_position_embeddings") or limit
    return max(limit, original * (rope.get("factor") or 1))


def make_policy(options: TrainingOptions, processes: Processes) -> Policy:
    """pi_theta on its device."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(device.type == "cpu")
    torch.manual_seed(options.seed)  # decides the weights of a new adapter
    return Policy(
        folder=options.model,
        device=device,
        dtype=options.dtype,
        lora_rank=0 if options.full else options.lora_rank,
        adapter=options.adapter,
        checkpointing=options.checkpointing,
        processes=processes,
    )


def make_rollouts(options: TrainingOptions, policy: Policy) -> Rollouts:
    """The sampler: the policy itself, or a server that gets its weights."""
    if options.rollouts == "local" or not options.samples:
        return LocalRollouts(policy, options.max_tokens)
    folder = options.out / "weights"
    return VllmRollouts(options.vllm_url, policy, folder, options.max_tokens)


# ---- the folder ----------------------------------------------------------------------------------


def begin(options: TrainingOptions, processes: Processes) -> Appender | None:
    """Write the options to --out. Returns the lock that keeps other processes out of it. Raises
    ConfigError if --out has another run, or is in use. A run that ended before its model was loaded
    has no metrics, and leaves --out free.
    """
    if processes.rank > 0:
        return None
    out = options.out
    now = _recorded(options)
    before = next(rows_of(out / "options.json"), None)
    if not options.resume:
        if before is not None and (out / "metrics.jsonl").exists():
            raise ConfigError(f"{out}: has a run; add --resume, or give another --out")
    elif before is None:
        raise ConfigError(f"{out}: has no run to --resume")
    elif now != before:
        names = sorted(now.keys() | before.keys())
        other = ", ".join(n for n in names if before.get(n) != now.get(n))
        raise ConfigError(f"--resume: {out} was started with other values of {other}")
    out.mkdir(parents=True, exist_ok=True)
    lock = Appender(out / "lock")
    write_whole(out / "options.json", json.dumps(now) + "\n")
    return lock


def _recorded(options: TrainingOptions) -> dict[str, Any]:
    """All that the metrics of a run follow from: options, and the contents of files."""
    files: dict[str, Path | None] = {
        "data": options.data,
        "eval_data": options.eval_data,
        "model": options.model,
        "adapter": options.adapter,
    }
    if ":" in options.reward:
        files["rule"] = source_file(options.reward, "--reward")
    kept = options.model_dump(mode="json", exclude=FREE)
    settings = options.reward_setting
    kept["reward_setting"] = [s for s in settings if not s.startswith(FREE_SETTINGS)]
    return kept | {
        f"{name}_sha256": _hash(path) for name, path in files.items() if path
    }


def _hash(path: Path) -> str:
    """A hash of a file, or one of the names and contents of the files in a folder."""
    if path.is_file():
        return sha256_of(path)
    files = [file for file in sorted(path.iterdir()) if file.is_file()]
    lines = [f"{sha256_of(file)}  {file.name}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


# ---- checkpoints ---------------------------------------------------------------------------------


def save(options: TrainingOptions, policy: Policy, optimizer: Any, step: int) -> None:
    """Keep the adapter after `step` steps, and write the checkpoint from which the next one can
    begin. Raises ConfigError if it cannot be written, as on a full disk.
    """
    if policy.lora:
        policy.save(options.out / f"adapter-{step}")
    weights, moments = get_state_dict(policy.model, optimizer, options=STATE)
    state = {"weights": weights, "optimizer": moments, "step": step}
    if policy.processes.rank == 0:
        part = options.out / "checkpoint.part"
        usable(f"{part}", torch.save, state, part)
        part.replace(options.out / "checkpoint.pt")
    policy.processes.wait()


def load(out: Path, model: Any, optimizer: Any) -> int:
    """Restore the checkpoint, if there is one. Returns the next step. Raises ConfigError if the
    checkpoint cannot be read.
    """
    file = out / "checkpoint.pt"
    if not file.exists():
        return 0
    state = usable(str(file), torch.load, file, map_location="cpu", weights_only=True)
    both = {
        "model_state_dict": state["weights"],
        "optim_state_dict": state["optimizer"],
    }
    set_state_dict(model, optimizer, **both, options=STATE)
    return int(state["step"])


# ---- metrics -------------------------------------------------------------------------------------


class Metrics:
    """metrics.jsonl, completions.jsonl, a tracker and the terminal. `step` in lines is the number
    of steps taken: 0 is the evaluation before the first. A resume keeps the lines up to its
    checkpoint. The first process writes.
    """

    def __init__(
        self, options: TrainingOptions, step: int, steps: int, processes: Processes
    ) -> None:
        """`step` of `steps` were taken."""
        self.steps = steps
        self.processes = processes
        if processes.rank == 0:
            self.metrics = _continued(options.out / "metrics.jsonl", step)
            self.completions = _continued(options.out / "completions.jsonl", step)
            self.track = tracker(options)

    def add(
        self, step: int, row: Row, completions: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """What was measured after `step` steps, written before the next one begins, and the
        completions of all processes. Raises ConfigError if a value is not finite: a bug, or a
        learning rate that is far too high.
        """
        wrong = [name for name, value in row.items() if not math.isfinite(value)]
        if wrong:
            problem = f"{', '.join(wrong)} is not finite"
            raise ConfigError(f"step {step}: {problem}; try a smaller --lr")
        sampled = self.processes.gathered(list(completions))
        if self.processes.rank > 0:
            return
        self.metrics.append(json.dumps({"step": step, **row}))
        self.track(row, step)
        for completion in chain.from_iterable(sampled):
            line = json.dumps({"step": step, **completion}, ensure_ascii=False)
            self.completions.append(line)
        shown = [f"{name} {row[name]:.4g}" for name in SHOWN if name in row]
        print(
            f"step {step}/{self.steps} ", *shown, sep="  ", file=sys.stderr, flush=True
        )


def tracker(options: TrainingOptions) -> Callable[[Row, int], None]:
    """--log: takes the metrics after a step to trackio or wandb. Each start of the program, a
    resume too, is a run of its own there.
    """
    if options.log is None:
        return lambda row, step: None
    library = usable(f"--log {options.log}", import_module, options.log)
    recorded = options.model_dump(mode="json")
    library.init(project="da-grpo", name=options.out.resolve().name, config=recorded)
    atexit.register(library.finish)
    return lambda row, step: library.log(row, step=step)


def _continued(path: Path, step: int) -> Appender:
    """A file with the lines of the first `step` steps; a run that begins again has none."""
    rows = [row for row in rows_of(path) if step > 0 and row["step"] <= step]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    write_whole(path, "".join(lines))
    return Appender(path)
