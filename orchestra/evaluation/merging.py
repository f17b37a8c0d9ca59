"""One sweep, made of the shards that `evaluate run --shard i/n` answered, each in its own folder.

The result is the sweep that one machine would have made without --shard: it goes on, is scored and
is reported like any other.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from orchestra.evaluation.choosing import shard_of
from orchestra.evaluation.provenance import Settings, difference
from orchestra.evaluation.questions import QuestionRow
from orchestra.evaluation.sweep_folder import (
    newest,
    rows_of,
    settings_of,
    write_settings,
)
from orchestra.runtime import console, outside
from orchestra.runtime.run_folder import write_whole
from orchestra.vocabulary import ConfigError

OF_A_SHARD = "shard", "questions"  # settings that differ between shards


def merge(folders: Sequence[Path], out: Path) -> int:
    """Copy the shards of a sweep into a new one. Returns 0. Raises ConfigError, OSError."""
    shards = _in_order(folders)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out}: exists and is not an empty folder")
    rows: list[QuestionRow] = []
    for folder, _ in shards:
        outside.check(folder)
        outside.check(folder / "runs", deep=True, links=True)
        rows += newest(rows_of(folder)).values()
    for folder, _ in shards:  # sweep.json is the last file: half a merge is not a sweep
        shutil.copytree(
            folder / "runs", out / "runs", symlinks=True, dirs_exist_ok=True
        )
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    write_whole(out / "rows.jsonl", "".join(f"{line}\n" for line in lines))
    settings = _merged([settings for _, settings in shards])
    write_settings(out, settings)
    asked = len(settings["questions"]) * settings["repeat"]
    console.put(f"{out}: {len(rows)} rows of {asked} from {len(shards)} shards")
    return 0


def _in_order(folders: Sequence[Path]) -> list[tuple[Path, Settings]]:
    """Each shard with its settings, the first shard first. Raises ConfigError if one is missing, or
    they are not shards of one sweep.
    """
    found: dict[int, tuple[Path, Settings]] = {}
    sizes: set[int] = set()
    for folder in folders:
        settings = settings_of(folder)
        if not settings.get("shard"):
            raise ConfigError(f"{folder} is not a shard: it was run without --shard")
        if not {"questions", "repeat"} <= settings.keys():
            raise ConfigError(
                f"{folder / 'sweep.json'} is damaged: it has no questions"
            )
        i, n = shard_of(settings["shard"])
        if i in found:
            problem = f"{found[i][0]} and {folder} are both the shard {i}/{n}"
            raise ConfigError(f"{problem}; name each once")
        found[i] = folder, settings
        sizes.add(n)
    if len(sizes) > 1:
        raise ConfigError(
            "these are shards of different sweeps: their numbers of shards differ"
        )
    missing = [i for i in range(1, max(sizes) + 1) if i not in found]
    if missing:
        names = ", ".join(f"{i}/{max(sizes)}" for i in missing[:5])
        raise ConfigError(f"shards are missing: {names}; run them first")
    shards = [found[i] for i in sorted(found)]
    _check_same(shards)
    return shards


def _check_same(shards: Sequence[tuple[Path, Settings]]) -> None:
    """Raises ConfigError if a shard differs in anything but its questions."""
    (first, common), *others = shards
    for folder, settings in others:
        problem = difference(_shared(common), _shared(settings), extend=False)
        if problem:
            raise ConfigError(
                f"{first} {problem} than {folder}; merge shards of one sweep"
            )
        twice = common["questions"].keys() & settings["questions"].keys()
        if twice:
            raise ConfigError(
                f"{first} and {folder} both ask question {min(twice)!r}; "
                "give all shards the same --data and filters"
            )


def _shared(settings: Settings) -> Settings:
    """The settings that all shards of a sweep have in common."""
    return {key: value for key, value in settings.items() if key not in OF_A_SHARD}


def _merged(shards: Sequence[Settings]) -> Settings:
    """The settings of the whole sweep: the questions in the order of their file."""
    per_shard = [list(settings["questions"].items()) for settings in shards]
    longest = max(map(len, per_shard))
    questions = {
        name: value
        for n in range(longest)
        for items in per_shard
        for name, value in items[n : n + 1]
    }
    return {
        **shards[0],
        "questions": questions,
        "shard": None,
        "merged": len(shards),
    }
