"""PAPERS.md names files, functions and tests: they are there."""

from __future__ import annotations

import ast
import re

import pytest

from tests.conftest import ROOT

NAMED = sorted(set(re.findall(r"`([\w/]+\.py)(?:::([\w.]+))?`", (ROOT / "PAPERS.md").read_text())))


def names_in(path: str) -> set[str]:
    """Functions and classes, and methods as Class.method."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
            inner = node.body if isinstance(node, ast.ClassDef) else ()
            found |= {f"{node.name}.{f.name}" for f in inner if isinstance(f, ast.FunctionDef)}
    return found


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_what_papers_md_names_is_there(path, name):
    assert (ROOT / path).is_file()
    assert not name or name in names_in(path)


@pytest.mark.parametrize(
    "number", [1, 3, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 19, 20, 21, 22, 26, 29, 30, 31]
)
def test_an_equation_can_be_found_in_the_code(number):
    files = [
        p
        for d in ("", "orchestra", "orchestrators", "subagents", "training")
        for p in (ROOT / d).glob("*.py")
    ]
    text = "\n".join(p.read_text() for p in files)
    ranges = re.findall(r"Eq\. (\d+)(?:-(\d+))?", text)
    assert any(int(a) <= number <= int(b or a) for a, b in ranges)


def test_the_readme_names_every_file_of_the_kernel():
    house = (ROOT / "README.md").read_text().partition("## The house")[2].partition("\n## ")[0]
    files = {p.name for p in (ROOT / "orchestra").glob("*.py")} - {"__init__.py"}
    assert files <= set(re.findall(r"`(\w+\.py)`", house))
