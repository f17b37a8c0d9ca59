"""A run on disk: everything that was asked, answered and paid, in one folder that can be copied,
replayed and resumed.

run.json  trajectory.jsonl  tape.jsonl  blobs/  media/  work/  log.txt  lock
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestra import changes, lines
from orchestra.call import round_of
from orchestra.media import sha256_of
from orchestra.outcomes import holds_paid
from orchestra.pool import Engine, Pool
from orchestra.repository import special_files
from orchestra.secrets import scrub
from orchestra.vocabulary import Backend, ConfigError, Media, Price, Task, can_not_write
from orchestra.workers import Worker

VERSION = 1
FREE_BYTES = 16 << 20


@dataclass(frozen=True)
class Options:
    """What a run was asked for beside the question. `parallel` is K_max of Eq. 10 and the number of
    threads.
    """

    method: str = "orchestra-o1"
    rounds: int | None = None  # None: as many as the method has
    steps: int = 30
    parallel: int = 8
    budget_usd: float | None = None
    timeout_s: float = 120.0
    stop_threshold: float | None = None  # tau_stop of Eq. 22; None: off
    context_tokens: int = 6000  # L_ctx of Eq. 20
    context: str = "curated"  # aorchestra: what a sub-agent is told; curated, none or full
    sub_agent: str = "react"  # aorchestra: react or mini-swe
    mode: str = "rl"  # toolorchestra: rl or prompted
    dom: str = "high"  # mas-orchestra: the degree of MAS, low or high
    allow_hosts: tuple[str, ...] = ()  # internal hosts that may be fetched from
    tools: tuple[str, ...] = ()  # the user's own, as FILE.py:FUNCTION
    mcp: tuple[str, ...] = ()  # commands that start MCP servers

    def __post_init__(self) -> None:
        """Raises ConfigError for a number that no run can have."""
        for name in ("rounds", "steps", "parallel", "timeout_s", "context_tokens"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name}: needs a number above 0, not {value!r}")
            if name != "timeout_s" and value is not None and not isinstance(value, int):
                raise ConfigError(f"{name}: needs a whole number, not {value!r}")
        if self.stop_threshold is not None and not 0 <= self.stop_threshold <= 1:
            raise ConfigError(f"stop_threshold: needs 0 to 1, not {self.stop_threshold!r}")
        if self.budget_usd is not None and not 0 <= self.budget_usd < math.inf:
            raise ConfigError(f"budget_usd: needs an amount of USD, not {self.budget_usd!r}")


@dataclass(frozen=True)
class Manifest:
    """run.json: what the main agent was given. A replay needs nothing else of the user."""

    task: Task
    pool: Pool
    options: Options
    parent: str = ""


def default_path() -> Path:
    """runs/<time to the microsecond>: runs that start together keep apart."""
    return Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S-%f}"


def create(path: Path) -> Path:
    """An empty folder for a new run. Raises ConfigError: taken, can not be made, a full disk."""
    try:
        if not path.exists():
            check_space(path)
            path.mkdir(parents=True)  # of two runs that make it at once, one gets it
        elif not path.is_dir() or any(path.iterdir()):
            raise ConfigError(
                f"{path}: is there already and not empty; give another --out, or --resume it"
            )
    except OSError as error:
        raise ConfigError(
            f"{path}: can not be made ({error.strerror}); give another --out"
        ) from None
    check_space(path)
    return path


def check_space(path: Path, more_bytes: int = 0) -> None:
    """Raises ConfigError where the disk that `path` is on, or will be on, is full."""
    disk = os.statvfs(next(p for p in (path, *path.absolute().parents) if p.exists()))
    needed = FREE_BYTES + more_bytes
    if disk.f_bavail * disk.f_frsize < needed:
        room = f"less than {needed >> 20} MiB free on this disk"
        raise ConfigError(f"{path}: {room}; free some, or give another --out")


def manifest_row(manifest: Manifest) -> dict[str, Any]:
    """The manifest as JSON."""
    task = {
        "question": manifest.task.question,
        "media": [_media_row(m) for m in manifest.task.media],
    }
    return {
        "task": task,
        "pool": asdict(manifest.pool),
        "options": {**asdict(manifest.options), "mcp": [scrub(c) for c in manifest.options.mcp]},
        "parent": manifest.parent,
    }


def write_manifest(path: Path, manifest: Manifest) -> None:
    part = path / "run.json.part"
    row = {"v": VERSION, **manifest_row(manifest)}
    try:
        part.write_text(json.dumps(row, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        part.rename(path / "run.json")
    except OSError as error:
        raise can_not_write(path, error) from None


def stored_row(path: Path) -> dict[str, Any]:
    """The manifest of a folder as it was written, by whatever version of this program."""
    row: dict[str, Any] = json.loads((path / "run.json").read_text(encoding="utf-8"))
    return {k: v for k, v in row.items() if k != "v"}


def _media_row(m: Media) -> dict[str, str]:
    return {"modality": m.modality, "name": m.name, "sha256": m.sha256}


def read_manifest(path: Path) -> Manifest:
    """The manifest of a run folder. Raises ConfigError: no run folder, a newer version, a damaged
    file, a missing one.
    """
    file = path / "run.json"
    try:
        row = json.loads(file.read_text(encoding="utf-8"))
        if row["v"] > VERSION:
            known = f"version {row['v']}, and this program reads up to {VERSION}"
            raise ConfigError(f"{file}: {known}; use a newer orchestra-min")
        media = tuple(
            Media(m["modality"], m["name"], path / "media" / Path(m["name"]).name, m["sha256"])
            for m in row["task"]["media"]
        )
        task, options = Task(row["task"]["question"], media), _options(row["options"])
        manifest = Manifest(task, _pool(row["pool"]), options, row["parent"])
    except OSError:
        raise ConfigError(
            f"{path}: is no run folder (it has no run.json); give a folder that a run wrote"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{file}: damaged ({type(error).__name__}: {error}); restore it from a copy"
        ) from None
    for m in media:
        if not m.path.is_file():
            raise ConfigError(f"{m.path}: is missing; copy the whole run folder")
        if sha256_of(m.path) != m.sha256:
            raise ConfigError(f"{m.path}: is not the file of the run; restore it from a copy")
    return manifest


def _options(row: dict[str, Any]) -> Options:
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
    return Options(**fields)


def _pool(row: dict[str, Any]) -> Pool:
    def backends(rows: list[dict[str, Any]]) -> tuple[Backend, ...]:
        prices = (Price(**b["price"]) if b["price"] else None for b in rows)
        return tuple(Backend(**{**b, "price": p}) for b, p in zip(rows, prices, strict=True))

    engines = {k: Engine(**e) for k, e in row["engines"].items()}
    rows = row.get("workers")
    workers = None if rows is None else tuple(Worker(**w) for w in rows)
    b, beside = backends(row["backends"]), backends(row.get("beside", []))
    return Pool(b, row["main"], engines, workers, row.get("experts", {}), beside)


@contextlib.contextmanager
def begun(path: Path) -> Iterator[Path]:
    """A new run folder, held; it is emptied again, and taken away unless it was there before, where
    the run fails before anything may have been paid for. Raises ConfigError.
    """
    was_there = path.exists()
    create(path)
    with locked(path):
        try:
            yield path
        except BaseException:
            if not holds_paid(path / "tape.jsonl"):
                _empty(path)
                if not was_there:
                    with contextlib.suppress(OSError):  # something is at work in it
                        path.rmdir()
            raise


def _empty(path: Path) -> None:
    """As far as that goes: what failed before is what the user is told."""
    for command in (
        ("chmod", "-R", "u+rwX"),
        ("rm", "-rf"),
    ):  # a repository may hold closed folders
        parts = [str(part) for part in path.absolute().iterdir()]
        if parts:
            subprocess.run([*command, "--", *parts], capture_output=True, check=False)


@contextlib.contextmanager
def locked(path: Path, shared: bool = False) -> Iterator[None]:
    """Hold the folder: one process writes a run; replays may read it together."""
    file = path / "lock"
    if shared and not file.exists():
        yield
        return
    try:
        handle = file.open("r" if shared else "a")
    except OSError as error:
        raise can_not_write(path, error) from None
    with handle:
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{path}: is in use by another process; wait for it, or copy the folder"
            ) from None
        yield


def check_round(path: Path, from_round: int) -> None:
    """Raises ConfigError where the run did not come to `from_round`."""
    if from_round < 1:
        raise ConfigError(f"--from-round {from_round}: rounds are counted from 1")
    calls = (str(entry.get("call")) for entry in lines.read(path / "tape.jsonl"))
    last = max(map(round_of, calls), default=0)
    if from_round > max(last, 1):
        raise ConfigError(
            f"--from-round {from_round}: the last round on the tape of {path} is {last}; give one "
            "up to that, or --resume it without"
        )


def fork(source: Path, target: Path, from_round: int, manifest: Manifest) -> None:
    """Into the new run folder `target` the rounds before `from_round` of `source`; later rounds are
    asked anew. Its tape is there when all the rest is. Raises ConfigError where it can not be
    written.
    """
    try:
        whole = (source / name for name in ("media", "blobs", "workdir"))
        for part in (*whole, *changes.work_folders(source)):
            if part.is_dir() and round_of(part.name) < from_round:
                shutil.copytree(
                    part, target / part.relative_to(source), symlinks=True, ignore=special_files
                )
        if (target / "workdir").is_dir() and (held := changes.work_folders(target)):
            changes.write(target, held[-1])
        part = target / "tape.jsonl.part"
        with contextlib.closing(lines.Appender(part)) as tape:
            for entry in lines.read(source / "tape.jsonl"):
                if round_of(str(entry.get("call"))) < from_round:
                    tape.append(entry)
            tape.append({"v": VERSION, "kept": True})
        write_manifest(target, replace(manifest, parent=f"{source.name} from round {from_round}"))
        part.rename(target / "tape.jsonl")
    except OSError as error:
        raise can_not_write(target, error) from None
