"""Decision examples (s_t, y*_t), end of section 3.3.1, as JSONL with a schema version.

python -m training.examples runs/a runs/b --out examples.jsonl      makes them of recorded runs
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from orchestra.vocabulary import ConfigError, State
from runtime.pool import Checked
from runtime.run_folder import write_whole
from runtime.tape import adapter


class Message(TypedDict):
    role: str
    content: str


class Example(Checked):
    """One decision to learn. `messages` is s_t as the main agent saw it, `reference` is y*_t as the
    JSON object that it should emit. `meta` has `state` (s_t itself, see `state_of`), `answer` (the
    right one, or "" if it is not known), `split`, and of MiniGAIA `world` (training/world.py).
    """

    version: Literal[2] = Field(2, alias="schema")
    id: str
    messages: Annotated[tuple[Message, ...], Field(min_length=1)]
    reference: dict[str, Any]
    meta: dict[str, Any]


def write(path: Path, examples: Sequence[Example]) -> None:
    """Write the examples as JSONL. After a kill the file is complete or absent."""
    rows = [json.dumps(e.model_dump(by_alias=True), ensure_ascii=False) for e in examples]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(f"{row}\n" for row in rows))


def read(path: Path) -> list[Example]:
    """The examples of a file. Raises ConfigError, which names the line, for one that is not."""
    found = []
    for n, line in enumerate(path.read_text("utf-8-sig", errors="replace").split("\n"), 1):
        try:
            found += [Example(**json.loads(line))] if line.strip() else []
        except (ValueError, TypeError, ConfigError) as error:
            raise ConfigError(f"{path}, line {n}: is not an example ({error})") from None
    if not found:
        raise ConfigError(f"{path}: has no examples")
    return found


# ---- s_t as JSON and back ------------------------------------------------------------------------


def state_row(state: State) -> dict[str, Any]:
    """s_t as JSON, without the paths of files."""
    media = [{"modality": m.modality, "name": m.name} for m in state.task.media]
    row = asdict(state)
    return {**row, "task": {**row["task"], "media": media}}


def state_of(row: Mapping[str, Any]) -> State:
    """s_t of a row that `state_row` made, before or after JSON. Raises ValueError or KeyError."""
    media = [{**m, "path": "", "sha256": ""} for m in row["task"]["media"]]
    s_t: State = adapter(State).validate_python({**row, "task": {**row["task"], "media": media}})
    return s_t


if __name__ == "__main__":
    from training.recorded import main  # which reads this module

    sys.exit(main())
