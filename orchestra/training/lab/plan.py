"""The size of a laboratory: what is trained for how long, and how it is measured."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from orchestra.training.options import Checked

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]


class Plan(Checked):
    """All that the results follow from, besides the seed. The seconds are CPU seconds."""

    base_s: Seconds = Field(30, description="learning the language")
    start_s: Seconds = Field(80, description="imitation, before the arms part")
    more_s: Seconds = Field(40, description="of each arm after it")
    tasks: Count = Field(2000, description="training tasks")
    held_out: Count = Field(1000, description="held-out tasks")
    validation: Count = Field(100, description="validation tasks")
    points: Count = Field(8, description="validations of a training")
    reward: str = Field(
        "exact", description="the reward of DA-GRPO, as of train_da_grpo.py"
    )
    steps: Count | None = Field(None, description="steps of each training, not seconds")


QUICK = Plan(base_s=30, start_s=60, more_s=30, held_out=500, points=4)
