"""Train the arms and measure them. Each result is written when it is complete, so a laboratory that
was stopped continues with the next one.

    OUT/lab.json                   the plan
    OUT/results/da-0.json          an arm with a seed: what it used, what it solved, its curve
    OUT/models/da-0/               its weights
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from orchestra.kernel.folder import write_whole
from orchestra.kernel.vocabulary import ConfigError
from orchestra.training import rewards
from orchestra.training.lab import model
from orchestra.training.lab.arms import BY_NAME, Arm, Training
from orchestra.training.lab.budget import Budget, Meter
from orchestra.training.lab.checkpoints import Checkpoints
from orchestra.training.lab.demonstrators import PLAYERS, NewPlanner
from orchestra.training.lab.order import REACT
from orchestra.training.lab.plan import Plan
from orchestra.training.lab.play import (
    Played,
    held_out,
    means,
    one_thing_a_round,
    planned,
    play,
)

Result = dict[str, Any]
TEMPERATURES = {"greedy": 0.0, "sampled": 1.0}


class Lab:
    """A folder of results."""

    def __init__(self, out: Path, plan: Plan) -> None:
        self.out = out
        self.plan = plan

    def begin(self) -> None:
        """Write the plan. Raises ConfigError if the folder has another one."""
        file = self.out / "lab.json"
        now = self.plan.model_dump(mode="json")
        if not file.exists():
            self.out.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps(now) + "\n")
        before = json.loads(file.read_text(encoding="utf-8"))
        names = now.keys() | before.keys()
        changed = sorted(name for name in names if now.get(name) != before.get(name))
        if changed:
            why = f"has results of another {', '.join(changed)}; give another folder"
            raise ConfigError(f"--out {self.out}: {why}")

    def results(self) -> list[Result]:
        """All that is complete."""
        files = sorted((self.out / "results").glob("*.json"))
        return [json.loads(file.read_text(encoding="utf-8")) for file in files]

    def once(self, name: str, seed: int, make: Callable[[], Result]) -> Result:
        """The result of an arm with a seed. It is made if it is not there."""
        file = self.out / "results" / f"{name}-{seed}.json"
        if not file.exists():
            result = {"arm": name, "seed": seed, **make()}
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps(result) + "\n")
            solved = 100 * result["greedy"]["solved"]
            print(
                f"{name}, seed {seed}: {solved:.1f} % solved",
                file=sys.stderr,
                flush=True,
            )
        found: Result = json.loads(file.read_text(encoding="utf-8"))
        return found

    def of_seed(self, name: str, seed: int) -> Result:
        """An arm of EVERY with a seed."""
        if name == REACT:
            return self.react(seed)
        return self.trained(BY_NAME[name], seed)

    # ---- trained arms ----------------------------------------------------------------------------

    def trained(self, arm: Arm, seed: int) -> Result:
        """An arm with a seed, after those that it needs."""
        return self.once(arm.name, seed, lambda: self._train(arm, seed))

    def model(self, name: str, seed: int) -> Path:
        """The folder of a policy."""
        return self.out / "models" / f"{name}-{seed}"

    def _train(self, arm: Arm, seed: int) -> Result:
        start = self._start(arm, seed)
        policy = model.load(start)
        meter = Meter(self._budget(arm, seed))
        plan = self.plan
        checkpoints = Checkpoints(
            f"{arm.name}, seed {seed}",
            policy,
            meter,
            plan.validation,
            plan.points,
            arm.keep_best,
        )
        reward = rewards.make(plan.reward)
        training = Training(plan, seed, start, policy, reward, meter, checkpoints)
        checkpoints.validate()
        arm.learn(training)
        meter.paused(checkpoints.end)
        checkpoints.save(self.model(arm.name, seed))
        return {
            "used": meter.row(),
            "curve": checkpoints.rows,
            **self._measured(policy, seed),
        }

    def _start(self, arm: Arm, seed: int) -> Path:
        if arm.after:
            self.trained(BY_NAME[arm.after], seed)
            return self.model(arm.after, seed)
        folder = self.model("random", seed)
        model.make(folder, seed)
        return folder

    def _budget(self, arm: Arm, seed: int) -> Budget:
        executed = None
        if arm.as_few_as:
            executed = int(
                self.trained(BY_NAME[arm.as_few_as], seed)["used"]["executed"]
            )
        return Budget(arm.seconds(self.plan), self.plan.steps, executed)

    def _measured(self, policy: Any, seed: int) -> Result:
        """The held-out games, with the likeliest decisions and with sampled ones."""
        return {
            name: outcome(
                play(held_out(self.plan.held_out), model.player(policy, t, seed))
            )
            for name, t in TEMPERATURES.items()
        }

    # ---- players that are not trained ------------------------------------------------------------

    def fixed(self) -> None:
        """The expert, the demonstrator, the rules and random play."""
        for name, new in PLAYERS.items():
            self.once(name, 0, partial(self._fixed, name, new))

    def react(self, seed: int) -> Result:
        """The base as a ReAct agent: one tool call a step."""
        self.trained(BY_NAME["base"], seed)

        def make() -> Result:
            policy = model.load(self.model("base", seed))
            results = {}
            for name, t in TEMPERATURES.items():
                decide = one_thing_a_round(model.player(policy, t, seed))
                results[name] = outcome(play(held_out(self.plan.held_out), decide))
            return results

        return self.once(REACT, seed, make)

    def _fixed(self, name: str, new: NewPlanner) -> Result:
        played = play(held_out(self.plan.held_out), planned(new, name))
        return {"greedy": outcome(played)}


def outcome(played: Sequence[Played]) -> Result:
    """Means, and which tasks were solved, as 0 and 1."""
    return {**means(played), "tasks": "".join(str(int(game.solved)) for game in played)}
