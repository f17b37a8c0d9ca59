"""Tools are plain typed functions. Their signature and docstring are what a model reads.

    @tool("ImageAnalysisAction", "img")
    def image_analysis(env: Environment, query: str, image_path: str) -> str:
        '''What it does, for the model.

        query: what this parameter means
        '''

A tool returns its observation. A ToolError is an observation too: it tells the sub-agent what went
wrong.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Generic, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from typing_extensions import TypedDict

from orchestra.money import Purse
from orchestra.runtime.chat import Chat
from orchestra.runtime.pool import Pool
from orchestra.runtime.prompts import say
from orchestra.runtime.tape import Tape
from orchestra.vocabulary import Backend, Media, Modality, ModelMistake, Task

# Types of parameters that name a file of the task; the schema lists the names.
ImageFile = Annotated[str, "image"]
AudioFile = Annotated[str, "audio"]
VideoFile = Annotated[str, "video"]
T = TypeVar("T")
MAX_REFS = 200  # replaced in one schema


class ToolError(Exception):
    """The tool failed; the text is the observation."""


class Value(TypedDict, Generic[T]):
    """The result of a tool on the tape."""

    value: T


class Failed(TypedDict):
    """The failure of a tool on the tape."""

    error: str


@dataclass(frozen=True)
class Environment:
    """What one sub-agent can access: the task's media, its own folder, and models through its own
    purse. Parallel sub-tasks share no mutable state (App. B.1: cloned environments).
    """

    task: Task
    backend: Backend
    pool: Pool
    chat: Chat
    tape: Tape
    purse: Purse
    folder: Path  # created when first written to
    allow_hosts: tuple[str, ...] = ()  # internal hosts that may be fetched from
    unsafe_code: bool = False  # run model-written code without a sandbox
    repo: Path | None = None  # --workdir

    @property
    def media_folder(self) -> Path | None:
        return self.task.media[0].path.parent if self.task.media else None

    def media(self, name: str, modality: Modality) -> Media:
        """The media file that a model names. Raises ToolError for any other file."""
        if m := self.task.file(name):
            if m.modality != modality and not (
                modality == "audio" and m.modality == "video"
            ):
                about = {"name": name, "actual": m.modality, "wanted": modality}
                raise ToolError(say("notes", "wrong_modality", **about))
            return m
        known = (
            ", ".join(m.name for m in self.task.media if m.modality == modality)
            or "none"
        )
        raise ToolError(
            say("notes", "unknown_file", name=name, modality=modality, known=known)
        )

    def local(
        self,
        kind: str,
        arguments: dict[str, Any],
        function: Callable[[], Any],
        shape: Any = Any,
    ) -> Any:
        """Calls function() and records its JSON value, of type `shape`, or its ToolError. A replay
        returns the recording. Wrap other side effects in env.local(...) so that they are recorded.
        """

        def outcome() -> dict[str, Any]:
            try:
                return {"value": function()}
            except ToolError as error:
                return {"error": str(error)}

        value: Any = Value
        recorded = self.tape.value(kind, arguments, outcome, value[shape] | Failed)
        if "error" in recorded:
            raise ToolError(recorded["error"])
        return recorded["value"]


@dataclass(frozen=True)
class Tool:
    """g of T with psi(g), Eq. 7."""

    name: str
    capabilities: frozenset[str]
    inputs: dict[str, Any]  # the JSON schema of its parameters
    signature: str  # the parameters as a model reads them
    manual: str  # the whole description for a model: name, purpose, parameters
    check: Callable[
        [dict[str, Any]], dict[str, Any]
    ]  # returns the arguments; raises ValueError
    function: Callable[..., str]
    files: Mapping[str, Modality] = field(
        default_factory=dict
    )  # parameters that name a file

    def __call__(self, env: Environment, params: Mapping[str, Any]) -> str:
        """The observation. Raises ModelMistake for invalid parameters, ToolError for a failure."""
        try:
            arguments = self.check(dict(params))
        except ValueError as problems:
            fit = {
                "tool": self.name,
                "problems": str(problems),
                "signature": self.signature,
            }
            raise ModelMistake("bad_params", **fit) from None
        return self.function(env, **arguments)

    def schema(self, task: Task) -> dict[str, Any]:
        """The JSON schema of its parameters; a file parameter lists the task's files."""
        properties = dict(self.inputs.get("properties", {}))
        for name, modality in self.files.items():
            if names := [m.name for m in task.media if m.modality == modality]:
                properties[name] = {**properties[name], "enum": names}
        return {**self.inputs, "properties": properties} if self.files else self.inputs


def tool(name: str, *capabilities: str) -> Callable[[Callable[..., str]], Tool]:
    """Turns a function into a Tool. The model does not see a parameter of type Environment."""

    def wrap(function: Callable[..., str]) -> Tool:
        purpose, _, rest = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
        meanings = dict(re.findall(r"^(\w+): (.+)$", rest, flags=re.M))
        hints = get_type_hints(
            function, localns={"Environment": Environment}, include_extras=True
        )
        fields: dict[str, Any] = {}
        for p in inspect.signature(function).parameters.values():
            if hints[p.name] is not Environment:
                fields[p.name] = (
                    hints[p.name],
                    Field(... if p.default is p.empty else p.default),
                )
        config = ConfigDict(extra="ignore", coerce_numbers_to_str=True)
        model = create_model(name, __config__=config, **fields)
        schema = model.model_json_schema()
        rows = (without_refs(schema) if "$defs" in schema else schema)["properties"]
        defaults = {
            k: f" = {row['default']!r}" for k, row in rows.items() if "default" in row
        }
        hidden = {"title", "default"}
        shapes = {
            k: {n: v for n, v in row.items() if n not in hidden}
            for k, row in rows.items()
        }
        inputs = {
            "type": "object", "properties": shapes, "required": schema.get("required", []),
            "additionalProperties": False,
        }  # fmt: skip
        typed = [
            f"{k}: {_type(shape)}{defaults.get(k, '')}" for k, shape in shapes.items()
        ]
        signature = ", ".join(typed)
        lines = [
            " ".join(purpose.split()),
            *(f"{k}: {meanings.get(k, '')}" for k in rows),
        ]
        manual = "\n    ".join([f"{name}({signature})", *lines])
        known, kinds = model.model_fields.items(), get_args(Modality)
        files = {k: kind for k, f in known for kind in f.metadata if kind in kinds}
        check, can = partial(_arguments, model), frozenset(capabilities)
        return Tool(name, can, inputs, signature, manual, check, function, files)

    return wrap


def _type(shape: dict[str, Any]) -> str:
    """The type of a parameter in a signature."""
    plain = shape.keys() <= {"type", "enum"}
    return str(shape.get("type", "any")) if plain else json.dumps(shape)


def _arguments(model: type[BaseModel], params: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a typed function. Raises ValueError that says what is wrong."""
    nullable = {
        k for k, f in model.model_fields.items() if NoneType in get_args(f.annotation)
    }
    given = {k: v for k, v in params.items() if v is not None or k in nullable}
    try:
        return dict(model.model_validate(given))
    except ValidationError as error:
        problems = [
            (".".join(map(str, e["loc"])) or "params", e["msg"]) for e in error.errors()
        ]
        raise ValueError(
            "; ".join(f"{place}: {what}" for place, what in problems)
        ) from None


def without_refs(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema with each $ref replaced by what it refers to, so that another can contain it.
    A recursive or unknown $ref, and each after MAX_REFS, becomes {}, which allows anything.
    """
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    budget = iter(range(MAX_REFS))
    resolver: Any = (
        Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
    )

    def inlined(part: Any, path: tuple[str, ...]) -> Any:
        if isinstance(part, list):
            return [inlined(p, path) for p in part]
        if not isinstance(part, dict):
            return part
        if not isinstance(ref := part.get("$ref"), str):
            return {k: inlined(v, path) for k, v in part.items()}
        known: Any = {}
        if ref not in path and next(budget, None) is not None:
            with contextlib.suppress(Unresolvable):
                known = resolver.lookup(ref).contents
        rest = {k: v for k, v in part.items() if k != "$ref"}
        return inlined(
            {**(known if isinstance(known, dict) else {}), **rest}, (*path, ref)
        )

    definitions = ("$schema", "$defs", "definitions")
    return dict(inlined({k: v for k, v in schema.items() if k not in definitions}, ()))
