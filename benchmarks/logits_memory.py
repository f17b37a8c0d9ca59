#!/usr/bin/env python3
"""Memory of log-probabilities and their backward pass, in multiples of the logits (CPU, bfloat16).

python benchmarks/logits_memory.py [TOKENS=16384] [VOCABULARY=16384]

"ours" is `token_logprobs` of the training; "autograd" is log_softmax and gather in float32, without
parts; "checkpointed" is the same in parts of 512 tokens, each computed again in the backward pass.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from common import ROOT
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from orchestra.training.logprobs import PART, token_logprobs


def autograd(logits: Tensor, ids: Tensor) -> Tensor:
    logprobs = logits.float().log_softmax(-1)
    return logprobs.gather(1, ids[:, None]).squeeze(1)


def checkpointed(logits: Tensor, ids: Tensor) -> Tensor:
    parts = zip(logits.split(PART), ids.split(PART), strict=True)
    logprobs = [checkpoint(autograd, *part, use_reentrant=False) for part in parts]
    return torch.cat(logprobs)


# Memory that is freed goes back to the system at once, so that VmRSS is what is in use.
ENVIRONMENT = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
HOW: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "ours": token_logprobs,
    "autograd": autograd,
    "checkpointed": checkpointed,
}


def memory_bytes(name: str) -> int:
    """Of this process: VmRSS is what it holds now, VmHWM the most that it has held."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (line,) = [line for line in status.splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


def measured(how: str, tokens: int, vocabulary: int) -> dict[str, float]:
    """Multiples of the logits' size, the logits included, and seconds, of one forward and backward
    pass.
    """
    torch.manual_seed(0)
    ids = torch.randint(vocabulary, (tokens,))
    few = torch.zeros(2, vocabulary, dtype=torch.bfloat16, requires_grad=True)
    torch.autograd.backward(HOW[how](few, ids[:2]).sum())  # loads the code
    before = memory_bytes("VmRSS")
    logits = torch.empty(tokens, vocabulary, dtype=torch.bfloat16).normal_()
    logits.add_(torch.zeros(1, dtype=torch.bfloat16, requires_grad=True))  # not a leaf
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins again
    began = time.perf_counter()
    torch.autograd.backward(HOW[how](logits, ids).sum())
    seconds = time.perf_counter() - began
    size = tokens * vocabulary * 2  # bytes
    times = (memory_bytes("VmHWM") - before) / size
    return {"times": times, "seconds": seconds}


def main() -> None:
    sizes = sys.argv[1:3] or ["16384", "16384"]
    if len(sys.argv) > 3:
        print(json.dumps(measured(sys.argv[3], int(sizes[0]), int(sizes[1]))))
        return
    for how in HOW:  # each in a process of its own, whose peak is its own
        command = [sys.executable, __file__, *sizes, how]
        done = subprocess.run(
            command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, check=True
        )
        row = json.loads(done.stdout)
        print(f"{how}: {row['times']:.2f} times the logits, {row['seconds']:.1f} s")


if __name__ == "__main__":
    main()
