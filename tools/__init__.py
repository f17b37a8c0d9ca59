"""Tools are plain typed functions; what a model reads of one comes from its signature and
docstring.

    @tool("ImageAnalysisAction", "img")
    def image_analysis(env: Environment, query: str, image_path: str) -> str:
        '''What it does, for the model.

        query: what this parameter means
        '''

A tool returns its observation. ToolError is an observation too: what went wrong, in words the sub-
agent can act on.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Generic, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from typing_extensions import TypedDict

from orchestra.money import Purse
from orchestra.vocabulary import SKILL_OF, Backend, Media, Modality, ModelMistake, Task
from runtime.chat import Chat
from runtime.pool import Pool
from runtime.prompts import say
from runtime.tape import Tape

# Parameters that name a file of the task: a schema lists the names.
ImageFile = Annotated[str, "image"]
AudioFile = Annotated[str, "audio"]
VideoFile = Annotated[str, "video"]
T = TypeVar("T")
FILES = "image", "audio", "video", "search", "visit", "code"  # loaded when a task needs them
ABOUT = "title", "default"  # what a schema says of a parameter besides its form
KINDS = get_args(Modality)
NOT_INSIDE = ("$schema", "$defs", "definitions")  # what a schema inside another has no use for
MAX_REPLACED = 200  # how many $ref of one schema are replaced
MAX_REFS = 8  # the longest chain of them that is followed


class ToolError(Exception):
    """The tool could not do it; its text is the observation."""


class Value(TypedDict, Generic[T]):
    """What a tool did, on the tape."""

    value: T


class Failed(TypedDict):
    """Why it could not."""

    error: str


@dataclass(frozen=True)
class Environment:
    """What one sub-agent may reach: the task's media, its own folder, and models through its own
    purse.

    Environments of sub-tasks that run in parallel share nothing that changes (App. B.1: cloned
    environments).
    """

    task: Task
    backend: Backend
    pool: Pool
    chat: Chat
    tape: Tape
    purse: Purse
    folder: Path  # made when first written to
    allow_hosts: tuple[str, ...] = ()  # may be fetched from although they are internal
    unsafe_code: bool = False  # model-written code runs without a sandbox
    repo: Path | None = None  # of --workdir

    @property
    def media_folder(self) -> Path | None:
        return self.task.media[0].path.parent if self.task.media else None

    def media(self, name: str, modality: Modality) -> Media:
        """The media file a model means. Raises ToolError for any other file: nothing else may be
        opened.
        """
        if m := self.task.file(name):
            if m.modality != modality and not (modality == "audio" and m.modality == "video"):
                about = {"name": name, "actual": m.modality, "wanted": modality}
                raise ToolError(say("notes", "wrong_modality", **about))
            return m
        known = ", ".join(m.name for m in self.task.media if m.modality == modality) or "none"
        raise ToolError(say("notes", "unknown_file", name=name, modality=modality, known=known))

    def local(
        self, kind: str, arguments: dict[str, Any], function: Callable[[], Any], shape: Any = Any
    ) -> Any:
        """Calls function() and records its JSON value, of type `shape`, or its ToolError. A replay
        gets what was recorded. Wrap other side effects in env.local(...) so that they are recorded.
        """

        def outcome() -> dict[str, Any]:
            try:
                return {"value": function()}
            except ToolError as error:
                return {"error": str(error)}

        value: Any = Value
        recorded, _ = self.tape.exchange(kind, arguments, outcome, value[shape] | Failed)
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
    manual: str  # all that a model reads: name, purpose, parameters
    check: Callable[[dict[str, Any]], dict[str, Any]]  # the checked arguments; raises ValueError
    function: Callable[..., str]
    files: Mapping[str, Modality] = field(default_factory=dict)  # parameters that name a file

    def __call__(self, env: Environment, params: Mapping[str, Any]) -> str:
        """The observation. Raises ModelMistake for parameters that do not fit, ToolError for what
        failed.
        """
        try:
            arguments = self.check(dict(params))
        except ValueError as problems:
            fit = {"tool": self.name, "problems": str(problems), "signature": self.signature}
            raise ModelMistake("bad_params", **fit) from None
        return self.function(env, **arguments)

    def schema(self, task: Task) -> dict[str, Any]:
        """The JSON schema of what a model must give; a file parameter lists the files there are."""
        properties = dict(self.inputs.get("properties", {}))
        for name, modality in self.files.items():
            if names := [m.name for m in task.media if m.modality == modality]:
                properties[name] = {**properties[name], "enum": names}
        return {**self.inputs, "properties": properties} if self.files else self.inputs


def tool(name: str, *capabilities: str) -> Callable[[Callable[..., str]], Tool]:
    """Make a Tool of a function. A model is not told of its parameter for the Environment."""

    def wrap(function: Callable[..., str]) -> Tool:
        purpose, _, rest = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
        meanings = dict(re.findall(r"^(\w+): (.+)$", rest, flags=re.M))
        hints = get_type_hints(function, localns={"Environment": Environment}, include_extras=True)
        fields: dict[str, Any] = {}
        for p in inspect.signature(function).parameters.values():
            if hints[p.name] is not Environment:
                fields[p.name] = hints[p.name], Field(... if p.default is p.empty else p.default)
        config = ConfigDict(extra="ignore", coerce_numbers_to_str=True)
        model = create_model(name, __config__=config, **fields)
        whole = model.model_json_schema()
        rows = (without_refs(whole) if "$defs" in whole else whole)["properties"]
        shapes = {k: {n: v for n, v in row.items() if n not in ABOUT} for k, row in rows.items()}
        inputs = {
            "type": "object", "properties": shapes, "required": whole.get("required", []),
            "additionalProperties": False,
        }  # fmt: skip
        signature = ", ".join(_told(k, shapes[k], row) for k, row in rows.items())
        about = [" ".join(purpose.split()), *(f"{k}: {meanings.get(k, '')}" for k in rows)]
        manual = "\n    ".join([f"{name}({signature})", *about])
        known = model.model_fields.items()
        files = {k: kind for k, f in known for kind in f.metadata if kind in KINDS}
        check = partial(_arguments, model)
        return Tool(
            name, frozenset(capabilities), inputs, signature, manual, check, function, files
        )

    return wrap


def _told(name: str, shape: dict[str, Any], row: dict[str, Any]) -> str:
    """A parameter in a signature."""
    default = f" = {row['default']!r}" if "default" in row else ""
    plain = shape.keys() <= {"type", "enum"}
    return f"{name}: {row.get('type', 'any') if plain else json.dumps(shape)}{default}"


def _arguments(model: type[BaseModel], params: dict[str, Any]) -> dict[str, Any]:
    """What a typed function is called with. Raises ValueError: what is wrong."""
    nullable = {k for k, f in model.model_fields.items() if NoneType in get_args(f.annotation)}
    given = {k: v for k, v in params.items() if v is not None or k in nullable}
    try:
        return dict(model.model_validate(given))
    except ValidationError as error:
        where = [(".".join(map(str, e["loc"])) or "params", e["msg"]) for e in error.errors()]
        raise ValueError("; ".join(f"{place}: {what}" for place, what in where)) from None


def without_refs(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema with its parts in place of each $ref, so that it can stand inside another.
    Where it contains itself, after MAX_REPLACED replacements, and where there is no such part, {}
    stands: anything fits there.
    """
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    replaced = count()
    resolver: Any = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()

    def inside(part: Any, path: tuple[str, ...]) -> Any:
        if isinstance(part, list):
            return [inside(p, path) for p in part]
        if not isinstance(part, dict):
            return part
        if isinstance(ref := part.get("$ref"), str):
            ends = ref in path or len(path) == MAX_REFS or next(replaced) >= MAX_REPLACED
            known: Any = {}
            with contextlib.suppress(Unresolvable):
                known = known if ends else resolver.lookup(ref).contents
            rest = {k: v for k, v in part.items() if k != "$ref"}
            return inside({**(known if isinstance(known, dict) else {}), **rest}, (*path, ref))
        return {k: inside(v, path) for k, v in part.items()}

    return dict(inside({k: v for k, v in schema.items() if k not in NOT_INSIDE}, ()))


def tools_for(task: Task, code: bool = True) -> dict[str, Tool]:
    """The tools that a task can use: one that looks or listens needs a file to open, and one that
    runs code needs a sandbox.
    """
    kinds = {m.modality for m in task.media}
    kinds |= {"audio"} if "video" in kinds else set()
    unfit = SKILL_OF.keys() - kinds | (set() if code else {"code"})
    return all_tools([name for name in FILES if name not in unfit])


def all_tools(files: Iterable[str] = FILES) -> dict[str, Tool]:
    """T, by wire name, in the order the models see them."""
    modules = [import_module(f"tools.{file}") for file in files]
    found = [value for m in modules for value in vars(m).values() if isinstance(value, Tool)]
    return {tool.name: tool for tool in found}
