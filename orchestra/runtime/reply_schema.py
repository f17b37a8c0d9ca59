"""JSON schemas of replies: an endpoint that supports them lets a model write nothing else.

>>> one_of(["done", "partial"])
{'type': 'string', 'enum': ['done', 'partial']}
>>> reply = closed_object({"answer": TEXT})
>>> reply["required"], reply["additionalProperties"]
(['answer'], False)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

JsonSchema = dict[str, Any]
TEXT: JsonSchema = {"type": "string"}


def closed_object(
    properties: dict[str, Any], required: Iterable[str] | None = None
) -> JsonSchema:
    """An object with these keys and no others; all are required by default."""
    needed = properties if required is None else required
    return {
        "type": "object",
        "properties": properties,
        "required": list(needed),
        "additionalProperties": False,
    }


def one_of(values: Iterable[str]) -> JsonSchema:
    return {"type": "string", "enum": list(values)}


def list_of(items: JsonSchema) -> JsonSchema:
    return {"type": "array", "items": items}


def const(value: str) -> JsonSchema:
    return {"type": "string", "const": value}
