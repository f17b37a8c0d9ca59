"""What a run needs before its first step, made from its options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoTokenizer

from orchestra.seams import Reward
from orchestra.training import rewards
from orchestra.training.examples import Example, read
from orchestra.training.options import TrainingOptions
from orchestra.training.policy import Policy
from orchestra.training.pretrained import usable
from orchestra.training.rewards import make
from orchestra.training.rollouts import LocalRollouts, Rollouts
from orchestra.training.vllm_rollouts import VllmRollouts
from orchestra.vocabulary import ConfigError


def read_eval_examples(options: TrainingOptions) -> list[Example]:
    """The held-out examples; none in SFT, which samples no decisions."""
    if options.eval_data is None or options.stage == "sft":
        return []
    return read(options.eval_data)


def number_of_steps(options: TrainingOptions, examples: int) -> int:
    """The optimizer steps of the run: --steps, or --epochs over this many examples."""
    if options.steps is not None:
        return options.steps
    return max(1, round(options.epochs * examples / options.batch))


def make_reward(options: TrainingOptions) -> Reward:
    """The reward of --reward. Raises ConfigError for bad settings."""
    settings = dict(pair.split("=", 1) for pair in options.reward_setting)
    return make(options.reward, **settings)


def make_policy(options: TrainingOptions, device: torch.device) -> Policy:
    """pi_theta, and pi_ref where the loss has a KL."""
    policy = Policy(
        folder=options.model,
        device=device,
        dtype=options.dtype,
        lora_rank=0 if options.full else options.lora_rank,
        adapter=options.adapter,
        checkpointing=options.checkpointing,
    )
    if options.stage == "grpo" and options.beta > 0:
        policy.keep_reference()  # as the run began: a checkpoint is loaded later
    return policy


def make_rollouts(options: TrainingOptions, policy: Policy) -> Rollouts:
    """The sampler. SFT does not use one."""
    if options.stage == "sft" or options.rollouts == "local":
        return LocalRollouts(policy, options.max_tokens, options.sample_batch)
    folder = options.out / "weights"
    return VllmRollouts(options.vllm_url, policy, folder, options.max_tokens)


# ---- examples ------------------------------------------------------------------------------------


def check_examples(
    options: TrainingOptions, examples: Sequence[Example], reward: Reward
) -> None:
    """Raises ConfigError for an example that is too long or that the reward cannot score, and for a
    model without a chat template.
    """
    what = f"--model {options.model}"
    tokenizer = usable(what, AutoTokenizer.from_pretrained, options.model)

    def prompt_length(example: Example) -> int:
        ids: Any = tokenizer.apply_chat_template(
            list(example.messages), add_generation_prompt=True, return_dict=False
        )
        return len(ids)

    for example in examples:
        length = usable(what, prompt_length, example)
        if length > options.max_prompt:
            limit = f"more than --max-prompt {options.max_prompt}"
            why = f"its prompt has {length} tokens, {limit}"
            raise ConfigError(f"example {example.id}: {why}")
    if options.stage == "grpo":
        rewards.check(options.reward, reward, examples)
