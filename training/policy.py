"""pi_theta and pi_ref: a language model with a LoRA adapter, or with all its weights trained.

    pi_theta                    pi_ref (Eq. 31)
    the base with its adapter   the same weights, adapter off: no second copy
    all weights (--full)        a frozen copy of them

One process: the base of an adapter is held in `dtype` and the adapter in float32; weights that are
all trained are held in float32 and computed in `dtype`. Several (torchrun): FSDP2 shards float32
weights and computes in `dtype`. `dtype` "auto" is bfloat16, or that of the base of an adapter where
it is wider: what an adapter adds to a weight is mostly less than bfloat16 can tell, so a merged
base that is rounded would be another policy.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from da_grpo import padded, token_entropy, token_logprobs
from training import ranks
from training.examples import Example

Messages = Sequence[Mapping[str, str]]
Ids = list[int]


@dataclass(frozen=True)
class Scored:
    """What the model thinks of completions, each (N, T); `mask` is 1 on their tokens."""

    logps: Tensor
    entropy: Tensor
    mask: Tensor


class Policy:
    """A trainable model. `lora_rank` 0 trains all weights; `reference` keeps a pi_ref for those."""

    def __init__(
        self,
        folder: Path,
        lora_rank: int,
        dtype: str,
        device: torch.device,
        reference: bool = True,
        checkpointing: bool = False,
    ) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # type: ignore[no-untyped-call]
        self.tokenizer, self.eos = load_tokenizer(folder)
        self.pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else 0
        self.device, self.lora_rank = device, lora_rank
        self.dtype = dtype_of(dtype, folder, lora_rank)
        wide = torch.promote_types(self.dtype, torch.float32)
        held = wide if ranks.world() > 1 or not lora_rank else self.dtype
        config = without_dropout(AutoConfig.from_pretrained(folder))
        model: Any = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=held)
        model.config.use_cache = False
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.enable_input_require_grads()
        self.packs = can_pack(model.config)
        self.model: Any = with_adapter(model, lora_rank) if lora_rank else model
        self.model.train()
        self.frozen: Any = None
        if reference and not lora_rank:
            self.frozen = copy.deepcopy(self.model).requires_grad_(False).eval()
        for whole in (self.model, *([self.frozen] if self.frozen else [])):
            if ranks.world() > 1:
                shard(whole, self.dtype)  # layer by layer to the device: it never holds all of them
            else:
                whole.to(device)

    # ---- text ------------------------------------------------------------------------------------

    def encode(self, messages: Messages) -> Ids:
        """The prompt's tokens, up to where the assistant begins to speak."""
        return encode(self.tokenizer, messages)

    def target(self, text: str) -> Ids:
        """What the assistant should say, with the end token."""
        return [*plain_tokens(self.tokenizer, text), self.eos[0]]

    def decode(self, ids: Ids) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text

    # ---- probabilities ---------------------------------------------------------------------------

    def parameters(self) -> list[torch.nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """In `dtype`, where the weights are held wider and FSDP2 does not see to it."""
        mixed = not self.lora_rank and ranks.world() == 1 and self.dtype == torch.bfloat16
        with torch.autocast(self.device.type, torch.bfloat16, enabled=mixed):
            yield

    def score(self, prompt: Ids, completions: Sequence[Ids], temperature: float) -> Scored:
        """log pi_theta of N completions of one prompt; of a model that does not pack, of one.
        Packed: the prompt is read once, each completion after it, and none sees another.
        """
        return self._score(self.model, prompt, completions, temperature)

    @torch.no_grad()
    def reference(self, prompt: Ids, completions: Sequence[Ids], temperature: float) -> Tensor:
        """log pi_ref (N, T)."""
        if self.frozen is not None:
            return self._score(self.frozen, prompt, completions, temperature).logps
        with self.model.disable_adapter():
            return self._score(self.model, prompt, completions, temperature).logps

    def _score(
        self, model: Any, prompt: Ids, completions: Sequence[Ids], temperature: float
    ) -> Scored:
        ids, mask = (t.to(self.device) for t in padded(completions, self.pad))  # (N, T)
        there = mask.bool()
        place, sees, before = packed(len(prompt), there)
        line = torch.cat([torch.tensor(prompt, device=self.device), ids[there]])  # (L,)
        with self.computing():
            logits = model(
                input_ids=line[None],
                attention_mask=sees[None, None] if len(completions) > 1 else None,  # None: causal
                position_ids=place[None],
                logits_to_keep=before,
            ).logits  # (1, K, V)
        logps = token_logprobs(logits, ids[there][None], temperature)  # (1, K)
        with torch.no_grad():
            entropy = token_entropy(logits)
        rows = torch.zeros_like(mask, dtype=logps.dtype)
        return Scored(
            rows.masked_scatter(there, logps), rows.masked_scatter(there, entropy.to(logps)), mask
        )

    # ---- weights ---------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """The adapter as it is held, or the whole model with its tokenizer, in `dtype`: as it was
        computed. Every rank calls it.
        """
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state: dict[str, Any] = get_model_state_dict(self.model, options=options)
        if ranks.rank():
            return
        if not self.lora_rank:
            state = {k: v.to(self.dtype) if v.is_floating_point() else v for k, v in state.items()}
            self.tokenizer.save_pretrained(folder)
        self.model.save_pretrained(folder, state_dict=state)


def dtype_of(name: str, folder: Path, lora_rank: int) -> torch.dtype:
    """What --dtype stands for."""
    from transformers import AutoConfig

    if name != "auto":
        return getattr(torch, name)  # type: ignore[no-any-return]
    held = AutoConfig.from_pretrained(folder).dtype or torch.bfloat16
    return torch.promote_types(torch.bfloat16, held) if lora_rank else torch.bfloat16


def without_dropout(config: Any) -> Any:
    """The probability of a completion must not hang on dice. (`eval` would do, but a model in it
    does not recompute activations.)
    """
    for name, value in vars(config).items():
        if ("dropout" in name or name.endswith("pdrop")) and isinstance(value, float):
            setattr(config, name, 0.0)
    return config


def can_pack(config: Any) -> bool:
    """Whether the model keeps to a mask of ours: attention to all that it shows, in every layer."""
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    return layers == {"full_attention"} and not window and config._attn_implementation == "sdpa"


def packed(prompt: int, there: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """N completions behind one prompt, as one line of L tokens; there (N, T) is where their K
    tokens are. Returns the place of each token in its own text (L,), which tokens each may look at
    (L, L), and for each token of a completion the one before it in its text (K,).
    """
    device = there.device
    owner, offset = there.nonzero(as_tuple=True)  # (K,) each
    at = prompt + torch.arange(len(owner), device=device)
    before = torch.where(offset == 0, prompt - 1, at - 1)
    place = torch.cat([torch.arange(prompt, device=device), prompt + offset])
    whose = torch.cat([torch.full((prompt,), -1, device=device), owner])  # -1: of all
    sees = ((whose == -1) | (whose == whose[:, None])).tril()
    return place, sees, before


def load_tokenizer(folder: Path) -> tuple[Any, tuple[int, ...]]:
    """The tokenizer of a model folder, and its end tokens: the tokenizer's own first."""
    from transformers import AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(folder)
    named: Any = None
    if (folder / "generation_config.json").exists():
        named = GenerationConfig.from_pretrained(folder).eos_token_id
    more = named if isinstance(named, list) else [named]
    return tokenizer, tuple(
        dict.fromkeys(id for id in [tokenizer.eos_token_id, *more] if id is not None)
    )


def text_of(example: Example) -> str:
    """y*_t as the model should say it."""
    return json.dumps(example.reference, ensure_ascii=False)


def encode(tokenizer: Any, messages: Messages) -> Ids:
    """The prompt's tokens. A special token that stands in a message is text there, and closes
    nothing: it is cut out before the chat template is filled, and put back token by token.
    """
    special = [str(t) for t in tokenizer.added_tokens_decoder.values() if t.special]
    found = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")
    said = "".join(m["content"] for m in messages)
    mark = next(c for c in map(chr, range(0xE000, 0xF900)) if c not in said)
    cut: list[str] = []

    def hidden(match: re.Match[str]) -> str:
        cut.append(match[0])
        return f"{mark}{len(cut) - 1}{mark}"

    shown = [{**m, "content": found.sub(hidden, m["content"])} for m in messages]
    text = tokenizer.apply_chat_template(shown, tokenize=False, add_generation_prompt=True)
    ids: Ids = []
    for n, part in enumerate(text.split(mark)):
        if n % 2:
            ids += plain_tokens(tokenizer, cut[int(part)])
        elif part:
            ids += tokenizer(part, add_special_tokens=False)["input_ids"]
    return ids


def plain_tokens(tokenizer: Any, text: str) -> Ids:
    """The tokens of a text in which nothing is special."""
    ids: Ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return ids


def with_adapter(model: Any, rank: int) -> Any:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(
        model,
        LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"),
    )


def merged(base: Path, adapter: Path, out: Path, dtype: torch.dtype = torch.float32) -> None:
    """base + adapter as one folder that any server and the next stage can load. In bfloat16 a good
    part of the adapter would be lost.
    """
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    whole = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    whole.save_pretrained(out)
    load_tokenizer(base)[0].save_pretrained(out)


def shard(model: Any, dtype: torch.dtype) -> None:
    """FSDP2: a layer's weights are together only while it runs."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=wide)
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    for layer in inner.get_decoder().layers:
        fully_shard(layer, mp_policy=precision)
    fully_shard(model, mp_policy=precision)
