"""The completions of a step: what is learned from them, in micro-batches, and what is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from orchestra.training.policy import Ids, Policy
from orchestra.training.processes import Processes
from orchestra.training.rollouts import Group

if TYPE_CHECKING:
    from orchestra.training.rewards import Scored

Row = dict[str, float]


@dataclass
class MicroBatch:
    """N completions of one prompt, which go through the model together; the longest has T tokens.

    advantages        (N,)
    sampler_logprobs  (N, T), NaN behind the end; (N, 1) of NaN if the sampler was the policy
    counts            False for a stand-in, which adds nothing to the loss
    old, reference    (N, T), log pi_old and log pi_ref, once they were computed
    """

    prompt: Ids
    completions: list[Ids]
    advantages: Tensor
    sampler_logprobs: Tensor
    counts: bool = True
    old: Tensor | None = None
    reference: Tensor | None = None


def to_learn(
    groups: Sequence[Group], advantages: Tensor, learned: Tensor, size: int
) -> list[MicroBatch]:
    """The completions that are learned (P, G), with their advantages (P, G), at most `size`
    together.
    """
    parts: list[MicroBatch] = []
    for i, group in enumerate(groups):
        chosen: list[int] = learned[i].nonzero().flatten().tolist()
        for first in range(0, len(chosen), size):
            some = chosen[first : first + size]
            part = micro_batch(group, some, advantages[i, some])
            parts.append(part)
    return parts


def micro_batch(group: Group, chosen: Sequence[int], advantages: Tensor) -> MicroBatch:
    """The N chosen completions of a group, with advantages (N,)."""
    known = [group.logprobs[j] or [torch.nan] for j in chosen]
    rows = [torch.tensor(row, dtype=torch.float64) for row in known]
    # (N, T), or (N, 1) where none is known
    sampler = pad_sequence(rows, True, torch.nan)
    ids = [group.ids[j] for j in chosen]
    return MicroBatch(group.prompt, ids, advantages, sampler)


def for_all(parts: Sequence[MicroBatch], policy: Policy) -> list[MicroBatch]:
    """As many micro-batches in every process, since a sharded model runs in all of them at once:
    stand-ins fill up.
    """
    token = [policy.pad]
    nothing = torch.zeros(1)
    filled = list(parts)
    most = max(policy.processes.gathered(len(parts)))
    while len(filled) < most:
        stand_in = MicroBatch(token, [token], nothing, nothing[None], counts=False)
        filled.append(stand_in)
    return filled


# ---- what is measured ----------------------------------------------------------------------------


def completion_rows(
    groups: Sequence[Group], scored: Scored, advantages: Tensor | None = None
) -> list[dict[str, Any]]:
    """A row for each completion, for completions.jsonl. advantages (P, G) are None in an
    evaluation. The reward of a dropped completion is null.
    """
    rows: list[dict[str, Any]] = []
    for i, group in enumerate(groups):
        for j, text in enumerate(group.texts):
            row: dict[str, Any] = {
                "example": scored.examples[i].id,
                "held_out": advantages is None,
                "reward": None,
                "advantage": None,
                "parts": {},
                "valid": False,
                "tokens": len(group.ids[j]),
                "cut": group.cut[j],
                "text": text,
            }
            score = scored.scores[i][j]
            if score is not None:
                row["reward"] = score.total
                row["parts"] = dict(score.parts)
                row["valid"] = score.valid
            if advantages is not None:
                row["advantage"] = float(advantages[i, j])
            rows.append(row)
    return rows


def reward_metrics(rows: Sequence[Mapping[str, Any]], processes: Processes) -> Row:
    """Means over the completions of all processes, from their rows for completions.jsonl.

    Of those that were scored: the reward, its parts, and the share that is `valid`. Of all: the
    share that was dropped, the length in tokens, and the share that was cut at the length limit.
    """
    values: dict[str, list[float]] = {}
    for row in chain.from_iterable(processes.gathered(rows)):
        is_dropped = row["reward"] is None
        found = {"dropped": is_dropped, "length": row["tokens"], "cut": row["cut"]}
        if not is_dropped:
            found |= {"reward": row["reward"], "valid": row["valid"]}
            found |= {f"reward/{name}": part for name, part in row["parts"].items()}
        for name, value in found.items():
            of_name = values.setdefault(name, [])
            of_name.append(value)
    return {name: sum(found) / len(found) for name, found in values.items()}


def token_means(sums: Sequence[Row], tokens: float, processes: Processes) -> Row:
    """Means over all tokens, of the sums over those of each micro-batch of this process; but the
    loss is a sum, since its parts were divided before.
    """
    row: Row = {}
    for name in sums[0]:
        total = processes.total(sum(part[name] for part in sums))
        row[name] = total if name == "loss" else total / tokens
    return row
