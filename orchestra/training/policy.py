"""pi_theta and pi_ref: a language model with a LoRA adapter, or with all its weights trained.

Of pi_ref only a copy of the trained weights is kept, which is swapped in for one forward pass. An
adapter is saved as it is and never merged; its base keeps its own dtype. With --full, weights are
held in float32 and computed in `dtype`. With several processes (torchrun), FSDP2 shards the model.

The shapes are written in these letters: N completions of one prompt, T tokens of the longest, K
tokens of all of them, L = K and the tokens of the prompt, V tokens of the vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
)
from torch.distributed.tensor import DTensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
)
from transformers.utils.logging import disable_progress_bar

from orchestra.kernel.vocabulary import ConfigError
from orchestra.training.logprobs import (
    can_pack,
    packed,
    padded,
    token_logprobs,
)
from orchestra.training.processes import Processes

if TYPE_CHECKING:
    from orchestra.training.examples import Example

Messages = Sequence[Mapping[str, Any]]
Ids = list[int]


@dataclass(frozen=True)
class Logprobs:
    """Log-probabilities of the tokens of completions, (N, T); `mask` is 1 on tokens."""

    logprobs: Tensor
    mask: Tensor


class Policy:
    """A trainable model. With `adapter`, the LoRA weights of this folder are trained further. Else
    `lora_rank` is the rank of a new adapter, and 0 trains all weights. Raises ConfigError.
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
        self.device = device
        self.processes = processes or Processes()
        self.lora = lora_rank > 0 or adapter is not None
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.pad: int = self.tokenizer.pad_token_id or 0
        model = self._loaded(folder, dtype)
        self.packs = can_pack(model.config)
        self.eos = end_tokens(self.tokenizer, model)
        # Not the sampling settings of the folder, such as top_k: the loss is about pi itself.
        plain: Any = GenerationConfig
        model.generation_config = plain(eos_token_id=self.eos, pad_token_id=self.pad)
        if checkpointing:  # compute activations again in the backward pass
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.enable_input_require_grads()
        if self.lora:
            model = with_adapter(model, lora_rank, adapter)
        self.model: Any = model.train()
        self._place()

    def _loaded(self, folder: Path, dtype: str) -> Any:
        """The model of a folder. Trained weights are held in float32 at least, and FSDP2 needs one
        dtype for all; peft holds an adapter in float32 itself.
        """
        disable_progress_bar()  # type: ignore[no-untyped-call]
        what = f"--model {folder}"
        load = AutoConfig.from_pretrained
        config = usable(what, load, folder, attention_dropout=0.0)
        self.dtype = compute_dtype(dtype, config, self.device)
        is_alone = self.processes.count == 1
        self.mixed = self.dtype == torch.bfloat16 and is_alone  # else FSDP2 casts
        held = self.dtype
        if not (self.lora and is_alone):
            held = torch.promote_types(held, torch.float32)
        from_pretrained = AutoModelForCausalLM.from_pretrained
        model = usable(what, from_pretrained, folder, config=config, dtype=held)
        model.config.use_cache = False
        return model

    def _place(self) -> None:
        """Move the model to its device, or shard it over the devices of all processes."""
        for module in self.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0  # so that a completion has one probability
            if self.mixed:
                module.cast_input_dtype_enabled = False  # peft would compute in float32
        self.processes.place(self.model, self.device, self.dtype)

    # ---- text ------------------------------------------------------------------------------------

    def encode(self, messages: Messages) -> Ids:
        """The tokens of a prompt, up to the start of the assistant's reply."""
        return prompt_ids(self.tokenizer, messages)

    def target(self, example: Example) -> Ids:
        """y*_t as the model should write it, with the end token."""
        return [*reference_ids(self.tokenizer, example), self.eos[0]]

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
        zeros = torch.zeros_like(mask, dtype=logprobs.dtype)  # (N, T)
        return Logprobs(
            logprobs=zeros.masked_scatter(is_token, logprobs),  # (N, T)
            mask=mask,
        )

    def _logits(self, prompt: Ids, chosen: Tensor, is_token: Tensor) -> Tensor:
        """The logits (K, V) that predict the tokens chosen (K,). is_token (N, T) says which
        completion each belongs to.
        """
        position, attention, logit_index = packed(len(prompt), is_token)
        tokens = torch.cat([torch.tensor(prompt, device=self.device), chosen])  # (L,)
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

    # ---- other weights ---------------------------------------------------------------------------

    def weights(self) -> list[Tensor]:
        """The trained weights as they are held; of several processes, this one's shards."""
        held = self.parameters()
        return [(p.to_local() if isinstance(p, DTensor) else p).detach() for p in held]

    @torch.no_grad()
    def logprobs_under(
        self,
        weights: Sequence[Tensor],
        prompt: Ids,
        completions: Sequence[Ids],
        temperature: float,
    ) -> Tensor:
        """The log-probabilities (N, T) with these in place of `weights()`, on any device."""
        self._swap(weights)
        logprobs = self.logprobs(prompt, completions, temperature).logprobs
        self._swap(weights)
        return logprobs

    def _swap(self, weights: Sequence[Tensor]) -> None:
        for held, other in zip(self.weights(), weights, strict=True):
            now = held.clone()
            held.copy_(other)
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


# ---- text as tokens ------------------------------------------------------------------------------


def prompt_ids(tokenizer: Any, messages: Messages) -> Ids:
    """The tokens of a prompt, in the chat template of the model."""
    template = tokenizer.apply_chat_template
    return list(template([*messages], add_generation_prompt=True, return_dict=False))


def reference_ids(tokenizer: Any, example: Example) -> Ids:
    """The tokens of y*_t as JSON. Special tokens in it are text."""
    text = json.dumps(example.reference, ensure_ascii=False)
    tokens = tokenizer(text, add_special_tokens=False, split_special_tokens=True)
    return list(tokens["input_ids"])


# ---- from a folder of Hugging Face ---------------------------------------------------------------


def usable(what: str, call: Callable[..., Any], *given: Any, **more: Any) -> Any:
    """The result of a library call on a user's file. Raises ConfigError for any of its errors."""
    try:
        return call(*given, **more)
    except Exception as error:  # templates, tokenizers, weights: no common base class
        first_line = str(error).strip().split("\n")[0]
        why = first_line or type(error).__name__
        raise ConfigError(f"{what}: cannot be used ({why})") from None


def compute_dtype(name: str, config: Any, device: torch.device) -> torch.dtype:
    """The dtype that a model computes in. "auto" is float32 on a CPU, else the model's own."""
    automatic = config.dtype or torch.bfloat16
    if device.type == "cpu":
        automatic = torch.float32
    return automatic if name == "auto" else getattr(torch, name)


def end_tokens(tokenizer: Any, model: Any) -> Ids:
    """The tokens that end a reply. The tokenizer's own, which SFT teaches, comes first. Raises
    ConfigError if there is none.
    """
    named = model.generation_config.eos_token_id
    known = [tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])]
    ends = [token for token in dict.fromkeys(known) if token is not None]  # each once
    if not ends:
        why = "it has no end token; set eos_token in its tokenizer_config.json"
        raise ConfigError(f"--model {model.name_or_path}: {why}")
    return ends


def with_adapter(model: Any, rank: int, adapter: Path | None) -> Any:
    """A new adapter on all linear layers, or the one of a folder, to be trained further. Raises
    ConfigError for a folder that is not an adapter of the model.
    """
    if adapter is not None:
        load = PeftModel.from_pretrained
        what = f"--adapter {adapter}"
        return usable(what, load, model, str(adapter), is_trainable=True)
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)
