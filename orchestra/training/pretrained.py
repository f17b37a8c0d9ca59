"""From a folder or a Hub id of Hugging Face to a model that is ready to be trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from orchestra.kernel.vocabulary import ConfigError

# What is taken of a model on the Hub: configuration, tokenizer, template and weights.
FILES = ["*.json", "*.jinja", "*.txt", "*.model", "*.safetensors"]


def usable(what: str, call: Callable[..., Any], *given: Any, **more: Any) -> Any:
    """The result of a library call on a user's file. Raises ConfigError for any of its errors."""
    try:
        return call(*given, **more)
    except Exception as error:  # templates, tokenizers, weights: no common base class
        first_line = str(error).strip().split("\n")[0]
        why = first_line or type(error).__name__
        raise ConfigError(f"{what}: cannot be used ({why})") from None


def model_folder(model: str) -> Path:
    """The folder of a --model. One of the Hub is downloaded, or found in Hugging Face's cache.
    Raises ConfigError.
    """
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download

    what = f"--model {model}: is not a folder, and as a model of the Hub"
    return Path(usable(what, snapshot_download, model, allow_patterns=FILES))


def compute_dtype(name: str, config: Any, device: torch.device) -> torch.dtype:
    """The dtype that a model computes in. "auto" is the model's own, or float32 on a CPU that is
    slow in bfloat16.
    """
    if name != "auto":
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    if device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return torch.float32
    return config.dtype or torch.bfloat16


def load_config(folder: Path) -> Any:
    """The configuration of a model, with no dropout in its attention. Raises ConfigError."""
    load = AutoConfig.from_pretrained
    return usable(f"--model {folder}", load, folder, attention_dropout=0.0)


def load_model(folder: Path, config: Any, dtype: torch.dtype) -> Any:
    """The model of a folder, its weights in `dtype`."""
    load = AutoModelForCausalLM.from_pretrained
    model = usable(f"--model {folder}", load, folder, config=config, dtype=dtype)
    model.config.use_cache = False
    return model


def end_tokens(tokenizer: Any, model: Any) -> list[int]:
    """The tokens that end a reply. The tokenizer's own, which SFT teaches, comes first. Raises
    ConfigError if there is none.
    """
    named = model.generation_config.eos_token_id
    candidates = [tokenizer.eos_token_id]
    candidates += named if isinstance(named, list) else [named]
    known = [token for token in candidates if token is not None]
    if not known:
        why = "it has no end token; set eos_token in its tokenizer_config.json"
        raise ConfigError(f"--model {model.name_or_path}: {why}")
    return list(dict.fromkeys(known))  # each once


def sample_plainly(model: Any, eos: list[int], pad: int) -> None:
    """Drop the sampling settings of the model's folder, such as its top_k: training samples from
    the distribution that the loss is about.
    """
    config: Any = GenerationConfig
    model.generation_config = config(eos_token_id=eos, pad_token_id=pad)


def checkpoint_activations(model: Any) -> None:
    """Compute activations again in the backward pass instead of keeping them."""
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.enable_input_require_grads()


def with_adapter(model: Any, rank: int, adapter: Path | None) -> Any:
    """A new adapter on all linear layers, or the one of a folder, to be trained further."""
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


def without_dropout(model: Any) -> None:
    """Switch dropout off, so that a completion has one probability."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
