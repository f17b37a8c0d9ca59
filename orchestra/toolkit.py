"""Tools are plain typed functions. Their signature and docstring are what a model reads.

    @tool("ImageAnalysisAction", "img")
    def image_analysis(env: Environment, query: str, image_path: str) -> str:
        '''What it does, for the model.

        query: what this parameter means
        '''

A tool returns its observation. A ToolError is an observation too: it tells the sub-agent what went
wrong. The file tool_schema describes and checks the parameters.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from orchestra import tool_schema
from orchestra.money import Purse
from orchestra.runtime.chat import Chat
from orchestra.runtime.pool import Pool
from orchestra.runtime.prompts import named, say
from orchestra.runtime.tape import Tape
from orchestra.runtime.texts import Texts
from orchestra.vocabulary import Backend, Cause, Media, Modality, ModelMistake, Task

# Types of parameters that name a file of the task; the schema lists the names.
ImageFile = Annotated[str, "image"]
AudioFile = Annotated[str, "audio"]
VideoFile = Annotated[str, "video"]
DataFile = Annotated[str, "file"]  # neither picture, sound nor video
T = TypeVar("T")
# The shipped tools that agents call by name or have rules about
SEARCH = "GoogleSearchAction"
VISIT = "ExtractUrlContentAction"
CODE = "ExecuteCodeAction"


class ToolError(Exception):
    """The tool failed; the text is the observation."""

    cause: Cause = "tool"


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
    texts: Texts | None = None  # --texts

    @property
    def media_folder(self) -> Path | None:
        if not self.task.media:
            return None
        return self.task.media[0].path.parent

    def media(self, name: str, modality: Modality) -> Media:
        """The media file that a model names. Raises ToolError for any other file."""
        file = self.task.file(name)
        if file is None:
            names = [named(known) for known in _names(self.task, modality)]
            known = ", ".join(names) if names else "none"
            reason = say(
                "notes", "unknown_file", name=name, modality=modality, known=known
            )
            raise ToolError(reason)
        is_sound_of_video = modality == "audio" and file.modality == "video"
        if file.modality != modality and not is_sound_of_video:
            reason = say(
                "notes",
                "wrong_modality",
                name=named(name),
                actual=file.modality,
                wanted=modality,
            )
            raise ToolError(reason)
        return file

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


def _names(task: Task, modality: Modality) -> list[str]:
    return [media.name for media in task.media if media.modality == modality]


@dataclass(frozen=True)
class Tool:
    """g of T with psi(g), Eq. 7."""

    name: str
    capabilities: frozenset[str]
    inputs: dict[str, Any]  # the JSON schema of its parameters
    signature: str  # the parameters as a model reads them
    manual: str  # the whole description for a model: name, purpose, parameters
    # Takes the parameters that a model sent, returns the arguments; raises ValueError.
    check: Callable[[dict[str, Any]], dict[str, Any]]
    function: Callable[..., str]  # takes the Environment and the arguments
    # The parameters that name a file of the task, and the kind of the file.
    files: Mapping[str, Modality] = field(default_factory=dict)

    def __call__(self, env: Environment, params: Mapping[str, Any]) -> str:
        """The observation. Raises ModelMistake for invalid parameters, ToolError for a failure."""
        try:
            arguments = self.check(dict(params))
        except ValueError as problems:
            raise ModelMistake(
                "bad_params",
                tool=self.name,
                problems=str(problems),
                signature=self.signature,
            ) from None
        return self.function(env, **arguments)

    def schema(self, task: Task) -> dict[str, Any]:
        """The JSON schema of its parameters; a file parameter lists the task's files."""
        if not self.files:
            return self.inputs
        properties = dict(self.inputs.get("properties", {}))
        for name, modality in self.files.items():
            names = _names(task, modality)
            if names:
                properties[name] = {**properties[name], "enum": names}
        return {**self.inputs, "properties": properties}


def tool(name: str, *capabilities: str) -> Callable[[Callable[..., str]], Tool]:
    """Turns a function into a Tool. The model does not see a parameter of type Environment."""

    def wrap(function: Callable[..., str]) -> Tool:
        model = tool_schema.arguments_model(name, _fields(function))
        schema = tool_schema.arguments_schema(model)
        signature = tool_schema.signature_of(schema)
        return Tool(
            name=name,
            capabilities=frozenset(capabilities),
            inputs=tool_schema.object_schema(schema),
            signature=signature,
            manual=_manual(f"{name}({signature})", function, schema["properties"]),
            check=partial(tool_schema.checked_arguments, model),
            function=function,
            files=_file_parameters(model),
        )

    return wrap


def _fields(function: Callable[..., str]) -> dict[str, Any]:
    """The type and default of each parameter but the Environment, as pydantic takes them."""
    types = get_type_hints(
        function, localns={"Environment": Environment}, include_extras=True
    )
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if types[parameter.name] is Environment:
            continue
        default = parameter.default
        if default is inspect.Parameter.empty:
            default = ...  # required
        fields[parameter.name] = (types[parameter.name], Field(default))
    return fields


def _manual(
    heading: str, function: Callable[..., str], parameters: Iterable[str]
) -> str:
    """The description for a model, from the docstring: the heading, the purpose in one line, and a
    line for each parameter.
    """
    docstring = inspect.cleandoc(function.__doc__ or "")
    purpose, _, rest = docstring.partition("\n\n")
    meanings = dict(re.findall(r"^(\w+): (.+)$", rest, flags=re.M))
    rows = [f"{name}: {meanings.get(name, '')}" for name in parameters]
    one_line = " ".join(purpose.split())
    return "\n    ".join([heading, one_line, *rows])


def _file_parameters(model: type[BaseModel]) -> dict[str, Modality]:
    """The parameters of type ImageFile, AudioFile, VideoFile or DataFile, and the kind of each."""
    modalities = get_args(Modality)
    found: dict[str, Modality] = {}
    for name, field_info in model.model_fields.items():
        for mark in field_info.metadata:
            if mark in modalities:
                found[name] = mark
    return found
