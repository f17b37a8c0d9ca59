"""The user's texts in place of those in prompts/ (--texts FOLDER). Released models were trained on
texts of their own; docs/released-models.md says where those are.

A folder has texts.toml and the files that it names:

    method = "toolorchestra"             # optional: the --method that the texts are for
    tools = "tools.json"                 # optional: what models read about the tools

    [calls.main]                         # a call: its messages in order
    response_format = "none"             # or "schema", which is the default, or "json_object"
    keys = ["action", "reasoning"]       # the keys of the schema that come first
    messages = [{ role = "system", file = "system.md" }, { role = "user", file = "user.md" }]

    [pieces]                             # short texts, of which variables are made
    models_row = "- ${name}"

    [limits]
    document_chars = 1200

All texts are templates of string.Template, and are sent exactly as they are written. A variable
that is a list, such as ${models}, is made of pieces: `models_row` for each entry, `models_join`
between two (a line break by default), `models` around all of them (its variable is ${rows}), and
`models_empty` where there are none.

    >>> texts = Texts({"texts.toml": 'pieces = { models_row = "<${name}>", models_join = " " }'})
    >>> texts.rows("models", [{"name": "a"}, {"name": "b"}])
    '<a> <b>'

The texts are stored in run.json, so a replay does not need the folder.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from string import Template
from typing import Annotated, Any, Literal

from pydantic import Field

from orchestra.runtime import outside
from orchestra.runtime.pool import Checked, Invalid
from orchestra.runtime.reply_schema import JsonSchema
from orchestra.seams import Messages, Schema
from orchestra.vocabulary import ConfigError

TOML = "texts.toml"
MAX_BYTES = 1 << 20  # of one file
MAX_FILES = 50
MAX_JSON_CHARS = 8 << 20  # of all of them together, which run.json has room for
NAME = re.compile(r"[\w-][\w.-]{0,99}")
JSON_OBJECT: Schema = ("json_object", {})  # any JSON object
Values = Mapping[str, object]


# ---- texts.toml ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Message:
    """One message of a call. `file`: its text."""

    role: Literal["system", "developer", "user", "assistant"]
    file: str


@dataclass(frozen=True)
class Call:
    """The messages of a call, and how its reply is asked for."""

    messages: Annotated[tuple[Message, ...], Field(min_length=1, max_length=10)]
    response_format: Literal["schema", "json_object", "none"] = "schema"
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limits:
    """`document_chars`: how much the main agent reads of each document; 0: all of it."""

    document_chars: Annotated[int, Field(ge=0)] = 0


class Layout(Checked):
    """texts.toml. `method` and `dom`: the options that the texts are for; "": any."""

    parts = (Message, Call, Limits)
    method: str = ""
    dom: Literal["", "low", "high"] = ""
    tools: str = ""
    calls: dict[str, Call] = {}
    pieces: dict[str, str] = {}
    limits: Limits = Limits()

    @property
    def files(self) -> list[str]:
        """The names of the files that it names, each once."""
        names = [m.file for call in self.calls.values() for m in call.messages]
        if self.tools:
            names.append(self.tools)
        return list(dict.fromkeys(names))


def described(files: Mapping[str, str]) -> str:
    """The texts of a run in few words, which differ for other texts."""
    sha256 = hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()
    return f"--texts ({len(files)} files, SHA-256 {sha256[:8]})"


class Files(dict[str, str]):
    """The texts of files by name. `folder`, where they were read, is for errors only."""

    folder: Path


def read(folder: Path) -> Files:
    """texts.toml and the files that it names. Raises ConfigError."""
    files = Files({TOML: _text_of(folder, TOML)})
    files.folder = folder
    try:
        names = _layout(files[TOML]).files
    except ConfigError as error:
        raise ConfigError(f"{folder}: {error}") from None
    if len(names) > MAX_FILES:
        raise ConfigError(f"{folder / TOML}: names over {MAX_FILES} files")
    for name in names:
        if not NAME.fullmatch(name):
            problem = f"{name!r} is not the name of a file next to it"
            raise ConfigError(f"{folder / TOML}: {problem}")
        files[name] = _text_of(folder, name)
    return files


def _text_of(folder: Path, name: str) -> str:
    path = folder / name
    try:
        with outside.opened(path, MAX_BYTES) as file:
            return file.read().decode("utf-8-sig")  # editors on Windows write a mark
    except FileNotFoundError:
        raise ConfigError(
            f"{path} does not exist; see docs/released-models.md"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8; save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None


def _layout(text: str) -> Layout:
    """Raises ConfigError."""
    try:
        return Layout(**tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{TOML}: is not TOML ({error})") from None
    except Invalid as error:
        raise ConfigError(f"{TOML}: {error}") from None


# ---- the texts of a run --------------------------------------------------------------------------


class Texts:
    """The texts of one run. `files`: texts.toml and the others, by name."""

    def __init__(self, files: Mapping[str, str]) -> None:
        """Raises ConfigError if a file is missing or cannot be read."""
        if TOML not in files:
            raise ConfigError(f"has no {TOML}")
        self.layout = _layout(files[TOML])
        missing = [name for name in self.layout.files if name not in files]
        if missing:
            raise ConfigError(f"{TOML}: names {missing[0]}, which does not exist")
        if len(json.dumps(dict(files))) > MAX_JSON_CHARS:
            raise ConfigError("the files are larger than 8 MiB together")
        self.files = files

    def has(self, call: str) -> bool:
        return call in self.layout.calls

    def messages(self, call: str, values: Values, notice: str = "") -> Messages:
        """The messages of a call. `notice`: what no template has, such as the mistake of the reply
        before; it is written below the last message.
        """
        messages: Messages = []
        for m in self.layout.calls[call].messages:
            content = Template(self.files[m.file]).substitute(values)
            messages.append({"role": m.role, "content": content})
        if notice:
            messages[-1]["content"] += "\n\n" + notice
        return messages

    def schema(self, call: str, schema: Schema) -> Schema | None:
        """The schema of the reply to a call, as the folder wants it."""
        layout = self.layout.calls[call]
        if layout.response_format == "none":
            return None
        if layout.response_format == "json_object":
            return JSON_OBJECT
        name, shape = schema
        return name, _ordered(dict(shape), layout.keys)

    def piece(self, name: str, default: str = "", /, **values: object) -> str:
        """A piece, filled in; or `default`, a text, if the folder does not have it."""
        if name not in self.layout.pieces:
            return default
        return Template(self.layout.pieces[name]).substitute(values)

    def rows(self, name: str, entries: Iterable[Values]) -> str:
        """A list as text. The piece NAME_row_KIND is for entries whose `kind` is KIND."""
        texts = []
        for values in entries:
            row = f"{name}_row_{values.get('kind', '')}"
            if row not in self.layout.pieces:
                row = f"{name}_row"
            texts.append(self.piece(row, **values))
        if not texts:
            return self.piece(f"{name}_empty")
        rows = self.piece(f"{name}_join", "\n").join(texts)
        return self.piece(name, rows, rows=rows)

    @cached_property
    def tools(self) -> list[dict[str, Any]]:
        """The tools of the folder, as functions of the OpenAI API: [{"type", "function"}]."""
        if not self.layout.tools:
            return []
        listed: list[dict[str, Any]] = json.loads(self.files[self.layout.tools])
        return listed

    def tool_rows(self, tools: Iterable[tuple[str, str, JsonSchema]]) -> list[Values]:
        """Tools, each (name, manual, inputs), as the folder describes them and in its order. Below
        them those that it does not have, as the program describes them.
        """
        own = {tool["function"]["name"]: tool["function"] for tool in self.tools}
        order = list(own)
        rows: list[Values] = []
        for name, manual, inputs in tools:
            about = own.get(name, {})
            row = {
                "name": name,
                "description": about.get("description", manual),
                "parameters": json.dumps(about.get("parameters", inputs), indent=2),
                "manual": manual,
            }
            rows.append(row)
        last = len(order)
        rows.sort(key=lambda r: order.index(r["name"]) if r["name"] in own else last)
        return rows


def _ordered(shape: JsonSchema, keys: Iterable[str]) -> JsonSchema:
    """A schema of objects whose properties begin with these keys, in this order."""
    if "anyOf" in shape:
        return {**shape, "anyOf": [_ordered(s, keys) for s in shape["anyOf"]]}
    old = shape.get("properties", {})
    first = [key for key in keys if key in old]
    order = [*first, *(key for key in old if key not in first)]
    properties = {key: old[key] for key in order}
    required = [key for key in order if key in shape.get("required", ())]
    return {**shape, "properties": properties, "required": required}
