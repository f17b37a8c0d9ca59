"""What a step measures: means of rewards and of tokens, and the completions themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestra.kernel.vocabulary import ConfigError, EndpointError
from orchestra.training.processes import Processes
from orchestra.training.rollouts import Group

if TYPE_CHECKING:
    from torch import Tensor

    from orchestra.training.options import TrainingOptions
    from orchestra.training.rewards import Scores
    from orchestra.training.scoring import Scored

MAX_MISMATCH = 1.0  # nats a token; a server of the same weights has less than 0.1
Row = dict[str, float]


def reward_metrics(
    groups: Sequence[Group],
    scores: Sequence[Sequence[Scores | None]],
    processes: Processes,
) -> Row:
    """Means over the completions of all processes.

    Of those that were scored: the reward, its parts, and the share that is `valid`. Of all: the
    share that was dropped, the length in tokens, and the share that was cut at the length limit.
    """
    scored: list[Row] = []
    sampled: list[Row] = []
    for group, group_scores in zip(groups, scores, strict=True):
        for ids, cut, score in zip(group.ids, group.cut, group_scores, strict=True):
            sampled.append({"dropped": score is None, "length": len(ids), "cut": cut})
            if score is not None:
                scored.append(_score_row(score))
    of_all = [*processes.gathered(scored), *processes.gathered(sampled)]
    return mean([row for rows in of_all for row in rows])


def _score_row(score: Scores) -> Row:
    parts = {f"reward/{name}": value for name, value in score.parts.items()}
    return {"reward": score.total, "valid": score.valid, **parts}


def mean(rows: Sequence[Mapping[str, float]]) -> Row:
    """Means over the rows that have the key; {} of none."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for key, value in row.items():
            values.setdefault(key, []).append(value)
    return {key: sum(found) / len(found) for key, found in values.items()}


def token_means(sums: Sequence[Row], tokens: float, processes: Processes) -> Row:
    """Means over all tokens, of the sums over those of each micro-batch of this process; but the
    loss is a sum, since its parts were divided before.
    """
    row: Row = {}
    for name in sums[0]:
        total = processes.total(sum(part[name] for part in sums))
        row[name] = total if name == "loss" else total / tokens
    return row


def check(row: Row, options: TrainingOptions) -> None:
    """Raises EndpointError if the judge dropped all completions, or if the sampler finds them far
    more or less likely than the policy does; ConfigError if another reward dropped them all.
    """
    if row["dropped"] == 1:
        raise _no_scores(options.reward)
    mismatch = row.get("mismatch", 0.0)
    if mismatch > MAX_MISMATCH:
        found = f"the server's log-probabilities are {mismatch:.2f} nats a token"
        advice = f"serve the model {options.model}"
        raise EndpointError(f"{found} from the model's; {advice}")


def _no_scores(reward: str) -> EndpointError | ConfigError:
    """What ends a run in whose step no completion was scored."""
    if reward == "judge":
        timeout = "or timed out (--reward-setting timeout_s)"
        return EndpointError(f"the judge refused all completions, {timeout}")
    problem = "score returned None for all completions of a step"
    return ConfigError(f"--reward {reward}: {problem}; it must score some")


def completion_rows(
    groups: Sequence[Group], scored: Scored, advantages: Tensor | None = None
) -> list[dict[str, Any]]:
    """A row for each completion, for completions.jsonl. advantages (P, G) are None in an
    evaluation. The reward of a dropped completion is null.
    """
    rows: list[dict[str, Any]] = []
    for i, group in enumerate(groups):
        for j, text in enumerate(group.texts):
            score = scored.scores[i][j]
            row = {
                "example": scored.examples[i].id,
                "held_out": advantages is None,
                "reward": None if score is None else score.total,
                "advantage": None if advantages is None else float(advantages[i, j]),
                "parts": {} if score is None else dict(score.parts),
                "valid": score is not None and score.valid,
                "tokens": len(group.ids[j]),
                "cut": group.cut[j],
                "text": text,
            }
            rows.append(row)
    return rows
