"""PAPERS.md names places that exist, and each test that it names runs the function of its row."""

import ast
import re
from functools import cache

import pytest

from tests.conftest import PAPERS, ROOT, named_in, papers_rows

NAMED = sorted(set(named_in(PAPERS)))


@cache
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


def test_every_row_with_a_verdict_of_exact_or_approximated_has_a_test():
    for row in PAPERS.splitlines():
        cells = [cell.strip() for cell in row.split("|")[1:-1]]
        if len(cells) == 4 and re.match("exact|approximated", cells[1]):
            assert named_in(cells[2]) and named_in(cells[3]), row
    assert len(papers_rows()) > 40  # tests that are checked when they run


@pytest.mark.parametrize("number", [1, 3, *range(5, 16), 19, 20, 21, 22, 26, 27, 28, 29, 30, 31])
def test_an_equation_is_named_where_it_is_computed(number):
    folders = (
        ROOT / d
        for d in ("", "orchestra", "orchestra/methods", "orchestra/agents", "orchestra/training")
    )
    text = "\n".join(p.read_text() for folder in folders for p in folder.glob("*.py"))
    ranges = re.findall(r"Eq\. (\d+)(?:-(\d+))?", text)
    assert any(int(first) <= number <= int(last or first) for first, last in ranges)
