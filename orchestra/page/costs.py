"""Where the cost of a run went: by model, and by decision or sub-task. Both add up to its total."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from orchestra.runtime.summary import Prices, Row, Totals
from orchestra.vocabulary import Place

CostRow = dict[str, Any]  # a name, with what its calls cost


def by_model(rows: Iterable[Row], prices: Prices) -> list[CostRow]:
    """The dearest model first."""
    found: dict[str, Totals] = {}
    for row in rows:
        _add(found, _model_of(row, prices), prices.of(row))
    return _listed(found)


def by_place(rows: Iterable[Row], prices: Prices) -> list[CostRow]:
    """The dearest decision or sub-task first, by its place: r1/main, r1/t2."""
    found: dict[str, Totals] = {}
    for row in rows:
        _add(found, _place_of(row), prices.of(row))
    return _listed(found)


def _add(found: dict[str, Totals], name: str, cost: Totals) -> None:
    if cost.calls:  # a local tool is not billed
        found[name] = found.get(name, Totals()).plus(cost)


def _listed(found: dict[str, Totals]) -> list[CostRow]:
    names = sorted(found, key=lambda name: -(found[name].cost_usd or 0.0))
    return [{"name": name, **asdict(found[name])} for name in names]


def _model_of(row: Row, prices: Prices) -> str:
    request = row["request"]
    backend = prices.backend_of(row)
    return backend.name if backend else str(request.get("model") or request["kind"])


def _place_of(row: Row) -> str:
    place = Place.parse(row["call"])
    if place is None:
        return str(row["call"])
    return str(Place(place.round, place.subtask))
