"""The parameters of a tool: the JSON schema that describes them, the signature that a model reads,
and the check of what a model sends.

A typed function becomes a pydantic model, and pydantic writes the schema of it:

>>> model = create_model("Hours", day=(str, ...), weeks=(int, 1))
>>> signature_of(arguments_schema(model))
'day: string, weeks: integer = 1'
>>> checked_arguments(model, {"day": "Monday", "weeks": None})
{'day': 'Monday', 'weeks': 1}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import NoneType
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

MAX_REFS = 200  # replaced in one schema
NOT_FOR_MODELS = {"title", "default"}  # the signature has the defaults
DEFINITIONS = {"$schema", "$defs", "definitions"}


def arguments_model(name: str, fields: Mapping[str, Any]) -> type[BaseModel]:
    """The pydantic model of the arguments of a tool. `fields`: the type of each parameter and its
    default, as `create_model` takes them. Raises errors of pydantic.
    """
    config = ConfigDict(extra="ignore", coerce_numbers_to_str=True)
    model: type[BaseModel] = create_model(name, __config__=config, **fields)
    return model


def arguments_schema(model: type[BaseModel]) -> dict[str, Any]:
    """What pydantic writes about a model, without references; with titles and defaults."""
    schema = model.model_json_schema()
    if "$defs" in schema:
        return without_refs(schema)
    return schema


def object_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of all parameters in one object, as it is sent to an endpoint. `schema`: the
    `arguments_schema`.
    """
    rows = schema["properties"]
    return {
        "type": "object",
        "properties": {name: _shape(row) for name, row in rows.items()},
        "required": schema.get("required", []),
        "additionalProperties": False,
    }


def signature_of(schema: Mapping[str, Any]) -> str:
    """The parameters as a model reads them, with types and defaults. `schema`: the
    `arguments_schema`.
    """
    return ", ".join(_typed(name, row) for name, row in schema["properties"].items())


def _typed(name: str, row: dict[str, Any]) -> str:
    typed = f"{name}: {_type_of(_shape(row))}"
    if "default" in row:
        typed += f" = {row['default']!r}"
    return typed


def _shape(row: dict[str, Any]) -> dict[str, Any]:
    """The schema of one parameter without what a model need not read."""
    return {key: value for key, value in row.items() if key not in NOT_FOR_MODELS}


def _type_of(shape: dict[str, Any]) -> str:
    """The type of a parameter in a signature: a word, or its schema if no word says it all."""
    if shape.keys() <= {"type", "enum"}:
        return str(shape.get("type", "any"))
    return json.dumps(shape)


def checked_arguments(
    model: type[BaseModel], params: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a typed function, from what a model sent. A null for a parameter that does
    not allow it counts as left out. Raises ValueError, which says what is wrong.
    """
    nullable = set()
    for name, field in model.model_fields.items():
        if NoneType in get_args(field.annotation):
            nullable.add(name)
    given = {}
    for name, value in params.items():
        if value is not None or name in nullable:
            given[name] = value
    try:
        return dict(model.model_validate(given))
    except ValidationError as error:
        problems = "; ".join(_problem(row) for row in error.errors())
        raise ValueError(problems) from None


def _problem(row: Mapping[str, Any]) -> str:
    """One error of pydantic, as in "weeks: Input should be a valid integer"."""
    where = ".".join(str(key) for key in row["loc"])
    if not where:
        where = "params"
    return f"{where}: {row['msg']}"


def without_refs(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema with each $ref replaced by what it refers to, so that another can contain it.
    A recursive or unknown $ref, and each after MAX_REFS, becomes {}, which allows anything.
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
