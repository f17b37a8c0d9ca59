"""JSON schemas of parameters without references, so that the schema of a call can contain them."""

from __future__ import annotations

from typing import Any

MAX_REFS = 200  # replaced in one schema
DEFINITIONS = {"$schema", "$defs", "definitions"}


def without_refs(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema with each $ref replaced by what it refers to. A recursive or unknown $ref, and
    each after MAX_REFS, becomes {}, which allows anything.
    """
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    resource = DRAFT202012.create_resource(schema)
    resolver: Any = Registry().with_resource("", resource).resolver()
    allowed = iter(range(MAX_REFS))

    def definition(ref: str, path: tuple[str, ...]) -> dict[str, Any]:
        """What a $ref refers to. `path`: the references that led to it."""
        if ref in path or next(allowed, None) is None:
            return {}
        try:
            found = resolver.lookup(ref).contents
        except Unresolvable:
            return {}
        return found if isinstance(found, dict) else {}

    def inlined(part: Any, path: tuple[str, ...]) -> Any:
        if isinstance(part, list):
            return [inlined(item, path) for item in part]
        if not isinstance(part, dict):
            return part
        ref = part.get("$ref")
        if not isinstance(ref, str):
            return {key: inlined(value, path) for key, value in part.items()}
        rest = {key: value for key, value in part.items() if key != "$ref"}
        return inlined({**definition(ref, path), **rest}, (*path, ref))

    body = {key: value for key, value in schema.items() if key not in DEFINITIONS}
    return dict(inlined(body, ()))
