"""Opt-in, `make train-tiny`: a tiny random model imitates the expert until some decisions are right;
then DA-GRPO must raise the reward.
"""

import os

import pytest

from tests.training.conftest import make_model, short_examples
from tests.training.runs import QUIET, flags, metrics, run
from training.examples import write

pytestmark = [QUIET, pytest.mark.skipif("TRAIN_TINY" not in os.environ, reason="make train-tiny")]
BOTH = "--full --max-tokens 64 --save-every 1000 --batch 4"
SFT = "--steps 45 --lr 1e-2 --lr-floor 1"
GRPO = (
    "--steps 80 --group 8 --micro-batch 32 --lr 2e-3 --beta 0.001 --clip-high 0.28 --reward rubric"
)


def test_da_grpo_raises_the_reward_of_a_tiny_model(tmp_path):
    data, stages = short_examples(4), {"sft": f"{SFT} {BOTH}", "grpo": f"{GRPO} {BOTH}"}
    write(tmp_path / "train.jsonl", data)
    make_model(data, tmp_path / "model", words=512, width=64)
    start = tmp_path / "model"
    for stage, more in stages.items():
        assert (
            run(*flags((start, tmp_path / "train.jsonl"), tmp_path / stage, stage, *more.split()))
            == 0
        )
        start = tmp_path / stage / "model"
    rewards = [row["reward"] for row in metrics(tmp_path / "grpo")]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.1
