"""Rewards of whole recorded runs: those of ToolOrchestra and MAS-Orchestra.

    python -m orchestra.training.run_rewards --reward toolorchestra --answers FILE RUN [RUN ...]

The runs of one question are a group, as of GRPO. They go through the Protocol `Reward`: `example`
is the question with its right answer, and the text of a completion is the folder of a run.
`train_da_grpo.py` does not take these rewards: its completions are single decisions. A reward of
your own is FILE.py:NAME.

Differences from the papers / the released code
1. An answer is right if evaluation/scores.py says so; ToolOrchestra's judge is GPT-5.
2. A fallback answer is the program's and not the policy's, so it earns nothing, and the calls that
   the program made do not count.
3. The time of a run that was resumed is that of its last part.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra import contracts
from orchestra.evaluation.questions import Question, load
from orchestra.evaluation.scores import matches
from orchestra.methods.toolorchestra import SLOTS
from orchestra.methods.toolorchestra_context import kind_of
from orchestra.runtime import run_folder, trajectory
from orchestra.runtime.command_line import OneLineParser, run_program
from orchestra.runtime.console import table
from orchestra.runtime.options import Options
from orchestra.runtime.user_code import chosen, fitted
from orchestra.seams import Completion, Reward, Scores
from orchestra.vocabulary import ConfigError

Measures = dict[str, float]  # M of ToolOrchestra, by the names of --prefer


# ---- a recorded run ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rollout:
    """tau: what a recorded run did. `calls`: of each tool, by the policy. `executed`: it ended with
    an answer that is no fallback. `prefer` is its --prefer.
    """

    answer: str
    executed: bool
    calls: Mapping[str, int]
    cost_usd: float
    latency_s: float
    prefer: Mapping[str, float]

    def solved(self, question: Question) -> bool:
        return self.executed and any(
            matches(self.answer, right, question.question)
            for right in question.accepted
        )


def rollout(folder: Path) -> Rollout:
    """Raises ConfigError for a run that has not ended, or whose cost is unknown."""
    manifest = run_folder.read_manifest(folder)
    events = trajectory.read(folder / "trajectory.jsonl")
    end = trajectory.ended(events)
    latency_s = end.get("timing", {}).get("latency_s") if end else None
    if end is None or latency_s is None:
        raise ConfigError(f"{folder}: the run has not ended; --resume continues it")
    if end["cost_usd"] is None:
        raise ConfigError(f"{folder}: its cost is unknown; give the pool prices")
    return Rollout(
        answer=end["answer"],
        executed=bool(end["answer"]) and not end["fallback"],
        calls=_calls(events),
        cost_usd=end["cost_usd"],
        latency_s=latency_s,
        prefer=dict(manifest.options.prefer.items()),
    )


def _calls(events: Sequence[trajectory.Event]) -> Counter[str]:
    """How often the policy called each tool of ToolOrchestra."""
    calls: Counter[str] = Counter()
    for event in events:
        decision = event.get("decision") if event["event"] == "decision" else None
        if decision and not decision.get("fallback"):
            kinds = [kind_of(u["id"]) for u in decision.get("subtasks", ())]
            calls.update(kind for kind in kinds if kind in SLOTS)
    return calls


# ---- ToolOrchestra -------------------------------------------------------------------------------


def measures(tau: Rollout, question: Question) -> Measures:
    """M of a rollout: the calls of each tool, the outcome, and the negative cost and latency."""
    found: Measures = {name: float(tau.calls.get(name, 0)) for name in SLOTS}
    found["outcome"] = float(tau.solved(question))  # Eq. 1 of arXiv 2511.21689
    found["cost"] = -tau.cost_usd
    found["latency"] = -tau.latency_s
    return found


def normalized(group: Sequence[Measures]) -> list[Measures]:
    """Each measure from 0 to 1 over the group; 0 where all are equal (arXiv 2511.21689, 3.2)."""
    scaled: list[Measures] = [{} for _ in group]
    for name in group[0] if group else ():
        values = [m[name] for m in group]
        low = min(values)
        span = max(values) - low
        for row, value in zip(scaled, values, strict=True):
            row[name] = (value - low) / span if span else 0.0
    return scaled


class ToolOrchestraReward:
    """The reward `toolorchestra`. `prefer`: P, as in --prefer; by default that of each run, and the
    outcome alone for a run without one.
    """

    def __init__(self, prefer: str = "") -> None:
        settings: dict[str, Any] = {"prefer": prefer} if prefer else {}
        self.prefer = Options(**settings).prefer

    def score(
        self, example: Question, completions: Sequence[Completion]
    ) -> list[Scores]:
        """Raises ConfigError for a run that cannot be scored."""
        group = [rollout(Path(c.text)) for c in completions]
        rows = normalized([measures(tau, example) for tau in group])
        scores = []
        for tau, m in zip(group, rows, strict=True):
            p = self.prefer or tau.prefer or {"outcome": 1.0}
            total = 0.0
            if tau.solved(example):
                total = sum(m[name] * weight for name, weight in p.items())  # Eq. 2
            scores.append(Scores(total, m, valid=tau.executed))
        return scores


# ---- MAS-Orchestra -------------------------------------------------------------------------------


class MasOrchestraReward:
    """The reward `mas-orchestra`: R = w_exec * executed + w_ans * correct, as in the released code.
    The paper's own is the answer alone, R = 1[y^ = y] (arXiv 2601.14652, section 3): w_exec=0,
    w_ans=1.
    """

    def __init__(self, w_exec: str | float = 0.1, w_ans: str | float = 0.9) -> None:
        self.w_exec = float(w_exec)
        self.w_ans = float(w_ans)

    def score(
        self, example: Question, completions: Sequence[Completion]
    ) -> list[Scores]:
        """Raises ConfigError for a run that cannot be scored."""
        scores = []
        for completion in completions:
            tau = rollout(Path(completion.text))
            executed = float(tau.executed)
            correct = float(tau.solved(example))
            total = self.w_exec * executed + self.w_ans * correct
            parts = {"format": executed, "answer": correct}
            scores.append(Scores(total, parts, valid=tau.executed))
        return scores


# ---- the command ---------------------------------------------------------------------------------

RUN_REWARDS: dict[str, type[Reward]] = {
    "toolorchestra": ToolOrchestraReward,
    "mas-orchestra": MasOrchestraReward,
}


def make(name: str, /, **settings: Any) -> Reward:
    """The reward of a --reward. Raises ConfigError."""
    flag = f"--reward {name}"
    if name in RUN_REWARDS:
        shipped: Reward = fitted(RUN_REWARDS[name], Reward, flag, **settings)
        return shipped
    own: Reward = chosen(name, RUN_REWARDS, Reward, "--reward", **settings)
    return own


def rewards(
    name: str, reward: Reward, questions: Sequence[Question], folders: Sequence[Path]
) -> list[dict[str, Any]]:
    """A row for each run, group by group. Raises ConfigError."""
    known = {q.question.strip(): q for q in questions}
    groups: dict[str, list[Path]] = defaultdict(list)
    for folder in folders:
        asked = run_folder.read_manifest(folder).question.strip()
        if asked not in known:
            raise ConfigError(f"{folder}: --answers does not have its question")
        groups[asked].append(folder)
    rows = []
    for asked, group in groups.items():
        completions = [Completion(str(folder)) for folder in group]
        value = reward.score(known[asked], completions)
        scores = contracts.scores(value, f"--reward {name}", len(group))
        for folder, s in zip(group, scores, strict=True):
            row = {"reward": s.total, **s.parts} if s else {}
            rows.append({"run": str(folder), **row})
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the rewards of the runs given. Returns the exit code."""
    parser = OneLineParser(
        prog="python -m orchestra.training.run_rewards",
        description="Rewards of whole recorded runs, by question.",
    )
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="a run folder")
    add("--reward", required=True, metavar="NAME", help=f"{', '.join(RUN_REWARDS)}")
    add("--answers", required=True, type=Path, metavar="FILE", help="right answers")
    add("--reward-setting", action="append", default=[], metavar="NAME=VALUE")

    def work() -> None:
        flags = parser.parse_args(arguments)
        reward = make(flags.reward, **_settings(flags))
        rows = rewards(flags.reward, reward, load(flags.answers), flags.runs)
        columns = dict.fromkeys(name for row in rows for name in row)
        print(table(" ".join(columns), rows))

    return run_program("training.run_rewards", work)


def _settings(flags: argparse.Namespace) -> dict[str, str]:
    pairs = [setting.partition("=") for setting in flags.reward_setting]
    return {name: value for name, _, value in pairs}


if __name__ == "__main__":
    sys.exit(main())
