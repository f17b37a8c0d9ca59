"""pi_theta and pi_ref: a language model with a LoRA adapter, or with all its weights trained.

pi_ref of Eq. 31 is pi_theta at the start of the run: a copy of the trained weights alone, which
`reference` swaps in for one forward pass. An adapter is saved as it is and never merged; its base
keeps its own dtype. With --full, weights are held in float32 and computed in `dtype`. With several
processes (torchrun), FSDP2 shards the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
)
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
)
from transformers.utils.logging import disable_progress_bar

from orchestra.training import ranks
from orchestra.training.da_grpo import padded, token_entropy, token_logprobs
from orchestra.training.examples import Example
from orchestra.vocabulary import ConfigError

Messages = Sequence[Mapping[str, Any]]
Ids = list[int]


@dataclass(frozen=True)
class Logprobs:
    """Log-probability and entropy of the tokens of completions, (N, T); `mask` is 1 on tokens."""

    logps: Tensor
    entropy: Tensor
    mask: Tensor


class Policy:
    """A trainable model. With `adapter`, its LoRA weights are loaded; else `lora_rank` is that of a
    new adapter, and 0 trains all weights.
    """

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        dtype: str = "auto",
        lora_rank: int = 0,
        adapter: Path | None = None,
        checkpointing: bool = False,
    ) -> None:
        disable_progress_bar()  # type: ignore[no-untyped-call]
        config = AutoConfig.from_pretrained(folder, attention_dropout=0.0)
        slow = device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
        default = torch.float32 if slow else config.dtype or torch.bfloat16
        self.dtype: torch.dtype = default if dtype == "auto" else getattr(torch, dtype)
        self.device, self.lora = device, bool(lora_rank or adapter)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.pad = self.tokenizer.pad_token_id or 0
        wide = torch.promote_types(self.dtype, torch.float32)
        held = self.dtype if self.lora and ranks.count() == 1 else wide
        load = AutoModelForCausalLM.from_pretrained
        model: Any = usable(
            f"--model {folder}", load, folder, config=config, dtype=held
        )
        model.config.use_cache = False
        named = model.generation_config.eos_token_id
        ends = [
            self.tokenizer.eos_token_id,
            *(named if isinstance(named, list) else [named]),
        ]
        self.eos: Ids = [id for id in dict.fromkeys(ends) if id is not None]
        plain: Any = GenerationConfig  # without the top_k of the folder, or the like
        model.generation_config = plain(eos_token_id=self.eos, pad_token_id=self.pad)
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.enable_input_require_grads()
        self.packs = can_pack(model.config)
        self.model: Any = (
            with_adapter(model, lora_rank, adapter) if self.lora else model
        )
        self.mixed = (
            self.dtype == torch.bfloat16 and ranks.count() == 1
        )  # else FSDP2 casts
        for module in self.model.modules():
            if isinstance(module, torch.nn.Dropout):  # a completion has one probability
                module.p = 0.0
            if self.mixed:
                module.cast_input_dtype_enabled = (
                    False  # or peft would compute in float32
                )
        self.model.train()
        if ranks.count() > 1:
            ranks.shard(self.model, self.dtype)  # layer by layer to the device
        else:
            self.model.to(device)
        self.swapped_out: list[Tensor] = []  # the weights of pi_ref, where it is kept

    # ---- text ------------------------------------------------------------------------------------

    def encode(self, messages: Messages) -> Ids:
        """The tokens of a prompt, up to the start of the assistant's reply."""
        how = {"add_generation_prompt": True, "return_dict": False}
        return list(self.tokenizer.apply_chat_template(list(messages), **how))

    def target(self, example: Example) -> Ids:
        """y*_t as the model should write it, with the end token. Special tokens in it are text."""
        text = json.dumps(example.reference, ensure_ascii=False)
        plain = {"add_special_tokens": False, "split_special_tokens": True}
        return [*self.tokenizer(text, **plain)["input_ids"], self.eos[0]]

    def decode(self, ids: Ids) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    # ---- probabilities ---------------------------------------------------------------------------

    def parameters(self) -> list[torch.nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def keep_reference(self) -> None:
        """Make pi_ref the model as it is now."""
        self.swapped_out = [p.detach().clone() for p in self.parameters()]

    def logprobs(
        self, prompt: Ids, completions: Sequence[Ids], temperature: float
    ) -> Logprobs:
        """log pi_theta of N completions of one prompt; N is 1 if the model cannot pack. In a pack
        the prompt is read once, and no completion sees another.
        """
        ids, mask = (t.to(self.device) for t in padded(completions, self.pad))  # (N, T)
        is_token = mask.bool()
        position, attention, logit_index = packed(len(prompt), is_token)
        tokens = torch.cat(
            [torch.tensor(prompt, device=self.device), ids[is_token]]
        )  # (L,)
        pack = attention[None, None] if len(completions) > 1 else None  # None: causal
        with self.autocast():
            logits = self.model(
                input_ids=tokens[None],
                attention_mask=pack,
                position_ids=position[None],
                logits_to_keep=logit_index,
            ).logits  # (1, K, V)
        logps = token_logprobs(logits, ids[is_token][None], temperature)  # (1, K)
        with torch.no_grad():
            entropy = token_entropy(logits).to(logps)
        rows = torch.zeros_like(mask, dtype=logps.dtype)
        logps, entropy = (
            rows.masked_scatter(is_token, x) for x in (logps, entropy)
        )  # (N, T)
        return Logprobs(logps, entropy, mask)

    @torch.no_grad()
    def reference(
        self, prompt: Ids, completions: Sequence[Ids], temperature: float
    ) -> Tensor:
        """log pi_ref (N, T)."""
        self._swap()
        logps = self.logprobs(prompt, completions, temperature).logps
        self._swap()
        return logps

    def _swap(self) -> None:
        """Exchange the weights of pi_theta and pi_ref."""
        for parameter, other in zip(self.parameters(), self.swapped_out, strict=True):
            now = parameter.clone()
            parameter.copy_(other)
            other.copy_(now)

    def autocast(self) -> torch.autocast:
        """Computes in `dtype` where weights are held in float32: an adapter's, or all of them."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed)

    # ---- weights ---------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """The adapter as it is held, or the whole model with its tokenizer, in `dtype`. Every rank
        calls it.
        """
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state: dict[str, Any] = get_model_state_dict(self.model, options=options)
        if ranks.rank() == 0:
            if not self.lora:
                state = {k: v.to(self.dtype) for k, v in state.items()}
                self.tokenizer.save_pretrained(folder)
            self.model.save_pretrained(folder, state_dict=state)


# ---- packing -------------------------------------------------------------------------------------


def can_pack(config: Any) -> bool:
    """Whether every layer uses the attention mask that it is given."""
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) and getattr(
        config, "use_sliding_window", True
    )
    return (
        layers == {"full_attention"}
        and not window
        and config._attn_implementation == "sdpa"
    )


def packed(prompt_length: int, is_token: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pack N completions behind one prompt, as one line of L tokens; is_token (N, T) has their K
    tokens. Returns position_ids (L,), attention_mask (L, L) in which completions cannot see each
    other, and logit_index (K,), the position that predicts each completion token.
    """
    device = is_token.device
    owner, offset = is_token.nonzero(as_tuple=True)  # (K,) each
    at = prompt_length + torch.arange(len(owner), device=device)
    logit_index = torch.where(offset == 0, prompt_length - 1, at - 1)
    position = torch.cat(
        [torch.arange(prompt_length, device=device), prompt_length + offset]
    )
    owners = torch.cat(
        [torch.full((prompt_length,), -1, device=device), owner]
    )  # -1: of all
    attention = ((owners == -1) | (owners == owners[:, None])).tril()
    return position, attention, logit_index


# ---- models --------------------------------------------------------------------------------------


def usable(what: str, call: Callable[..., Any], *given: Any, **more: Any) -> Any:
    """The result of a library call on a user's file. Raises ConfigError for any of its errors."""
    try:
        return call(*given, **more)
    except (
        Exception
    ) as error:  # of templates, tokenizers and weights: no common base class
        why = f"{error}".strip().split("\n")[0] or type(error).__name__
        raise ConfigError(f"{what}: cannot be used ({why})") from None


def with_adapter(model: Any, rank: int, adapter: Path | None) -> Any:
    """A new adapter on all linear layers, or the one of a folder, to be trained further."""
    if adapter:
        load = PeftModel.from_pretrained
        return usable(
            f"--adapter {adapter}", load, model, str(adapter), is_trainable=True
        )
    kind: Any = {"target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    return get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, **kind))
