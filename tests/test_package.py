"""What is installed: the dependencies for others, and the requirements of a checkout."""

import re
import tomllib

from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENTS = (ROOT / "requirements.txt").read_text().splitlines()


def test_others_get_what_the_checkout_needs_but_pytest_and_vcrpy():
    needed = {line for line in REQUIREMENTS if not line.startswith("#")}
    of_tests = {line for line in needed if line.startswith(("pytest", "vcrpy"))}
    assert needed - of_tests == set(PROJECT["dependencies"])
    assert len(of_tests) == 2 and of_tests < set(PROJECT["optional-dependencies"]["test"])


def test_algorithm_1_imports_nothing_from_above_it():
    """The contracts in pyproject.toml see only what is inside orchestra/."""
    extras = (
        "evaluate|report|explain|diff|variation|curate|optimize_prompt|evaluation|training|minigaia"
    )
    program = (ROOT / "orchestra_min.py").read_text()
    assert not re.findall(
        rf"^\s*(?:from|import) (?:orchestra\.(?:{extras})\b|train_da_grpo).*", program, re.M
    )
    assert not re.findall(rf"^\s*from orchestra import .*\b(?:{extras})\b.*", program, re.M)
