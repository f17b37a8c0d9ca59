"""Decision examples (s_t, y*_t), end of section 3.3.1: JSONL with a schema version.

    recorded.py    a recorded run becomes such examples, one a round
    __main__.py    python -m orchestra.training.examples: the command

MiniGAIA's examples come from world.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from orchestra.kernel.folder import write_whole
from orchestra.kernel.vocabulary import ConfigError, State
from orchestra.training.options import Checked

STATE = TypeAdapter(State)


class Message(TypedDict):
    role: str
    content: str


class Example(Checked):
    """One decision to learn.

    messages    s_t as the main agent saw it
    reference   y*_t as the JSON object that it should emit
    meta        `state`, s_t itself (see `state_of`); `answer`, the right one (several with " or "
                between them), or "" if it is not known; `split`; for MiniGAIA `entities` and
                `world` (world.py)
    """

    version: Literal[2] = Field(2, alias="schema")
    id: str
    messages: Annotated[tuple[Message, ...], Field(min_length=1)]
    reference: dict[str, Any]
    meta: dict[str, Any]


def write(path: Path, examples: Sequence[Example]) -> None:
    """Write the examples as JSONL. After a kill the file is complete or absent."""
    lines = []
    for example in examples:
        row = example.model_dump(by_alias=True)
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(lines))


def read(path: Path) -> list[Example]:
    """The examples of a file. Raises ConfigError, which names the line, for one that is not."""
    text = path.read_text("utf-8-sig", errors="replace")
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found.append(_example(line))
        except (ValueError, TypeError, RecursionError, ConfigError) as error:
            why = f"is not an example ({error})"
            raise ConfigError(f"{path}, line {number}: {why}") from None
    if not found:
        raise ConfigError(f"{path}: has no examples")
    return found


def _example(line: str) -> Example:
    """Raises ValueError, TypeError, RecursionError or ConfigError for a line that is not one."""
    example = Example(**json.loads(line))
    read_by_tokenizer = [example.messages, example.reference]
    json.dumps(read_by_tokenizer, ensure_ascii=False).encode()  # no half surrogate pair
    return example


# ---- s_t as JSON and back ------------------------------------------------------------------------


def state_row(state: State) -> dict[str, Any]:
    """s_t as JSON, without the paths of files and without what only a run needs."""
    row = asdict(state)
    del row["capabilities"], row["refused"]
    row["task"]["media"] = [
        {"modality": m.modality, "name": m.name} for m in state.task.media
    ]
    return row


def state_of(row: Mapping[str, Any]) -> State:
    """s_t of a row that `state_row` made, before or after JSON. Raises ValueError, TypeError or
    KeyError for another row.
    """
    task = dict(row["task"])
    task["media"] = [{**m, "path": "", "sha256": ""} for m in task["media"]]
    return STATE.validate_python({**row, "task": task})
