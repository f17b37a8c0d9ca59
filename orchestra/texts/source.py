"""The texts in Python source: parsed, never executed.

An f-string becomes a template. `names` says what each of its expressions is in ours:

    >>> source = Source("a.py", 'def f(n, x):\\n    return f"{n + 1}. {x:.2f} costs $1"')
    >>> text = source.string_with(source.function("f"), "n + 1")
    >>> source.template(text, {"n + 1": "${number}", "x": "${value}"})
    '${number}. ${value} costs $$1'

What is not found, or not known, is a ConfigError: the repository has changed.
"""

from __future__ import annotations

import ast
import io
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from orchestra.runtime import outside
from orchestra.vocabulary import ConfigError

MAX_BYTES = 1 << 20  # of one file
ADVICE = "see docs/released-models.md for the layout that is known"
Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.AST)
Names = Mapping[str, str]  # expression -> what it is in a template


class Source:
    """A Python file. `where` names it in errors."""

    def __init__(self, where: str, text: str) -> None:
        """Raises ConfigError."""
        self.where = where
        self.text = text
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of escapes such as \d
                self.tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            why = str(error) or "nested too deeply"  # MemoryError
            raise ConfigError(f"{where}: is not Python ({why})") from None

    @classmethod
    def of(cls, clone: Path, path: str) -> Source:
        return cls(str(clone / path), text_of(clone, path))

    def error(self, what: str) -> ConfigError:
        return ConfigError(f"{self.where}: has no {what}; {ADVICE}")

    # ---- to find something -----------------------------------------------------------------------

    def function(self, name: str) -> Function:
        for node in ast.walk(self.tree):
            if isinstance(node, Function) and node.name == name:
                return node
        raise self.error(f"function {name}")

    def value(self, name: str, within: ast.AST | None = None) -> ast.expr:
        """What the first assignment to a name assigns."""
        for node in in_order(within or self.tree, ast.Assign):
            if any(ast.unparse(target) == name for target in node.targets):
                return node.value
        raise self.error(f"assignment to {name}")

    def constant(self, name: str) -> str:
        return self.text_of(self.value(name), name)

    def text_of(self, node: ast.AST, what: str) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        raise self.error(f"text {what}")

    def string_with(self, within: ast.AST, expression: str) -> ast.JoinedStr:
        """The first f-string that has this expression."""
        for node in in_order(within, ast.JoinedStr):
            if expression in expressions(node):
                return node
        raise self.error(f"f-string with {{{expression}}}")

    def loop(self, within: ast.AST, over: str) -> ast.For:
        """The first `for` whose iterable is this expression."""
        for node in in_order(within, ast.For):
            if ast.unparse(node.iter) == over:
                return node
        raise self.error(f"loop over {over}")

    # ---- to make something of it -----------------------------------------------------------------

    def template(self, node: ast.AST, names: Names) -> str:
        """A text or an f-string as a template. An expression `a if b else c` is known by b."""
        if isinstance(node, ast.JoinedStr):
            return "".join(self.template(part, names) for part in node.values)
        if isinstance(node, ast.FormattedValue):
            value = node.value
            key = value.test if isinstance(value, ast.IfExp) else value
            return self.named(key, names)
        return escaped(self.text_of(node, ast.unparse(node)[:40]))

    def named(self, node: ast.expr, names: Names) -> str:
        expression = ast.unparse(node)
        if expression not in names:
            known = f"known are {', '.join(names)}" if names else "none is known here"
            problem = f"{{{expression}}} is not known ({known})"
            raise ConfigError(f"{self.where}:{node.lineno}: {problem}; {ADVICE}")
        return names[expression]

    def lines(self, node: Function) -> str:
        """The source of a function, as inspect.getsource returns it."""
        lines = self.text.split("\n")  # str.splitlines also splits at other characters
        return "\n".join(lines[node.lineno - 1 : node.end_lineno]) + "\n"


def text_of(clone: Path, path: str) -> str:
    """The text of a file in a clone, as Python reads it: with plain line ends and without a mark
    of its encoding. Raises ConfigError.
    """
    # Path.resolve would raise for a loop of links
    real = Path(os.path.realpath(clone / path))
    if not real.is_relative_to(os.path.realpath(clone)):
        raise ConfigError(f"{clone / path} is outside the clone, by a link; remove it")
    try:
        with outside.opened(clone / path, MAX_BYTES) as file:
            data = file.read()
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig").read()
    except FileNotFoundError:
        problem = "does not exist; is this a clone of the released repository?"
        raise ConfigError(f"{clone / path} {problem}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{clone / path} is not UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{clone / path}: {error.strerror}") from None


def in_order(within: ast.AST, kind: type[Node]) -> Iterator[Node]:
    """The nodes of a kind, in the order of the source."""
    found = [node for node in ast.walk(within) if isinstance(node, kind)]
    place: Any = lambda node: (node.lineno, node.col_offset)  # noqa: E731
    yield from sorted(found, key=place)


def expressions(node: ast.JoinedStr) -> list[str]:
    """The expressions in an f-string."""
    parts = [part for part in node.values if isinstance(part, ast.FormattedValue)]
    return [ast.unparse(part.value) for part in parts]


def escaped(text: str) -> str:
    """A text in a template of string.Template."""
    return text.replace("$", "$$")
