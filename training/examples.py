"""Decision examples (s_t, y*_t), end of section 3.3.1, as JSONL with a schema version.

python -m training.examples runs/a runs/b --out examples.jsonl      makes them of recorded runs
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from orchestra.vocabulary import ConfigError, State
from runtime.pool import Checked
from runtime.run_folder import write_whole
from runtime.tape import adapter

SCHEMA = 2


@dataclass(frozen=True)
class Example:
    """One decision to learn. `messages` is s_t as the main agent saw it, `reference` is y*_t as the
    JSON object that it should emit. `meta` has `state` (s_t itself, see `state_of`), `answer` (the
    right one, or "" where it is not known), `split`, and of MiniGAIA `world` (training/world.py).
    """

    id: str
    messages: tuple[dict[str, str], ...]
    reference: dict[str, Any]
    meta: dict[str, Any]


class _Message(TypedDict):
    role: str
    content: str


class _Row(Checked):
    version: Literal[2] = Field(alias="schema")
    id: str
    messages: Annotated[list[_Message], Field(min_length=1)]
    reference: dict[str, Any]
    meta: dict[str, Any]


def write(path: Path, examples: Sequence[Example]) -> None:
    """The examples as JSONL, one a line, there whole or not at all."""
    rows = [json.dumps({"schema": SCHEMA, **asdict(e)}, ensure_ascii=False) for e in examples]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(f"{row}\n" for row in rows))


def read(path: Path) -> list[Example]:
    """The examples of a file. Raises ConfigError, which names the line, for any that is not one."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give a file of examples") from None
    found = []
    for n, line in enumerate(lines, 1):
        try:
            row = _Row(**json.loads(line)) if line.strip() else None
            json.dumps(
                row and [row.messages, row.reference], ensure_ascii=False
            ).encode()  # no half of a character
        except (ValueError, TypeError, RecursionError, ConfigError) as error:
            where = f"{path}, line {n}: is not an example"
            raise ConfigError(f"{where} ({error}); make the file again") from None
        if row:
            messages = tuple({**m} for m in row.messages)
            found.append(Example(row.id, messages, row.reference, row.meta))  # type: ignore[arg-type]
    if not found:
        raise ConfigError(f"{path}: has no examples; make it again")
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
