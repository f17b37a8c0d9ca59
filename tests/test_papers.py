"""PAPERS.md names files, functions and tests that exist; the code names the equations."""

import ast
import re

import pytest

from tests.conftest import ROOT

NAMED = sorted(set(re.findall(r"`([\w/]+\.\w+)(?:::([\w.]+))?`", (ROOT / "PAPERS.md").read_text())))


def names_in(path: str) -> set[str]:
    """Functions, classes and constants; methods as Class.method."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        name = getattr(node, "name", None) or ast.unparse(getattr(node, "targets", []))
        body = node.body if isinstance(node, ast.ClassDef) else []
        found |= {name, *(f"{name}.{getattr(member, 'name', '')}" for member in body)}
    return found


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_place_named_in_papers_md_exists(path, name):
    assert (ROOT / path).exists()
    assert not name or name in names_in(path)


@pytest.mark.parametrize("number", [1, 3, *range(5, 16), 19, 20, 21, 22, 26, 27, 28, 29, 30, 31])
def test_an_equation_is_named_where_it_is_computed(number):
    folders = (ROOT / d for d in ("", "orchestra", "orchestrators", "subagents", "training"))
    text = "\n".join(p.read_text() for folder in folders for p in folder.glob("*.py"))
    ranges = re.findall(r"Eq\. (\d+)(?:-(\d+))?", text)
    assert any(int(first) <= number <= int(last or first) for first, last in ranges)
