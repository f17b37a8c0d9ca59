"""The policy of the laboratory: a Llama of 165,000 weights with the compact language."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from orchestra.training.lab.language import END, MAX_TOKENS, REPLY, VOCABULARY, Game
from orchestra.training.lab.play import Decide
from orchestra.training.policy import Ids, Policy
from orchestra.training.rollouts import Group, LocalRollouts

AT_ONCE = 128  # completions that are sampled in parallel
ID = {word: number for number, word in enumerate(VOCABULARY)}


def make(out: Path, seed: int, width: int = 64, layers: int = 3) -> None:
    """Write a random model and its tokenizer."""
    disable_progress_bar()  # type: ignore[no-untyped-call]
    words = Tokenizer(models.WordLevel(ID, unk_token=END))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=words,
        eos_token=END,
        pad_token=END,
        chat_template=f"{{{{ messages[-1]['content'] }}}} {REPLY}",
    )
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=ID[END],
        pad_token_id=ID[END],
        tie_word_embeddings=True,
        initializer_range=0.1,  # at the default, 0.02, so narrow a model learns three times slower
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).save_pretrained(out)
    tokenizer.save_pretrained(out)


def load(folder: Path) -> Policy:
    """The policy of a folder, to be trained further or to play."""
    return Policy(folder, torch.device("cpu"), "float32")


def encode(prompt: str, decision: str) -> tuple[Ids, Ids]:
    """The tokens of a state and of a decision in it."""
    before = [*prompt.split(), REPLY]
    after = [*decision.split(), END]
    return [ID[word] for word in before], [ID[word] for word in after]


class SortedRollouts(LocalRollouts):
    """Samples prompts of about the same length together, and keeps the newest groups."""

    groups: list[Group]

    def sample(
        self, prompts: Sequence[Ids], seeds: Sequence[int], n: int, temperature: float
    ) -> list[Group]:
        order = sorted(range(len(prompts)), key=lambda k: len(prompts[k]))
        in_order = [prompts[k] for k in order]
        sampled = super().sample(in_order, [seeds[k] for k in order], n, temperature)
        by_prompt = dict(zip(order, sampled, strict=True))
        self.groups = [by_prompt[k] for k in range(len(prompts))]
        return self.groups


def sampler(policy: Policy) -> SortedRollouts:
    return SortedRollouts(policy, MAX_TOKENS, AT_ONCE)


def player(policy: Policy, temperature: float = 0.0, seed: int = 0) -> Decide:
    """The decisions of a model. Temperature 0 takes the likeliest."""
    rollouts = sampler(policy)
    seeds = count(1_000_000 * seed)  # one for each decision

    def decide(games: Sequence[Game]) -> list[str]:
        prompts = [encode(game.prompt(), "")[0] for game in games]
        of_games = list(islice(seeds, len(games)))
        groups = rollouts.sample(prompts, of_games, 1, temperature)
        return [group.texts[0] for group in groups]

    return decide
