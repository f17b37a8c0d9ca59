"""What must fit before training starts: prompts, model and server. One line where it does not."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestra.vocabulary import ConfigError
from training.examples import Example, read
from training.options import reward_settings
from training.policy import Policy, encode, load_tokenizer
from training.rewards import REWARDS, Reward, make
from training.rollouts import LocalRollouts, Rollouts

if TYPE_CHECKING:
    from training.vllm_rollouts import Server


def prepared(
    o: argparse.Namespace,
) -> tuple[list[Example], list[Example], Server | None]:
    """The examples, the held-out ones, and the vLLM server where one is asked for. Raises
    ConfigError for a model without a chat template, a prompt that is too long, and a server that is
    not vLLM or serves another tokenizer.
    """
    examples = read(o.data)
    held_out = read(o.eval_data)[: o.eval_limit] if o.eval_data else []
    try:
        tokenizer, eos = load_tokenizer(o.model)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"--model {o.model}: has no usable tokenizer ({reason})") from None
    if not tokenizer.chat_template or not eos:
        lacking = "end token" if tokenizer.chat_template else "chat template"
        raise ConfigError(f"--model {o.model}: has no {lacking}; use an instruct model")
    server = _server(o, tokenizer, examples[0]) if o.rollouts == "vllm" else None
    _short_enough(o, tokenizer, [*examples, *held_out], server)
    return examples, held_out, server


def make_reward(o: argparse.Namespace) -> Reward:
    """The reward of --reward. Raises ConfigError for a setting that it does not have."""
    settings = reward_settings(o.reward_setting)
    try:
        inspect.signature(REWARDS[o.reward]).bind(**settings)
    except TypeError as error:
        raise ConfigError(f"--reward-setting: {o.reward} takes others ({error})") from None
    return make(o.reward, **settings)


def _server(o: argparse.Namespace, tokenizer: Any, example: Example) -> Server:
    from training.vllm_rollouts import Server

    server = Server(o.vllm_url)
    text = "".join(m["content"] for m in example.messages)
    if server.tokens(text) != tokenizer(text, add_special_tokens=False)["input_ids"]:
        raise ConfigError(
            f"--vllm-url {o.vllm_url}: serves {server.model}, which has other tokens than --model "
            f"{o.model}; serve that folder"
        )
    return server


def _short_enough(
    o: argparse.Namespace, tokenizer: Any, examples: Sequence[Example], server: Server | None
) -> None:
    from transformers import AutoConfig

    window = getattr(AutoConfig.from_pretrained(o.model), "max_position_embeddings", None)
    window = min(n for n in (window, server and server.max_tokens, 10**9) if n)
    limit = min(o.max_prompt, window - o.max_tokens)
    for example in examples:
        length = len(encode(tokenizer, example.messages))
        if length > limit:
            raise ConfigError(
                f"{o.data}: the prompt of {example.id} has {length} tokens, and {limit} fit "
                f"(--max-prompt {o.max_prompt}; a window of {window} less --max-tokens "
                f"{o.max_tokens}); leave it out, or change these"
            )


def make_rollouts(
    o: argparse.Namespace, policy: Policy, server: Server | None, version: int
) -> Rollouts:
    """Where completions come from, with the policy as it is."""
    if server is None:
        return LocalRollouts(policy, o.max_tokens, o.sample_batch)
    from training.vllm_rollouts import VllmRollouts

    rollouts = VllmRollouts(server, policy, o.out / "weights", o.max_tokens)
    rollouts.update(version)
    return rollouts
