"""Decision examples (s_t, y*_t), end of section 3.3.1, as JSONL with a schema version.

python -m training.examples runs/a runs/b --out examples.jsonl      makes them of recorded runs
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestra.vocabulary import ConfigError, Evidence, Media, State, Task

SCHEMA = 1
FIELDS = {"id": str, "messages": list, "reference": dict, "meta": dict}


@dataclass(frozen=True)
class Example:
    """One decision to learn. `messages` is s_t as the main agent saw it, `reference` is y*_t as the
    JSON object that it should emit. `meta` holds what rewards need: `state` (s_t itself, see
    `state_of`), `answer` (the right one, or "" where it is not known), and what a report groups by:
    level, template, split, evidence.
    """

    id: str
    messages: tuple[dict[str, str], ...]
    reference: dict[str, Any]
    meta: dict[str, Any]


# ---- files ---------------------------------------------------------------------------------------


def write(path: Path, examples: Sequence[Example]) -> None:
    """The examples as JSONL, one a line, there whole or not at all. Raises ConfigError."""
    part = path.with_name(path.name + ".part")
    rows = [
        json.dumps({"schema": SCHEMA, **asdict(e)}, ensure_ascii=False) + "\n" for e in examples
    ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text("".join(rows), encoding="utf-8")
        part.rename(path)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written ({error.strerror}); give another --out"
        ) from None


def read(path: Path) -> list[Example]:
    """The examples of a file. Raises ConfigError, which names the line, for any that is not one."""
    try:
        rows = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); check the path, or make the file with "
            "python -m training.minigaia"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not a text file; give a JSONL file of examples") from None
    found = [_example(row, f"{path}, line {n}") for n, row in enumerate(rows, 1) if row.strip()]
    if not found:
        raise ConfigError(f"{path}: holds no example; make it again")
    return found


def _example(text: str, where: str) -> Example:
    try:
        row = json.loads(text)
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{where}: holds half a character; make the file again") from None
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: is no JSON object; make the file again")
    if row.get("schema") != SCHEMA or row["schema"] is True:
        raise ConfigError(
            f"{where}: has the schema {row.get('schema')!r}, and this program reads {SCHEMA}; make "
            "the file again with this program"
        )
    for name, kind in FIELDS.items():
        if not isinstance(row.get(name), kind):
            raise ConfigError(f"{where}: has no usable {name!r}; make the file again")
    if not row["messages"] or not all(map(_is_message, row["messages"])):
        raise ConfigError(f"{where}: 'messages' are no chat messages; make the file again")
    return Example(row["id"], tuple(row["messages"]), row["reference"], row["meta"])


def _is_message(m: Any) -> bool:
    return isinstance(m, dict) and all(isinstance(m.get(k), str) for k in ("role", "content"))


# ---- s_t as JSON and back ------------------------------------------------------------------------


def state_row(state: State) -> dict[str, Any]:
    """s_t as JSON, without the paths of files."""
    media = [{"modality": m.modality, "name": m.name} for m in state.task.media]
    task = {"question": state.task.question, "media": media}
    rest = {k: v for k, v in asdict(state).items() if k != "task"}
    return {"task": task, **rest}


def state_of(row: Mapping[str, Any]) -> State:
    """s_t of a row that `state_row` made, whether it went through JSON or not."""
    media = tuple(Media(m["modality"], m["name"], Path(), "") for m in row["task"]["media"])
    task = Task(row["task"]["question"], media)

    def tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
        return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}

    history = tuple(Evidence(**tuples(h)) for h in row["history"])
    waiting = {id: tuple(needs) for id, needs in row["waiting"].items()}
    return State(**{**tuples(row), "task": task, "history": history, "waiting": waiting})


if __name__ == "__main__":
    from training.recorded import main  # which reads this module

    sys.exit(main())
