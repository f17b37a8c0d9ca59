"""The options of train_da_grpo.py. One definition gives the default, the check and the flag.

This module does not import torch, so `--help` and wrong flags are answered at once.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from orchestra.command.flags import OneLineParser
from orchestra.kernel.vocabulary import ConfigError

EXIT_CODES = "exit codes: 0 trained, 2 usage or configuration, 4 a server failed: vLLM or the judge"
Count = Annotated[int, Field(ge=1)]
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
From0 = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Checked(BaseModel):
    """A model whose error is one line: a ConfigError."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            first = error.errors()[0]
            problem = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
            where = "".join(f"{field}: " for field in first["loc"][:1])
            raise ConfigError(f"{where}{problem}") from None


def _base_url(url: str) -> str:
    """A server's address without the path of its API, which users often add."""
    return url.rstrip("/").removesuffix("/v1")


def _setting(text: str) -> str:
    """NAME=VALUE. Raises ValueError, which pydantic collects, for any other text."""
    if not re.match(r"\w+=", text):
        raise ValueError(f"{text!r} is not NAME=VALUE")
    return text


Setting = Annotated[str, AfterValidator(_setting)]
BaseUrl = Annotated[str, AfterValidator(_base_url)]


def _flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _default_lr(data: dict[str, Any]) -> float:
    return 5e-6 if data.get("full") else 5e-5


class TrainingOptions(Checked):
    """The defaults are the paper's, except where a GPU of 80 GB needs others (docs/training.md)."""

    model_config = ConfigDict(use_attribute_docstrings=True, alias_generator=_flag_of)

    stage: Literal["sft", "grpo"]
    """sft imitates the reference decisions"""
    model: Path
    """folder of a Hugging Face model, which is not changed"""
    data: Path
    """examples, JSONL"""
    out: Path
    """folder for all that is written"""
    resume: bool = False
    """go on from the last checkpoint in --out"""
    adapter: Path | None = None
    """start from this LoRA adapter, as SFT's OUT/adapter"""
    full: bool = False
    """train all weights, without an adapter"""
    lora_rank: Count = 16
    """rank of a new adapter"""
    dtype: Literal["auto", "bfloat16", "float32", "float64"] = "auto"
    """auto: float32 on a CPU, else the model's"""
    checkpointing: bool = True
    """compute activations again: slower, less memory"""
    steps: Count | None = None
    """optimizer steps (default: --epochs over the data)"""
    epochs: Above0 = 5.0
    """passes over the data, without --steps"""
    batch: Count = 24
    """examples a step, of all processes"""
    micro_batch: Count | None = None
    """completions of a prompt in one forward pass (default: --group)"""
    max_tokens: Count = 4096
    """tokens of a completion"""
    lr: Above0 = Field(default_factory=_default_lr)
    """peak (5e-5; 5e-6 with --full)"""
    warmup: Share = 0.05
    """share of the steps"""
    lr_floor: Share = 0.1
    """share of --lr at the end of the cosine"""
    max_grad_norm: Above0 = 1.0
    """norm that gradients are clipped to"""
    reward_setting: tuple[Setting, ...] = ()
    """NAME=VALUE for the reward; repeatable"""
    reward: str = "judge"
    """judge (the paper's; --reward-setting names its model), FILE.py:NAME or package.module:NAME"""
    rollouts: Literal["vllm", "local"] = "vllm"
    """where completions come from"""
    vllm_url: BaseUrl = "http://127.0.0.1:8000"
    """the vLLM server"""
    group: Annotated[int, Field(ge=2)] = 8
    """completions of a prompt, G"""
    temperature: Above0 = 1.0
    """of the sampling"""
    iterations: Count = 1
    """optimizer steps on one batch of completions"""
    aggregation: Literal["dapo", "grpo", "dr_grpo"] = "dapo"
    """how tokens are averaged"""
    beta: From0 = 0.01
    """weight of the KL"""
    clip: Above0 = 0.2
    """epsilon of Eq. 31"""
    clip_high: Above0 | None = None
    """upper epsilon, as 0.28 of DAPO (default: --clip)"""
    importance_cap: Above0 = 2.0
    """limit of pi / pi_sampler, token by token"""
    min_std: Above0 = 1e-6
    """groups with a smaller deviation are left out"""
    seed: Whole = 0
    """of the order, the adapter and the sampling"""
    save_every: Count = 10
    """steps between checkpoints"""
    eval_data: Path | None = None
    """held-out examples, tried before the first step and at checkpoints"""
    log: Literal["trackio", "wandb"] | None = None
    """also send the metrics to trackio or wandb"""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        """Raises ValueError, which pydantic collects, for options that do not fit together."""
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        _check_has("--model", self.model, "config.json")
        if self.adapter is not None:
            _check_has("--adapter", self.adapter, "adapter_config.json")
        if self.full and self.adapter is not None:
            raise ValueError("--full and --adapter: give one of them")
        if self.batch % processes != 0:
            multiple = f"a multiple of the {processes} processes"
            raise ValueError(f"--batch {self.batch}: give {multiple}")
        if self.samples and self.rollouts == "local" and processes > 1:
            raise ValueError("--rollouts local is for one process; use vllm")
        return self

    @property
    def samples(self) -> bool:
        """Whether the run samples decisions. SFT does so only to evaluate them."""
        return self.stage == "grpo" or self.eval_data is not None

    @property
    def product(self) -> str:
        """The folder in --out that the run leaves."""
        return "model" if self.full else "adapter"

    def number_of_steps(self, examples: int) -> int:
        """The optimizer steps: --steps, or --epochs over this many examples."""
        if self.steps is not None:
            return self.steps
        return max(1, round(self.epochs * examples / self.batch))


def _check_has(flag: str, folder: Path, file: str) -> None:
    """Raises ValueError for a folder without this file."""
    if not (folder / file).is_file():
        raise ValueError(f"{flag} {folder}: is not a folder with {file}")


def parse(arguments: Sequence[str] | None = None) -> TrainingOptions:
    """The flags, checked without loading the model. A mistake ends the program with one line."""
    parser = OneLineParser(
        prog="train_da_grpo.py",
        description="Train the main agent on decision examples.",
        epilog=EXIT_CODES,
        allow_abbrev=False,
    )
    for field in TrainingOptions.model_fields.values():
        parser.add_argument(str(field.alias), dest=field.alias, **_how(field))
    try:
        return TrainingOptions(**vars(parser.parse_args(arguments)))
    except ConfigError as error:
        return parser.exit(2, f"{parser.prog}: {error}\n")


def _how(field: FieldInfo) -> dict[str, Any]:
    """What argparse needs for a flag."""
    is_shown = type(field.default) in (int, float, str)
    default = f" (default: {field.default})" if is_shown else ""
    text = f"{field.description}{default}".replace("%", "%%")
    how: dict[str, Any] = {"default": argparse.SUPPRESS, "help": text}
    if isinstance(field.default, bool):
        both = argparse.BooleanOptionalAction
        return how | {"action": both if field.default else "store_true"}
    values = [c for c in get_args(field.annotation) if isinstance(c, str)]
    how["metavar"] = "|".join(values) or str(field.alias).strip("-").upper()
    how["required"] = field.is_required()
    how["action"] = "append" if field.default == () else "store"
    return how
