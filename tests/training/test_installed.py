"""What the training says where its packages are missing; and the examples in its docstrings."""

import doctest
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from orchestra.training.installed import exit_unless_installed

ROOT = Path(__file__).parents[2]


def test_without_its_packages_the_command_says_in_one_line_what_to_install():
    command = [sys.executable, "-S", "train_da_grpo.py", "--help"]  # -S: none is found
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("train_da_grpo.py: ") and "pip install -e '.[train]'" in line


def test_only_what_is_missing_is_named(capsys):
    exit_unless_installed("x.py", "json", "sys")
    with pytest.raises(SystemExit) as stopped:
        exit_unless_installed("x.py", "json", "no_such_package")
    assert stopped.value.code == 2
    line = capsys.readouterr().err
    assert "(no_such_package)" in line and "json" not in line


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["steps", "packing", "rollouts"])
def test_the_examples_in_docstrings_are_true(name):
    pytest.importorskip("peft", reason="peft is not installed: pip install -e '.[train]'")
    tried = doctest.testmod(import_module(f"orchestra.training.{name}"))
    assert tried.attempted > 0 and tried.failed == 0
