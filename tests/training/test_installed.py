"""What the training says where its packages are missing; and the examples in its docstrings."""

import doctest
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from orchestra import install

ROOT = Path(__file__).parents[2]


def test_without_its_packages_the_command_says_in_one_line_what_to_install():
    command = [sys.executable, "-S", "train_da_grpo.py", "--help"]  # -S: none is found
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("train_da_grpo.py: ") and line.endswith(install("train"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["orchestra.training.logprobs", "orchestra.training.rollouts", "train_da_grpo"]
)
def test_the_examples_in_docstrings_are_true(name):
    pytest.importorskip("peft", reason="peft is not installed: pip install -e '.[train]'")
    tried = doctest.testmod(import_module(name))
    assert tried.attempted > 0 and tried.failed == 0
