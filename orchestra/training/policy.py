"""pi_theta and pi_ref: a language model with a LoRA adapter, or with all its weights trained.

pi_ref of Eq. 31 is pi_theta at the start of the run. Only a copy of the trained weights is kept,
which `reference` swaps in for one forward pass. An adapter is saved as it is and never merged; its
base keeps its own dtype. With --full, weights are held in float32 and computed in `dtype`. With
several processes (torchrun), FSDP2 shards the model.

The shapes are written in these letters: N completions of one prompt, T tokens of the longest, K
tokens of all of them, L = K and the tokens of the prompt, V tokens of the vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
)
from transformers import AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from orchestra.training import pretrained
from orchestra.training.logprobs import padded, token_entropy, token_logprobs
from orchestra.training.packing import can_pack, packed
from orchestra.training.processes import Processes

if TYPE_CHECKING:
    from orchestra.training.examples import Example

Messages = Sequence[Mapping[str, Any]]
Ids = list[int]


@dataclass(frozen=True)
class Logprobs:
    """Log-probability and entropy of the tokens of completions, (N, T); `mask` is 1 on tokens."""

    logprobs: Tensor
    entropy: Tensor
    mask: Tensor


class Policy:
    """A trainable model. With `adapter`, the LoRA weights of this folder are trained further. Else
    `lora_rank` is the rank of a new adapter, and 0 trains all weights.
    """

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        dtype: str = "auto",
        lora_rank: int = 0,
        adapter: Path | None = None,
        checkpointing: bool = False,
        processes: Processes | None = None,
    ) -> None:
        disable_progress_bar()  # type: ignore[no-untyped-call]
        config = pretrained.load_config(folder)
        self.device = device
        self.processes = processes or Processes()
        self.dtype = pretrained.compute_dtype(dtype, config, device)
        self.lora = lora_rank > 0 or adapter is not None
        is_alone = self.processes.count == 1
        self.mixed = self.dtype == torch.bfloat16 and is_alone  # else FSDP2 casts
        self.swapped_out: list[Tensor] = []  # the weights of pi_ref, where it is kept

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.pad: int = self.tokenizer.pad_token_id or 0
        model = pretrained.load_model(folder, config, self._held_dtype())
        self.eos: Ids = pretrained.end_tokens(self.tokenizer, model)
        self.packs = can_pack(model.config)
        pretrained.sample_plainly(model, self.eos, self.pad)
        if checkpointing:
            pretrained.checkpoint_activations(model)
        if self.lora:
            model = pretrained.with_adapter(model, lora_rank, adapter)
        pretrained.without_dropout(model)
        self.model: Any = model
        self.model.train()
        self._place()

    def _held_dtype(self) -> torch.dtype:
        """The dtype of the weights. Those that are trained need float32 at least, and FSDP2 needs
        one dtype for all; peft holds an adapter in float32 itself.
        """
        if self.lora and self.processes.count == 1:
            return self.dtype
        return torch.promote_types(self.dtype, torch.float32)

    def _place(self) -> None:
        """Move the model to its device, or shard it over the devices of all processes."""
        if self.mixed:
            for module in self.model.modules():
                module.cast_input_dtype_enabled = False  # peft would compute in float32
        self.processes.place(self.model, self.device, self.dtype)

    # ---- text ------------------------------------------------------------------------------------

    def encode(self, messages: Messages) -> Ids:
        """The tokens of a prompt, up to the start of the assistant's reply."""
        return list(
            self.tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, return_dict=False
            )
        )

    def target(self, example: Example) -> Ids:
        """y*_t as the model should write it, with the end token. Special tokens in it are text."""
        text = json.dumps(example.reference, ensure_ascii=False)
        tokens = self.tokenizer(
            text, add_special_tokens=False, split_special_tokens=True
        )
        return [*tokens["input_ids"], self.eos[0]]

    def decode(self, ids: Ids) -> str:
        """The text of tokens, without special tokens."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    # ---- probabilities ---------------------------------------------------------------------------

    def parameters(self) -> list[torch.nn.Parameter]:
        """The weights that are trained."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def logprobs(
        self, prompt: Ids, completions: Sequence[Ids], temperature: float
    ) -> Logprobs:
        """log pi_theta of N completions of one prompt; N is 1 if the model cannot pack."""
        cpu_ids, cpu_mask = padded(completions, self.pad)
        ids = cpu_ids.to(self.device)  # (N, T)
        mask = cpu_mask.to(self.device)  # (N, T)
        is_token = mask.bool()  # (N, T)
        chosen = ids[is_token]  # (K,): the tokens of all completions
        logits = self._logits(prompt, chosen, is_token)  # (K, V)
        logprobs = token_logprobs(logits, chosen, temperature)  # (K,)
        with torch.no_grad():
            entropy = token_entropy(logits).to(logprobs)  # (K,)
        zeros = torch.zeros_like(mask, dtype=logprobs.dtype)  # (N, T)
        return Logprobs(
            logprobs=zeros.masked_scatter(is_token, logprobs),  # (N, T)
            entropy=zeros.masked_scatter(is_token, entropy),  # (N, T)
            mask=mask,
        )

    def _logits(self, prompt: Ids, chosen: Tensor, is_token: Tensor) -> Tensor:
        """The logits (K, V) that predict the tokens chosen (K,). is_token (N, T) says which
        completion each belongs to.
        """
        position, attention, logit_index = packed(len(prompt), is_token)
        prompt_ids = torch.tensor(prompt, device=self.device)
        tokens = torch.cat([prompt_ids, chosen])  # (L,)
        is_pack = len(is_token) > 1
        mask = attention[None, None] if is_pack else None  # None: causal
        with self.autocast():
            output = self.model(
                input_ids=tokens[None],
                attention_mask=mask,
                position_ids=position[None],
                logits_to_keep=logit_index,
            )
        logits: Tensor = output.logits.squeeze(0)
        return logits

    def autocast(self) -> torch.autocast:
        """Computes in `dtype` where weights are held in float32: an adapter's, or all of them."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed)

    # ---- pi_ref ----------------------------------------------------------------------------------

    def keep_reference(self) -> None:
        """Make pi_ref the model as it is now."""
        self.swapped_out = [p.detach().clone() for p in self.parameters()]

    @torch.no_grad()
    def reference(
        self, prompt: Ids, completions: Sequence[Ids], temperature: float
    ) -> Tensor:
        """log pi_ref (N, T)."""
        self._swap()
        logprobs = self.logprobs(prompt, completions, temperature).logprobs
        self._swap()
        return logprobs

    def _swap(self) -> None:
        """Exchange the weights of pi_theta and pi_ref."""
        for parameter, other in zip(self.parameters(), self.swapped_out, strict=True):
            now = parameter.clone()
            parameter.copy_(other)
            other.copy_(now)

    # ---- the result ------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """The adapter as it is held, or the whole model with its tokenizer, in `dtype`. Every
        process calls it, and the first one writes.
        """
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state: dict[str, Any] = get_model_state_dict(self.model, options=options)
        if self.processes.rank > 0:
            return
        if not self.lora:
            state = {name: tensor.to(self.dtype) for name, tensor in state.items()}
            self.tokenizer.save_pretrained(folder)
        self.model.save_pretrained(folder, state_dict=state)
