"""What must fit before training starts: prompts, model and server. One line where it does not."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from orchestra.vocabulary import ConfigError
from training.alignment import check
from training.examples import Example, read
from training.options import reward_settings
from training.policy import Policy, encode, load_tokenizer, plain_tokens, text_of
from training.rewards import Reward, make
from training.rollouts import Group, LocalRollouts, Rollouts

if TYPE_CHECKING:
    from training.vllm_rollouts import Server

APART = 1.0  # nats a token; a real vLLM with the same weights comes to less than 0.1
TRIED = 4  # completions that are compared before the first step


def prepared(o: argparse.Namespace) -> tuple[list[Example], list[Example], Server | None]:
    """The examples, the held-out ones, and the vLLM server where one is asked for. Raises
    ConfigError for an example that no reward could be made of, a model without a chat template, a
    text that is too long, and a server that is not vLLM or serves another tokenizer.
    """
    examples = read(o.data)
    held_out = read(o.eval_data)[: o.eval_limit] if o.eval_data else []
    for file, of_file in ((o.data, examples), (o.eval_data, held_out)):
        for example in of_file:
            try:
                check(example)
            except ConfigError as error:
                raise ConfigError(f"{file}: {error}") from None
    try:
        tokenizer, eos = load_tokenizer(o.model)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"--model {o.model}: has no usable tokenizer ({reason})") from None
    if not tokenizer.chat_template or not eos:
        lacking = "end token" if tokenizer.chat_template else "chat template"
        raise ConfigError(f"--model {o.model}: has no {lacking}; use an instruct model")
    server = _server(o, tokenizer, examples[0]) if o.rollouts == "vllm" else None
    window = _window(o.model, server)
    _short_enough(o, o.data, tokenizer, examples, window)
    _short_enough(o, o.eval_data, tokenizer, held_out, window)
    return examples, held_out, server


def make_reward(o: argparse.Namespace) -> Reward:
    """The reward of --reward. Raises ConfigError for a setting that it does not have."""
    return make(o.reward, **reward_settings(o.reward_setting))


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


def _window(model: Path, server: Server | None) -> int:
    """Tokens of prompt and completion."""
    from transformers import AutoConfig

    own = getattr(AutoConfig.from_pretrained(model), "max_position_embeddings", None)
    return min(n for n in (own, server and server.max_tokens, 10**9) if n)


def _short_enough(
    o: argparse.Namespace, file: Path, tokenizer: Any, examples: Sequence[Example], window: int
) -> None:
    limit = min(o.max_prompt, window - o.max_tokens)
    for example in examples:
        length = len(encode(tokenizer, example.messages))
        if length > limit:
            raise ConfigError(
                f"{file}: the prompt of {example.id} has {length} tokens, and {limit} fit "
                f"(--max-prompt {o.max_prompt}; a window of {window} less --max-tokens "
                f"{o.max_tokens}); leave it out, or change these"
            )
        said = len(plain_tokens(tokenizer, text_of(example))) + 1 if o.stage == "sft" else 0
        if length + said > window:
            raise ConfigError(
                f"{file}: the decision of {example.id} has {said} tokens, and {window - length} "
                f"fit behind its prompt (a window of {window}); leave it out"
            )


def make_rollouts(
    o: argparse.Namespace, policy: Policy, server: Server | None, version: int, example: Example
) -> Rollouts:
    """Where completions come from, with the policy as it is; tried out on `example`. Raises
    ConfigError for a server that has other weights.
    """
    if server is None:
        return LocalRollouts(policy, o.max_tokens, o.sample_batch)
    from training.vllm_rollouts import VllmRollouts

    rollouts = VllmRollouts(server, policy, o.out / "weights", o.max_tokens)
    rollouts.update(version)
    prompt = policy.encode(example.messages)
    (group,) = rollouts.sample([prompt], [o.seed], TRIED, o.temperature)
    apart = _apart(policy, group, o.temperature)
    if apart > APART:
        raise ConfigError(
            f"--vllm-url {o.vllm_url}: what it says of its tokens is {apart:.2f} nats a token from "
            f"what the model says, and numerics alone make less than {APART:g}: it has other "
            f"weights; serve {o.model}"
        )
    return rollouts


@torch.no_grad()
def _apart(policy: Policy, group: Group, temperature: float) -> float:
    """The mean distance of sampler and policy, in nats a token."""
    differences: list[float] = []
    for ids, logps in zip(group.ids, group.logps, strict=True):
        (own,) = policy.score(group.prompt, [ids], temperature).logps.tolist()
        differences += [abs(a - b) for a, b in zip(own, logps, strict=True)]
    return sum(differences) / len(differences)
