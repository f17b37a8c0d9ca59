"""JSON schemas of what a model may reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

TEXT: dict[str, Any] = {"type": "string"}


def closed_object(
    properties: dict[str, Any], required: Sequence[str] | None = None
) -> dict[str, Any]:
    """An object with these keys and no other; all are required unless said otherwise."""
    needed = list(properties if required is None else required)
    fixed = {"required": needed, "additionalProperties": False}
    return {"type": "object", "properties": properties, **fixed}


def one_of(values: Sequence[str]) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


def list_of(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def const(value: str) -> dict[str, Any]:
    return {"type": "string", "const": value}
