"""pi_theta and pi_ref: a language model with a LoRA adapter, or with all its weights trained.

    pi_theta                    pi_ref (Eq. 31)
    the base with its adapter   the same weights, adapter off: no second copy
    all weights (--full)        a frozen copy of them

One process: the base of an adapter is held in `dtype` and the adapter in float32; weights that are
all trained are held in float32 and computed in `dtype`. Several (torchrun): FSDP2 shards float32
weights and computes in `dtype`.
"""

from __future__ import annotations

import contextlib
import copy
import json
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
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # type: ignore[no-untyped-call]
        self.tokenizer, self.eos = load_tokenizer(folder)
        self.pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else 0
        self.dtype, self.device, self.lora_rank = getattr(torch, dtype), device, lora_rank
        wide = torch.float64 if dtype == "float64" else torch.float32
        held = wide if ranks.world() > 1 or not lora_rank else self.dtype
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=held)
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
        return [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.eos[0]]

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
            rows.masked_scatter(there, logps),
            rows.masked_scatter(there, entropy.to(logps)),
            mask,
        )

    # ---- weights ---------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """The adapter, or the whole model with its tokenizer, in `dtype`. Every rank calls it."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state: dict[str, Any] = get_model_state_dict(self.model, options=options)
        if ranks.rank() == 0:
            narrow = {k: v.to(self.dtype) if v.is_floating_point() else v for k, v in state.items()}
            self.model.save_pretrained(folder, state_dict=narrow)
            if not self.lora_rank:
                self.tokenizer.save_pretrained(folder)


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
    text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    ids: Ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def with_adapter(model: Any, rank: int) -> Any:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(
        model,
        LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"),
    )


def merged(base: Path, adapter: Path, out: Path, dtype: str) -> None:
    """base + adapter as one folder that any server and the next stage can load."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    whole = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    whole.to(getattr(torch, dtype)).save_pretrained(out)
    load_tokenizer(base)[0].save_pretrained(out)


def shard(model: Any, dtype: torch.dtype) -> None:
    """FSDP2: a layer's weights are together only while it runs."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=wide)
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    for layer in inner.get_decoder().layers:
        fully_shard(layer, mp_policy=precision)
    fully_shard(model, mp_policy=precision)
