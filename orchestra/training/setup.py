"""What a run needs before its first step, made from its options, and checked before it costs
anything.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from orchestra.kernel.vocabulary import ConfigError
from orchestra.training import examples, rewards
from orchestra.training.examples import Example
from orchestra.training.options import TrainingOptions
from orchestra.training.policy import Policy
from orchestra.training.pretrained import model_folder, usable
from orchestra.training.processes import Processes
from orchestra.training.rollouts import LocalRollouts, Rollouts
from orchestra.training.scoring import Scorer


def join_processes() -> Processes:
    """This process alone, or all that torchrun started."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Processes()
    from orchestra.training.ranks import Ranks

    return Ranks()


def make_policy(options: TrainingOptions, processes: Processes) -> Policy:
    """pi_theta, and pi_ref where the loss has a KL."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(device.type == "cpu")
    torch.manual_seed(options.seed)  # decides the weights of a new adapter
    policy = Policy(
        folder=model_folder(options.model),
        device=device,
        dtype=options.dtype,
        lora_rank=0 if options.full else options.lora_rank,
        adapter=options.adapter,
        checkpointing=options.checkpointing,
        processes=processes,
    )
    if options.stage == "grpo" and options.beta > 0:
        policy.keep_reference()  # as the run began: a checkpoint is loaded later
    return policy


def make_rollouts(options: TrainingOptions, policy: Policy) -> Rollouts:
    """The sampler: the policy itself, or a server that gets its weights."""
    if options.rollouts == "local" or not options.samples:
        return LocalRollouts(policy, options.max_tokens, options.sample_batch)
    from orchestra.training.vllm_rollouts import VllmRollouts

    folder = options.out / "weights"
    return VllmRollouts(options.vllm_url, policy, folder, options.max_tokens)


# ---- examples ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """The examples to train on, those to evaluate on, and what scores decisions in their states."""

    examples: list[Example]
    held_out: list[Example]
    scorer: Scorer


def read(options: TrainingOptions) -> Data:
    """Raises ConfigError for a file, an example, a reward, a model or a server that cannot be used.
    No model is loaded.
    """
    data = Data(
        examples=examples.read(options.data),
        held_out=[] if options.eval_data is None else examples.read(options.eval_data),
        scorer=make_scorer(options),
    )
    _check_lengths(options, [*data.examples, *data.held_out])
    if options.stage == "grpo":
        data.scorer.check([*data.examples, *data.held_out])
    elif data.held_out:
        data.scorer.check(data.held_out)
    if options.samples and options.rollouts == "vllm":
        from orchestra.training.vllm_rollouts import served

        served(options.vllm_url)
    return data


def make_scorer(options: TrainingOptions) -> Scorer:
    """The reward of --reward. Raises ConfigError for bad settings."""
    settings = dict(pair.split("=", 1) for pair in options.reward_setting)
    return Scorer(options.reward, rewards.make(options.reward, **settings))


def _check_lengths(options: TrainingOptions, found: Sequence[Example]) -> None:
    """Raises ConfigError for an example that is too long or a model without a chat template."""
    what = f"--model {options.model}"
    folder: Path = model_folder(options.model)
    tokenizer = usable(what, AutoTokenizer.from_pretrained, folder)

    def prompt_length(example: Example) -> int:
        ids: Any = tokenizer.apply_chat_template(
            list(example.messages), add_generation_prompt=True, return_dict=False
        )
        return len(ids)

    for example in found:
        length = usable(what, prompt_length, example)
        if length > options.max_prompt:
            limit = f"more than --max-prompt {options.max_prompt}"
            why = f"its prompt has {length} tokens, {limit}"
            raise ConfigError(f"example {example.id}: {why}")
