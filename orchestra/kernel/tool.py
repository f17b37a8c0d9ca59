"""Tools are plain typed functions. Their signature and docstring are what a model reads.

    @tool("EchoAction", "txt")
    def echo(env: Environment, text: str) -> str:
        '''Say a text again.

        text: what to say
        '''
        return text

A tool returns its observation; a ToolError is an observation too. What it does outside of the
program it does within `env.local`, so that it is recorded once and replayed.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from orchestra.kernel.chat import Chat
from orchestra.kernel.folder import Options
from orchestra.kernel.money import Purse
from orchestra.kernel.prompts import named, say
from orchestra.kernel.tape import Tape
from orchestra.kernel.vocabulary import (
    Backend,
    Media,
    Modality,
    ModelMistake,
    Pool,
    Task,
    ToolError,
)

# Types of parameters that name a file of the task; the schema lists the names.
ImageFile = Annotated[str, "image"]
AudioFile = Annotated[str, "audio"]
VideoFile = Annotated[str, "video"]
DataFile = Annotated[str, "file"]
SEARCH = "GoogleSearchAction"  # those that agents have rules about
VISIT = "ExtractUrlContentAction"
CODE = "ExecuteCodeAction"
NOT_FOR_MODELS = {"title", "default"}  # the signature has the defaults


@dataclass(frozen=True)
class Environment:
    """What one sub-agent can access: the task's media, its own folder, and models through its own
    purse. Parallel sub-tasks share no mutable state (App. B.1: cloned environments). `depends_on`
    gives a digest of what else than its arguments an outcome of `local` depends on: --reuse takes
    an outcome only where it is equal.
    """

    task: Task
    backend: Backend
    pool: Pool
    chat: Chat
    tape: Tape
    purse: Purse
    folder: Path  # created when first written to
    options: Options = field(default_factory=Options)
    depends_on: Callable[[], str] = str

    def local(
        self, kind: str, arguments: dict[str, Any], function: Callable[[], Any]
    ) -> Any:
        """Calls function() and records its JSON value, or its ToolError. A replay returns the
        recording. Wrap other side effects in env.local(...) so that they are recorded.
        """
        return self.tape.value(kind, arguments, function, self.depends_on)

    def media(self, name: str, modality: Modality) -> Media:
        """The file of the task that a model names. Raises ToolError for any other file."""
        file = self.task.file(name)
        if file is None:
            names = [named(known) for known in names_of(self.task, modality)]
            known = ", ".join(names) or "none"
            raise ToolError(
                say("notes", "unknown_file", name=name, modality=modality, known=known)
            )
        is_sound_of_video = modality == "audio" and file.modality == "video"
        if file.modality != modality and not is_sound_of_video:
            kinds = {"actual": file.modality, "wanted": modality}
            raise ToolError(say("notes", "wrong_modality", name=named(name), **kinds))
        return file


def names_of(task: Task, modality: Modality) -> list[str]:
    """The names of the files of one kind."""
    return [m.name for m in task.media if m.modality == modality]


@dataclass(frozen=True)
class Tool:
    """g of T with psi(g), Eq. 7. `depends_on`: as in its Environment, for a task."""

    name: str
    capabilities: frozenset[str]
    inputs: dict[str, Any]  # the JSON schema of its parameters
    signature: str  # the parameters as a model reads them
    manual: str  # the whole description for a model
    check: Callable[[dict[str, Any]], dict[str, Any]]  # raises ValueError
    function: Callable[..., str]  # takes the Environment and the arguments
    files: Mapping[str, Modality] = field(
        default_factory=dict
    )  # parameters that name a file
    depends_on: Callable[[Task], str] = lambda task: ""

    def __call__(self, env: Environment, params: Mapping[str, Any]) -> str:
        """The observation. Raises ModelMistake for invalid parameters, ToolError for a failure."""
        try:
            arguments = self.check(dict(params))
        except ValueError as problems:
            told: Any = {"tool": self.name, "problems": problems}
            raise ModelMistake("bad_params", signature=self.signature, **told) from None
        depends_on = partial(self.depends_on, env.task)
        return self.function(replace(env, depends_on=depends_on), **arguments)

    def schema(self, task: Task) -> dict[str, Any]:
        """The JSON schema of its parameters; a file parameter lists the task's files."""
        if not self.files:
            return self.inputs
        properties = dict(self.inputs["properties"])
        for name, modality in self.files.items():
            names = names_of(task, modality)
            if names:
                properties[name] = {**properties[name], "enum": names}
        return {**self.inputs, "properties": properties}


def tool(
    name: str,
    *capabilities: str,
    plain: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> Callable[[Callable[..., str]], Tool]:
    """Turns a function into a Tool. The model does not see a parameter of type Environment. `plain`
    takes references out of the schema, which nested types bring.
    """

    def wrap(function: Callable[..., str]) -> Tool:
        model = _arguments_of(name, function)
        schema = plain(model.model_json_schema())
        signature = ", ".join(_typed(*row) for row in schema["properties"].items())
        return Tool(
            name=name,
            capabilities=frozenset(capabilities),
            inputs=_object_schema(schema),
            signature=signature,
            manual=_manual(f"{name}({signature})", function, schema["properties"]),
            check=lambda params: _checked(model, params),
            function=function,
            files=_file_parameters(model),
            depends_on=partial(of_user, function),
        )

    return wrap


def of_user(function: Any, task: Task) -> str:
    """What a tool or a sub-agent of the user depends on; "" for the shipped ones."""
    from orchestra.kernel import depends  # a replay does not ask

    return depends.of_user(function, task)


def _arguments_of(name: str, function: Callable[..., str]) -> type[BaseModel]:
    types = get_type_hints(function, localns=globals(), include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if types[parameter.name] is Environment:
            continue
        is_required = parameter.default is inspect.Parameter.empty
        default = Field(... if is_required else parameter.default)
        fields[parameter.name] = (types[parameter.name], default)
    config = ConfigDict(extra="ignore", coerce_numbers_to_str=True)
    return create_model(name, __config__=config, **fields)


def _object_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: _shape(row) for name, row in schema["properties"].items()},
        "required": schema.get("required", []),
        "additionalProperties": False,
    }


def _shape(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in NOT_FOR_MODELS}


def _typed(name: str, row: Mapping[str, Any]) -> str:
    """A parameter in a signature, as in "k: integer = 5"."""
    shape = _shape(row)
    is_plain = shape.keys() <= {"type", "enum"}
    kind = shape.get("type", "any") if is_plain else json.dumps(shape)
    default = f" = {row['default']!r}" if "default" in row else ""
    return f"{name}: {kind}{default}"


def _manual(
    heading: str, function: Callable[..., str], names: Mapping[str, Any]
) -> str:
    """The heading, the purpose in one line, and a line for each parameter, from the docstring."""
    purpose, _, rest = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
    meanings = dict(re.findall(r"^(\w+): (.+)$", rest, flags=re.M))
    rows = [f"{name}: {meanings.get(name, '')}" for name in names]
    return "\n    ".join([heading, " ".join(purpose.split()), *rows])


def _checked(model: type[BaseModel], params: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, from what a model sent; a null counts as left out. Raises ValueError."""
    given = {name: value for name, value in params.items() if value is not None}
    try:
        return dict(model.model_validate(given))
    except ValidationError as error:
        rows = [(".".join(map(str, row["loc"])), row["msg"]) for row in error.errors()]
        problems = "; ".join(f"{where or 'params'}: {what}" for where, what in rows)
        raise ValueError(problems) from None


def _file_parameters(model: type[BaseModel]) -> dict[str, Modality]:
    found: dict[str, Modality] = {}
    for name, described in model.model_fields.items():
        for mark in described.metadata:
            if mark in get_args(Modality):
                found[name] = mark
    return found
