"""A run on disk: everything that was asked, answered and paid, in one folder that can be copied,
replayed and resumed.

run.json  trajectory.jsonl  tape.jsonl  blobs/  media/  work/  log.txt  lock
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from orchestra.pool import Engine, Pool
from orchestra.vocabulary import Backend, ConfigError, Media, Modality, Price, Task

VERSION = 1
MAX_BYTES: dict[Modality, int] = {"image": 100 << 20, "audio": 1 << 30, "video": 4 << 30}
FREE_BYTES = 16 << 20


@dataclass(frozen=True)
class Options:
    """What a run was asked for beside the question. `parallel` is K_max of Eq. 10 and the number of
    threads.
    """

    method: str = "orchestra-o1"
    rounds: int = 10
    steps: int = 30
    parallel: int = 8
    budget_usd: float | None = None
    timeout_s: float = 120.0
    stop_threshold: float | None = None  # tau_stop of Eq. 22; None: off
    context_tokens: int = 6000  # L_ctx of Eq. 20


@dataclass(frozen=True)
class Manifest:
    """run.json: what the main agent was given. A replay needs nothing else of the user."""

    task: Task
    pool: Pool
    options: Options
    parent: str = ""


def default_path() -> Path:
    return Path("runs") / time.strftime("%Y%m%d-%H%M%S")


def create(path: Path) -> Path:
    """An empty folder for a new run; with a number behind it where a default name is taken."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(
            f"{path}: is there already and not empty; give another --out, or --resume it"
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{path}: can not be made ({error.strerror}); give another --out"
        ) from None
    check_space(path)
    return path


def check_space(path: Path) -> None:
    disk = os.statvfs(path)
    if disk.f_bavail * disk.f_frsize < FREE_BYTES:
        raise ConfigError(
            f"{path}: less than {FREE_BYTES >> 20} MiB free on this disk; free some, or give another --out"
        )


def manifest_row(manifest: Manifest) -> dict[str, Any]:
    """The manifest as JSON."""
    task = {
        "question": manifest.task.question,
        "media": [_media_row(m) for m in manifest.task.media],
    }
    return {
        "task": task,
        "pool": asdict(manifest.pool),
        "options": asdict(manifest.options),
        "parent": manifest.parent,
    }


def write_manifest(path: Path, manifest: Manifest) -> None:
    part = path / "run.json.part"
    row = {"v": VERSION, **manifest_row(manifest)}
    try:
        part.write_text(json.dumps(row, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        part.rename(path / "run.json")
    except OSError as error:
        raise ConfigError(
            f"{path}: can not be written ({error.strerror}); free some space, or give another --out"
        ) from None


def _media_row(m: Media) -> dict[str, str]:
    return {"modality": m.modality, "name": m.name, "sha256": m.sha256}


def read_manifest(path: Path) -> Manifest:
    """The manifest of a run folder. Raises ConfigError: no run folder, a newer version, a damaged
    file.
    """
    file = path / "run.json"
    if not file.is_file():
        raise ConfigError(
            f"{path}: is no run folder (it has no run.json); give a folder that a run wrote"
        )
    try:
        row = json.loads(file.read_text(encoding="utf-8"))
        if row["v"] > VERSION:
            raise ConfigError(
                f"{file}: version {row['v']}, and this program reads up to {VERSION}; use a newer orchestra-min"
            )
        media = tuple(
            Media(m["modality"], m["name"], path / "media" / m["name"], m["sha256"])
            for m in row["task"]["media"]
        )
        options = Options(**row["options"])
        return Manifest(
            Task(row["task"]["question"], media), _pool(row["pool"]), options, row["parent"]
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{file}: damaged ({type(error).__name__}: {error}); restore it from a copy"
        ) from None


def _pool(row: dict[str, Any]) -> Pool:
    backends = tuple(
        Backend(**{**b, "price": Price(**b["price"]) if b["price"] else None})
        for b in row["backends"]
    )
    return Pool(backends, row["main"], {k: Engine(**e) for k, e in row["engines"].items()})


@contextlib.contextmanager
def removed_if_unused(path: Path) -> Iterator[None]:
    """Take a new run folder away again if the run fails before anything is on its tape."""
    try:
        yield
    except BaseException:
        tape = path / "tape.jsonl"
        if not tape.exists() or tape.stat().st_size == 0:
            shutil.rmtree(path, ignore_errors=True)
        raise


@contextlib.contextmanager
def locked(path: Path, shared: bool = False) -> Iterator[None]:
    """Hold the folder: one process writes a run; replays may read it together."""
    file = path / "lock"
    if shared and not file.exists():
        yield
        return
    with file.open("r" if shared else "a") as handle:
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{path}: is in use by another process; wait for it, or copy the folder"
            ) from None
        yield


def fork(source: Path, target: Path, from_round: int) -> None:
    """A new run folder that holds the rounds before `from_round` of `source`; later rounds are
    asked anew.
    """
    manifest = read_manifest(source)
    for name in ("media", "blobs", "work"):
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, symlinks=True)
    keep = re.compile(r"r(\d+)/")
    with (
        (source / "tape.jsonl").open(encoding="utf-8") as old,
        (target / "tape.jsonl").open("w", encoding="utf-8") as new,
    ):
        for line in old:
            if not line.endswith("\n"):
                break
            round_ = keep.match(json.loads(line).get("call", ""))
            if round_ is None or int(round_[1]) < from_round:
                new.write(line)
    write_manifest(target, replace(manifest, parent=f"{source.name} from round {from_round}"))


# ---- media ---------------------------------------------------------------------------------------


def check_media(files: Iterable[tuple[Modality, Path]]) -> list[tuple[Modality, Path]]:
    """Look at each file before anything is made or paid. Raises ConfigError: missing, empty, huge,
    mistyped.
    """
    checked = []
    for modality, path in files:
        flag = f"--{modality} {path}"
        if not path.exists():
            raise ConfigError(f"{flag}: there is no such file")
        if not path.is_file():
            raise ConfigError(f"{flag}: is not a file")
        try:
            size = path.stat().st_size
            path.open("rb").close()
        except OSError as error:
            raise ConfigError(f"{flag}: can not be read ({error.strerror})") from None
        if size == 0:
            raise ConfigError(f"{flag}: is empty")
        if size > MAX_BYTES[modality]:
            raise ConfigError(
                f"{flag}: {size >> 20} MiB is over the limit of {MAX_BYTES[modality] >> 20} MiB; cut or shrink it"
            )
        kinds = _kinds(path)
        if modality not in kinds:
            hint = (
                f"it holds {' and '.join(sorted(kinds))}: use --{min(kinds)}"
                if kinds
                else "no picture and no sound can be read from it"
            )
            raise ConfigError(f"{flag}: is no {modality} file; {hint}")
        checked.append((modality, path))
    return checked


def _kinds(path: Path) -> set[str]:
    """What a file is by its content: image, audio, video (with or without sound)."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as picture:
            picture.verify()
        return {"image"}
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        pass
    import av

    try:
        with av.open(str(path)) as container:
            return {s.type for s in container.streams if s.type in ("audio", "video")}
    except (av.FFmpegError, OSError, ValueError):
        return set()


def import_media(folder: Path, files: Sequence[tuple[Modality, Path]]) -> tuple[Media, ...]:
    """Copy the media into the run folder, under names a model can write without a slip."""
    media: list[Media] = []
    for modality, path in files:
        name = _plain_name(path, {m.name for m in media})
        target = folder / "media" / name
        try:
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)
        except OSError as error:
            raise ConfigError(
                f"{target}: can not be written ({error.strerror}); free some space, or give another --out"
            ) from None
        with target.open("rb") as f:
            media.append(
                Media(modality, name, target, hashlib.file_digest(f, "sha256").hexdigest())
            )
    return tuple(media)


def _plain_name(path: Path, taken: set[str]) -> str:
    stem = re.sub(r"[^\w-]+", "_", path.stem).strip("_-")[:60] or "media"
    suffix = re.sub(r"[^\w.]+", "", path.suffix)[:10]
    numbers = ("", *(f"_{n}" for n in range(2, len(taken) + 2)))
    return next(name for n in numbers if (name := f"{stem}{n}{suffix}") not in taken)
