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

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from typing_extensions import TypedDict

from orchestra.vocabulary import SKILL_OF, Backend, Media, Modality, ModelMistake, Task
from runtime.prompts import say

if TYPE_CHECKING:
    from orchestra.money import Purse
    from runtime.chat import Chat
    from runtime.pool import Pool
    from runtime.tape import Tape


# Parameters that name a file of the task: a schema lists the names.
ImageFile = Annotated[str, "image"]
AudioFile = Annotated[str, "audio"]
VideoFile = Annotated[str, "video"]
T = TypeVar("T")
SHAPE = (
    *("type", "enum", "const", "anyOf"),
    *("items", "properties", "required", "additionalProperties"),
)


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
        """`function()`, recorded: its JSON value, of type `shape`, or its ToolError, is what a
        replay gets too. Wrap other side effects in env.local(...) so that they are recorded.
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
    description: str
    parameters: type[BaseModel]
    function: Callable[..., str]

    def __call__(self, env: Environment, params: Mapping[str, Any]) -> str:
        """The observation. Raises ModelMistake for parameters that do not fit, ToolError for what
        failed.
        """
        fields = self.parameters.model_fields
        nullable = {k for k, f in fields.items() if NoneType in get_args(f.annotation)}
        given = {k: v for k, v in params.items() if v is not None or k in nullable}
        try:
            arguments = self.parameters.model_validate(given)
        except ValidationError as error:
            where = [(".".join(map(str, e["loc"])) or "params", e["msg"]) for e in error.errors()]
            problems = "; ".join(f"{place}: {what}" for place, what in where)
            fit = {"tool": self.name, "problems": problems, "signature": self.signature}
            raise ModelMistake("bad_params", **fit) from None
        return self.function(env, **{k: getattr(arguments, k) for k in self._rows})

    def schema(self, task: Task) -> dict[str, Any]:
        """The JSON schema of what a model must give; a file parameter lists the files there are."""
        rows = self._rows.items()
        properties = {k: {n: row[n] for n in SHAPE if n in row} for k, row in rows}
        for name, field in self.parameters.model_fields.items():
            if files := [m.name for m in task.media if m.modality in field.metadata]:
                properties[name]["enum"] = files
        required = [name for name, f in self.parameters.model_fields.items() if f.is_required()]
        fixed = {"required": required, "additionalProperties": False}
        return {"type": "object", "properties": properties, **fixed}

    @cached_property
    def _rows(self) -> dict[str, dict[str, Any]]:
        whole = self.parameters.model_json_schema()
        return dict(_without_refs(whole["properties"], whole.get("$defs", {})))

    @cached_property
    def signature(self) -> str:
        def one(name: str, row: dict[str, Any]) -> str:
            default = f" = {row['default']!r}" if "default" in row else ""
            shape = {n: row[n] for n in SHAPE if n in row}
            plain = shape.keys() <= {"type", "enum"}
            return f"{name}: {row.get('type', 'any') if plain else json.dumps(shape)}{default}"

        return ", ".join(one(name, row) for name, row in self._rows.items())

    @cached_property
    def manual(self) -> str:
        """What a sub-agent reads: name, purpose, parameters."""
        rows = [f"    {k}: {row.get('description', '')}" for k, row in self._rows.items()]
        return "\n".join([f"{self.name}({self.signature})", f"    {self.description}", *rows])


def _without_refs(schema: Any, kinds: dict[str, Any], path: tuple[str, ...] = ()) -> Any:
    """A schema of pydantic's with its parts in place of each $ref, without its titles; a part of
    itself may be any.
    """
    if isinstance(schema, list):
        return [_without_refs(part, kinds, path) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(ref := schema.get("$ref"), str):
        name = ref.removeprefix("#/$defs/")
        rest = {k: v for k, v in schema.items() if k != "$ref"}
        known = {} if name in path else kinds[name]
        return _without_refs({**known, **rest}, kinds, (*path, name))
    rows = schema.items()
    return {k: _without_refs(v, kinds, path) for k, v in rows if (k, type(v)) != ("title", str)}


def tool(name: str, *capabilities: str) -> Callable[[Callable[..., str]], Tool]:
    """Make a Tool of a function whose first parameter is the Environment: it is not told."""

    def wrap(function: Callable[..., str]) -> Tool:
        purpose, _, rest = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
        meanings = dict(re.findall(r"^(\w+): (.+)$", rest, flags=re.M))
        hints = get_type_hints(function, localns={"Environment": Environment}, include_extras=True)
        fields: dict[str, Any] = {}
        for p in inspect.signature(function).parameters.values():
            if hints[p.name] is Environment:
                continue
            default = ... if p.default is p.empty else p.default
            fields[p.name] = (hints[p.name], Field(default, description=meanings.get(p.name)))
        model = create_model(
            name, __config__=ConfigDict(extra="ignore", coerce_numbers_to_str=True), **fields
        )
        return Tool(name, frozenset(capabilities), " ".join(purpose.split()), model, function)

    return wrap


def all_tools() -> dict[str, Tool]:
    """T, by wire name, in the order the models see them."""
    return _load(FILES)


def tools_for(task: Task, code: bool = True) -> dict[str, Tool]:
    """The tools that a task has something for: one that looks or listens needs a file to open, and
    one that runs code needs a sandbox.
    """
    kinds = {m.modality for m in task.media}
    kinds |= {"audio"} if "video" in kinds else set()
    unfit = SKILL_OF.keys() - kinds | (set() if code else {"code"})
    return _load([name for name in FILES if name not in unfit])


FILES = {  # a tool's file is loaded when a task needs it
    "image": "image_analysis",
    "audio": "audio_analysis",
    "video": "video_analysis",
    "search": "google_search",
    "visit": "extract_url_content",
    "code": "execute_code",
}


def _load(files: Iterable[str]) -> dict[str, Tool]:
    found: list[Tool] = [getattr(import_module(f"tools.{f}"), FILES[f]) for f in files]
    return {tool.name: tool for tool in found}
