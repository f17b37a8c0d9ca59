"""The shapes of MiniGAIA's tasks: which facts a task combines, before it is known which facts.

"R" is a fact that is read, "N" a search for a name in the question, "S" a search for a name that
must be read first. A tuple is an operation on the values of its members. A tree is a shape with an
operation at every tuple, so that the kinds of values fit:

>>> [tree.label for tree in typed(("R",), "weekday")]
['weekday']
>>> typed(("R",), "weekday")[0].children
(Tree(label='read', kind='date', children=()),)

Held-out tasks have shapes that no other task has, or operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import product
from typing import NamedTuple, TypeAlias

from benchmarks.minigaia.operations import HELD_OUT, NEVER_LAST, OPERATIONS

Shape: TypeAlias = "str | tuple[Shape, ...]"
SEEN_SHAPES: tuple[Shape, ...] = (
    ("R",), ("N",), ("R", "R"), ("R", "N"), ("R", "S"), (("R",), "R"), ("R", ("R",)),
    (("R", "R"), "R"), (("R", "N"), "R"), (("S",), "R"),
)  # fmt: skip
HELD_OUT_SHAPES: tuple[Shape, ...] = (
    ("S", "S"), ("N", "N"), (("R",), ("R",)), ("R", ("R", "R")), ((("R",), "R"), "R"),
    (("R", "S"), "R"), (("R", "R"), ("R", "R")),
)  # fmt: skip
# The kinds of values that can be read, and those that can be searched for, by kinds of names.
READ = {"number", "small", "time", "date", "year", "person"}
SEARCH: Mapping[str | None, tuple[str, ...]] = {
    "number": ("person", "town"),
    "year": ("person", "town"),
    "hours": ("town",),
}


class Tree(NamedTuple):
    """`label` is an operation, or "read", "search" or "name". `kind` is that of its value."""

    label: str
    kind: str
    children: tuple[Tree, ...] = ()

    def labels(self) -> set[str]:
        """The labels of the tree and of all that is below."""
        found = {self.label}
        for child in self.children:
            found |= child.labels()
        return found


@cache
def typed(shape: Shape, kind: str | None = None) -> tuple[Tree, ...]:
    """Every tree of a shape whose value is of this kind. None: of any kind of an answer."""
    if isinstance(shape, tuple):
        return _computed_trees(shape, kind)
    if shape == "R":
        return (Tree("read", kind),) if kind in READ else ()
    source = "read" if shape == "S" else "name"
    searches = []
    for name_kind in SEARCH.get(kind, ()):
        name = Tree(source, name_kind)
        searches.append(Tree("search", str(kind), (name,)))
    return tuple(searches)


def _computed_trees(shape: tuple[Shape, ...], kind: str | None) -> tuple[Tree, ...]:
    found = []
    for operation in OPERATIONS.values():
        if len(operation.takes) != len(shape):
            continue
        if kind is None and operation.name in NEVER_LAST:
            continue
        if kind is not None and operation.gives != kind:
            continue
        choices = map(typed, shape, operation.takes)  # the trees of each operand
        for operands in product(*choices):
            found.append(Tree(operation.name, operation.gives, operands))
    return tuple(found)


@cache
def trees(shapes: tuple[Shape, ...], held_out: bool) -> Mapping[str, list[Tree]]:
    """The trees of these shapes, by their last operation. `held_out`: those with a held-out
    operation, else those without one.
    """
    new_operations = {operation.name for operation in HELD_OUT}
    found: dict[str, list[Tree]] = {}
    for shape in shapes:
        for tree in typed(shape):
            has_new = not new_operations.isdisjoint(tree.labels())
            if has_new == held_out:
                found.setdefault(tree.label, []).append(tree)
    return found
