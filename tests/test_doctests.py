"""The examples in docstrings run, all of them, and give what they show."""

import doctest
from importlib import import_module

import pytest

from tests.conftest import ROOT


def examples_in(path) -> int:
    return sum(line.strip().startswith(">>> ") for line in path.read_text("utf-8").splitlines())


def modules():
    """Each module with examples; the id of its test says how many there are."""
    places = [(ROOT / "orchestra", "orchestra"), (ROOT / "tools", "orchestra.tools")]
    for folder, package in places:
        for path in sorted(folder.rglob("*.py")):  # which follows no link: tools/ comes once
            if count := examples_in(path):
                name = ".".join([package, *path.relative_to(folder).with_suffix("").parts])
                yield pytest.param(name, count, id=f"{name}: {count} examples")


@pytest.mark.parametrize(("name", "count"), list(modules()))
def test_the_examples_of_a_module_are_right(name, count):
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        pytest.skip("needs torch (make .venv/train)")
    outcome = doctest.testmod(module)
    assert outcome.failed == 0, "the output above shows the examples"
    assert outcome.attempted == count, "some examples are where doctest does not find them"


def test_an_example_that_is_wrong_fails(tmp_path, monkeypatch):
    (tmp_path / "wrong_example.py").write_text('"""\n>>> 1 + 1\n3\n"""')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AssertionError):
        test_the_examples_of_a_module_are_right("wrong_example", 1)
