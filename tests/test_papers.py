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


ROWS = [
    [cell.strip() for cell in row.split("|")[1:-1]] for row in PAPERS.splitlines() if row[:1] == "|"
]
VERDICTS = "exact", "as written", "approximated", "departed", "measured", "not here"
# Where a formula or a number of a paper is computed again, without the function that is tested
COMPUTED_AGAIN = {
    ("tests/test_exact.py", ""),
    ("tests/test_figure_7.py", ""),
    ("tests/training/test_parity.py", ""),
    ("tests/training/test_examples.py", "test_each_round_of_the_recorded_demo_is_an_example_with_a_decision"),
    ("tests/test_mas_orchestra.py", "test_an_agent_makes_as_many_calls_as_the_paper_says"),
    ("tests/test_mas_orchestra.py", "test_samples_differ_also_where_the_endpoint_samples_at_0"),
}  # fmt: skip


@pytest.mark.parametrize("cells", [c for c in ROWS if len(c) > 2], ids=lambda c: c[0][:40])
def test_a_row_begins_with_a_verdict_and_names_the_test_that_it_needs(cells):
    if cells[1] == "verdict" or not cells[1].strip("-"):
        return
    assert cells[1].startswith(VERDICTS)
    if len(cells) == 4 and cells[1].startswith(("exact", "as written", "approximated")):
        assert named_in(cells[2]) and named_in(cells[3])
    if cells[1].startswith("exact"):
        assert any({(file, ""), (file, name)} & COMPUTED_AGAIN for file, name in named_in(cells[3]))


def test_the_tests_that_papers_md_names_are_checked_when_they_run():
    assert len(papers_rows()) > 40


@pytest.mark.parametrize("number", [1, 3, *range(5, 16), 19, 20, 21, 22, 26, 27, 28, 29, 30, 31])
def test_an_equation_is_named_where_it_is_computed(number):
    folders = (
        ROOT / "orchestra" / name for name in ("..", "kernel", "methods", "training", "curation")
    )
    text = "\n".join(p.read_text() for folder in folders for p in folder.glob("*.py"))
    ranges = re.findall(r"Eq\. (\d+)(?:-(\d+))?", text)
    assert any(int(first) <= number <= int(last or first) for first, last in ranges)
