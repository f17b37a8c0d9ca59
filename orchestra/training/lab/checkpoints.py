"""The checkpoints of one training: validations along the way, which draw its curve and choose the
best checkpoint. What they cost is not counted.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

from orchestra.training.lab.budget import Meter
from orchestra.training.lab.model import player
from orchestra.training.lab.play import means, play, validation
from orchestra.training.policy import Policy

Row = dict[str, Any]


class Checkpoints:
    """`points` validations, evenly spread over the budget, the first before it. `keep_best`: the
    policy ends with the weights of the best one, of equal ones the last; else with the last.
    """

    def __init__(
        self,
        name: str,
        policy: Policy,
        meter: Meter,
        tasks: int,
        points: int,
        keep_best: bool,
    ) -> None:
        self.name = name
        self.policy = policy
        self.meter = meter
        self.tasks = tasks
        self.points = points
        self.keep_best = keep_best
        self.rows: list[Row] = []
        self.best: tuple[float, Any] = (-1.0, None)  # solved, and the weights

    def after_step(self) -> None:
        """Validate if the next point is reached."""
        if self.meter.used() >= len(self.rows) / self.points:
            self.meter.paused(self.validate)

    def end(self) -> None:
        """Validate after the last step, unless that has been done."""
        if self.rows[-1]["steps"] != self.meter.step:
            self.validate()

    def validate(self) -> None:
        """Play the validation tasks with the likeliest decisions."""
        played = play(validation(self.tasks), player(self.policy))
        row = means(played)
        self.rows.append({**self.meter.row(), **row})
        self.tell()
        if self.keep_best and row["solved"] >= self.best[0]:
            self.best = row["solved"], copy.deepcopy(self.policy.model.state_dict())

    def tell(self) -> None:
        """Say how far the training is."""
        row = self.rows[-1]
        solved = f"{100 * row['solved']:.1f} % of {self.tasks} validation tasks solved"
        line = f"{self.name}: {row['steps']} steps, {row['cpu_s']:.0f} CPU s, {solved}"
        print(line, file=sys.stderr, flush=True)

    def save(self, folder: Path) -> None:
        """Write the weights that the training ends with."""
        if self.keep_best:
            self.policy.model.load_state_dict(self.best[1])
        self.policy.save(folder)
