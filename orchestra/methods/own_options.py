"""Functions for Method.options: each reads the text or the JSON value of an option."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def share(value: Any) -> float:
    """A number from 0 to 1. Raises ValueError."""
    number = float(value) if isinstance(value, str | int | float) else -1.0
    if not 0 <= number <= 1:
        raise ValueError(f"{value!r} is not a number from 0 to 1")
    return number


def one_of_these(*names: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in names:
            raise ValueError(f"{value!r}: one of {', '.join(names)}")
        return str(value)

    return read


def weights(*names: str) -> Callable[[Any], dict[str, float]]:
    """A table of shares, or its spelling, as in cost=0.5,latency=0.2."""

    def read(value: Any) -> dict[str, float]:
        rows = value
        if isinstance(value, str):
            pairs = (row.partition("=") for row in value.split(","))
            rows = {name.strip(): weight for name, _, weight in pairs}
        if not isinstance(rows, Mapping):
            raise ValueError(f"{value!r}: needs NAME=WEIGHT,...")
        for name in rows:
            if name not in names:
                raise ValueError(f"{name!r}: one of {', '.join(names)}")
        return {name: share(weight) for name, weight in rows.items()}

    return read
