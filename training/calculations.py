"""Arithmetic in an instruction, and what it comes to: two that come to the same ask for the same.

>>> values("Compute 16 * 7 kg + 388.")
{Fraction(500, 1)}
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction

CHARS = 300  # of an expression: none of a decision is that long
OPERATORS: Mapping[type[ast.AST], Callable[..., Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
SIGNS: Mapping[str, str] = {"×": "*", "−": "-", "–": "-"}
SPELLED: Mapping[str, str] = {"plus": "+", "minus": "-", "times": "*"}  # between two numbers

_TOKEN = re.compile(
    r"""(?xa)
      (?P<other> \d+(?::\d+)+ | \d{4}-\d\d-\d\d (?!\d)            # a time, a date
               | [^\W\d]\w* (?:[./:-]+\w+)+ | \w+\.[^\W\d]\w* )   # an address, a file
    | (?P<number> (?:\d{1,3}(?:,\d{3})+ | \d{1,30}) (?:\.\d{1,30})? (?![.,:]?\d) )
    | (?P<odd> \d[\d.,:]*\d )
    | (?P<sign> [-+*/()×−–] )
    | (?P<word> [^\W\d]\w* )
    | (?P<rest> \S )
    """
)


def values(text: str) -> set[Fraction]:
    """What each arithmetic expression in the text comes to. A unit may stand behind a number; a
    time, a date and a name are no numbers. No text makes this raise.
    """
    found = (_value(run) for run in _runs(text))
    return {value for value in found if value is not None}


def _runs(text: str) -> Iterator[str]:
    """The longest stretches of numbers and signs, the units behind the numbers left out."""
    run: list[str] = []
    tokens = [(m.lastgroup, m[0]) for m in _TOKEN.finditer(text)]
    for n, (kind, said) in enumerate(tokens):
        after_number = bool(run) and run[-1][-1].isdigit()
        before_number = n + 1 < len(tokens) and tokens[n + 1][0] == "number"
        if kind == "sign":
            run.append(SIGNS.get(said, said))
        elif kind == "word" and after_number and before_number and said.lower() in SPELLED:
            run.append(SPELLED[said.lower()])
        elif kind == "number" and not after_number:
            run.append(said.replace(",", "").lstrip("0") or "0")
        elif kind != "word" or not after_number:
            yield "".join(run)
            run = [said] if kind == "number" else []
        elif n and tokens[n - 1][0] == "word":  # behind a number one word is its unit, two are text
            yield "".join(run)
            run = []
    yield "".join(run)


def _value(run: str) -> Fraction | None:
    """None: it is no expression of two numbers or more."""
    run = run.lstrip("+*/)").rstrip("+-*/(")
    while run.endswith(")") and run.count(")") > run.count("("):
        run = run[:-1]
    while run.startswith("(") and run.count("(") > run.count(")"):
        run = run[1:]
    if len(run) > CHARS or not re.search(r"\d\)*[-+*/]", run):
        return None
    try:
        return _of(ast.parse(run, mode="eval").body)
    except (ArithmeticError, SyntaxError, ValueError, KeyError, RecursionError, MemoryError):
        return None


def _of(node: ast.expr) -> Fraction:
    """Raises KeyError for an operator that is none here, ZeroDivisionError, ValueError for all
    else that is no number.
    """
    match node:
        case ast.Constant(value=int() | float() as number):
            return Fraction(str(number))
        case ast.UnaryOp(op=sign, operand=one):
            return OPERATORS[type(sign)](_of(one))
        case ast.BinOp(left=left, op=sign, right=right):
            return OPERATORS[type(sign)](_of(left), _of(right))
    raise ValueError(ast.dump(node)[:80])
