"""train_da_grpo.py on the tiny model, in this process."""

import multiprocessing
import os
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file  # noqa: F401

import train_da_grpo
from orchestra.kernel.tape import rows_of
from orchestra.training import options
from orchestra.training.rewards import SHIPPED, Scores

QUIET = pytest.mark.filterwarnings("ignore")  # of torch, peft and transformers, and of forks
CPU = torch.device("cpu")
LONG = ["--max-tokens", "512"]  # of references
VARIETY = {"variety": "tests.training.runs:variety"}
COMMON = "--batch 2 --group 4 --max-tokens 8 --dtype float32 --lr 1e-2 --save-every 2"


def variety(example, completions):
    """A reward that even a random model earns some of: the share of letters in a completion."""
    shares = [len(set(c.text) & set("etaoinshrdlu")) / 12 for c in completions]
    rows = zip(shares, [float(c.cut) for c in completions], strict=True)
    return [Scores(x, {"variety": x, "cut": c}, x > 0) for x, c in rows]


def flags(tiny, out, stage, *more):
    model, data = tiny
    local = ["--reward", "variety", "--rollouts", "local"] if stage == "grpo" else LONG
    paths = ["--model", model, "--data", data, "--out", out, "--no-checkpointing"]
    return [str(a) for a in ("--stage", stage, *paths, *COMMON.split(), *local, *more)]


def run(*arguments):
    """The exit code."""
    with mock.patch.dict(SHIPPED, VARIETY):
        try:
            return train_da_grpo.main(options.parse(arguments))
        finally:
            torch.use_deterministic_algorithms(False)


def metrics(out):
    """Without the time that the steps took."""
    rows = rows_of(out / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def refused(capsys, *arguments, code=2):
    """The one line, whether it came with the flags or with the model."""
    try:
        assert run(*arguments) == code
    except SystemExit as stopped:
        assert stopped.code == code
    line = capsys.readouterr().err.strip()
    assert "\n" not in line and line.startswith("train_da_grpo.py: ")
    return line


# ---- other processes -----------------------------------------------------------------------------


def started(target, *given):
    process = multiprocessing.get_context("fork").Process(target=target, args=given, daemon=True)
    process.start()
    return process


def ended(process):
    process.join(120)
    return process.exitcode


def be_rank(rank, port):
    """What torchrun sets for one of two processes."""
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    os.environ |= {**here, "RANK": str(rank), "LOCAL_RANK": str(rank)}
