"""A run on disk: one folder that can be copied, replayed, resumed and forked.

    run.json  trajectory.jsonl  tape.jsonl  media/  work/  log.txt

With --workdir also workdir/, workdir.git/ and changes.diff (agents/workdir.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from orchestra.runtime import jsonl, outside, tape_file
from orchestra.runtime import pool as pools
from orchestra.runtime.options import SEAMS, Options, variables
from orchestra.runtime.pool import Checked, Invalid, Pool
from orchestra.runtime.secrets import Secrets
from orchestra.vocabulary import ConfigError, Media, Modality, Place, Task

MAX_BYTES = 16 << 20  # of run.json
MAX_MEDIA_BYTES: dict[Modality, int] = {  # of a file; of all media the largest
    "image": 100 << 20,
    "audio": 1 << 30,
    "video": 4 << 30,
    "file": 64 << 20,
}
BEGINNING = "run.json.part"  # until the folder is complete, and then run.json
Only = Literal["", "tools", "models"]
COPIED = {BEGINNING, "media", "workdir", "workdir.git", "work", "tape.jsonl"}


class MediaRow(Checked):
    """A file of the run, as `Media` without its path."""

    model_config = ConfigDict(from_attributes=True)
    modality: Modality
    name: Annotated[str, Field(pattern=r"^[^/\x00]+$")]
    sha256: str


class Earlier(Checked):
    """The settings of a fork in the rounds before `before`, which it keeps."""

    before: Annotated[int, Field(ge=2)]
    pool: Pool
    options: Options
    code: bool = True


class Manifest(Checked):
    """run.json: the question, its media, the pool and the options."""

    v: Literal[3] = 3
    question: str
    media: tuple[MediaRow, ...] = ()
    pool: Pool
    options: Options
    code: bool = True  # whether code could run, in a sandbox or with --unsafe-code
    workdir: str = ""  # the user's repository
    parent: str = ""
    from_round: int = 0  # of a fork: the first round that it does not keep
    # of a fork, in order: the settings of the rounds that it keeps
    earlier: Annotated[tuple[Earlier, ...], Field(max_length=100)] = ()
    what_if: dict[str, Any] = {}  # of a fork, by place: what is replaced (what_if.py)
    reuse: tuple[str, ...] = ()  # names of runs whose answers are taken
    only: Only = ""  # --only: which of them

    def task(self, folder: Path) -> Task:
        """Raises ConfigError for a media file that is missing or not the one of the run."""
        media = []
        names = {m.name: m.modality for m in self.media}
        digests = _digests(folder / "media", names)
        for m in self.media:
            path = folder / "media" / m.name
            if digests.get(m.name) != m.sha256:
                problem = "is missing or changed; copy the whole run folder"
                raise ConfigError(f"{path} {problem}")
            file = Media(modality=m.modality, name=m.name, path=path, sha256=m.sha256)
            media.append(file)
        repo = _top_of(folder / "workdir") if self.workdir else ()
        return Task(self.question, media=tuple(media), repo=repo)

    def in_round(self, t: int) -> Manifest:
        """The same with the settings of round t."""
        for old in self.earlier:
            if t < old.before:
                settings = {"pool": old.pool, "options": old.options, "code": old.code}
                return self.model_copy(update=settings)
        return self

    @property
    def all_settings(self) -> list[Manifest]:
        """The same with the settings of each part of the run, in order."""
        return [*(self.in_round(old.before - 1) for old in self.earlier), self]

    def write(self, folder: Path) -> None:
        """Write run.json: the last step of a beginning. Raises OSError, ConfigError."""
        text = self.model_dump_json(by_alias=True, indent=1)
        file = folder / "run.json"
        if len(text.encode()) > MAX_BYTES:
            problem = f"would be larger than {MAX_BYTES >> 20} MiB"
            raise ConfigError(f"{file} {problem}; put long text into a file")
        write_whole(file, text)

    def row(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)


def _digests(folder: Path, names: Mapping[str, Modality]) -> dict[str, str]:
    """The SHA-256 of each of these files that is there. Raises ConfigError for one too large."""
    found: dict[str, str] = {}
    left = max(MAX_MEDIA_BYTES.values())
    for name, modality in names.items():
        if os.path.lexists(folder / name):
            most = min(MAX_MEDIA_BYTES[modality], left)
            with outside.opened(folder / name, most) as file:
                left -= os.fstat(file.fileno()).st_size
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _top_of(repo: Path) -> tuple[str, ...]:
    """The names at the top level of a repository; those of folders end in a slash."""
    names = sorted(p.name + ("/" if p.is_dir() else "") for p in repo.iterdir())
    return tuple(name for name in names if name != ".git/")


def checked_secrets(question: str, pool: Pool, options: Options) -> Secrets:
    """The secrets of a run: the keys of its pool and the variables in --mcp. Raises ConfigError for
    what would fail only after the first paid call.
    """
    if not question.strip():
        raise ConfigError("the question is empty; give it a text")
    pools.check(pool, options.budget_usd)
    secrets = Secrets([b.api_key_env for b in pool.backends] + variables(options.mcp))
    if secrets.found_in(pool.model_dump_json()):
        variable = "an environment variable and write its name into api_key_env"
        raise ConfigError(f"the pool has a key in it: put it into {variable}")
    if options.instruction and secrets.found_in(options.instruction):
        raise ConfigError("--instruction: has a key in it; remove it")
    if options.texts and secrets.found_in("\n".join(options.texts.values())):
        raise ConfigError("--texts: has a key in it; remove it")
    for command in options.mcp:
        if secrets.found_in(command):
            advice = "name its variable in single quotes: '$MY_KEY'"
            raise ConfigError(f"--mcp: has a key in it; {advice}")
    return secrets


def name_of(folder: Path) -> str:
    """The name of a folder, as files have it: in UTF-8, which a name need not be."""
    return folder.resolve().name.encode("utf-8", "replace").decode()


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def default_path() -> Path:
    """runs/<time to the microsecond>: runs that start together get folders of their own."""
    return Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S-%f}"


def write_whole(path: Path, text: str) -> None:
    """Write a file and rename it into place: it is complete or absent, also after a power failure.
    Raises OSError, ConfigError.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        with outside.written(part) as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    except OSError as error:
        error.filename = str(path)  # a failed write does not name its file
        raise


def unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{path}: cannot be written ({error.strerror}); free space, or use --out"
    )


def read_manifest(folder: Path) -> Manifest:
    """Raises ConfigError: not a run folder, another version, a damaged file, a link out of it."""
    file = folder / "run.json"
    _check(folder)
    try:
        with outside.opened(file, MAX_BYTES) as data:
            row = outside.parsed(data.read())
        row = _current(row)
        manifest = Manifest(**row)
        for settings in (row, *row.get("earlier", ())):
            _check_seams(settings["options"])
        _check_earlier(manifest)
    except (Invalid, ValueError, TypeError, LookupError, AttributeError) as error:
        why = " ".join(str(error).split())[:200]
        raise ConfigError(f"{file} is damaged, or of another version ({why})") from None
    return manifest


def _check(folder: Path) -> None:
    """Raises ConfigError if it is not a run folder, or has a link or a special file in it."""
    if folder.is_dir() and not is_begun(folder) and _may_begin(folder):
        problem = "is empty, or was interrupted before its first call"
        raise ConfigError(f"{folder} {problem}; use it as --out of a new run")
    if not os.path.lexists(folder / "run.json"):
        raise ConfigError(f"{folder} is not a run folder (no run.json)")
    for part in (folder, folder / "media", folder / "work"):
        outside.check(part)
    outside.check(folder / "workdir.git", deep=True)
    alternates = folder / "workdir.git" / "objects" / "info" / "alternates"
    if os.path.lexists(alternates):  # git's link to objects elsewhere
        problem = "is a link or a special file; a run folder has none"
        raise ConfigError(f"{alternates} {problem}")


def is_begun(folder: Path) -> bool:
    """Whether a folder has its run.json, the last file of a beginning, which is not empty."""
    file = folder / "run.json"
    return os.path.lexists(file) and file.lstat().st_size > 0


def _check_seams(options: dict[str, Any]) -> None:
    """Raises ValueError if run.json has anything but a name where Python may be named."""
    for name in SEAMS:
        if not isinstance(options.get(name, ""), str):
            raise ValueError(f"options.{name} is not a name")


def _check_earlier(manifest: Manifest) -> None:
    """Raises ValueError if earlier settings would hold in a round that is not kept: there they
    would reach endpoints that nobody has named again.
    """
    befores = [old.before for old in manifest.earlier]
    if befores != sorted({*befores}) or max(befores, default=0) > manifest.from_round:
        raise ValueError("earlier: not the settings of kept rounds, in their order")


def _current(row: dict[str, Any]) -> dict[str, Any]:
    """run.json as this version writes it. In version 2, `agent` was `sub_agent`, and MiniGAIA's
    facts were options.
    """
    if row.get("v") != 2:
        return row
    options = dict(row["options"])
    if options.pop("facts", None):
        raise ValueError("--world of an earlier version; make the run again")
    options["agent"] = options.pop("sub_agent", "react")
    return {**row, "v": 3, "options": options}


@contextlib.contextmanager
def begun(path: Path, new_round: int = 1) -> Iterator[Path]:
    """A new run folder, complete once it has its run.json. It is removed if the run fails before
    its first call; at a mistake of the user, before the first call of `new_round` or a later round.
    Raises ConfigError, OSError.
    """
    existed = path.exists()
    if existed and not path.is_dir():
        raise _occupied(path)
    path.mkdir(parents=True, exist_ok=True)
    made = path.absolute()  # the user's Python may change the current folder
    with _claimed(path):
        try:
            yield path
        except BaseException as error:
            first_round = new_round if isinstance(error, ConfigError) else 0
            if not holds_calls(made / "tape.jsonl", first_round):
                made = made.resolve()  # rmtree follows no link
                shutil.rmtree(made, ignore_errors=True)
                if existed:
                    made.mkdir(exist_ok=True)
            raise


@contextlib.contextmanager
def _claimed(path: Path) -> Iterator[None]:
    """The file that becomes run.json is made and locked: of two processes, one gets the folder.
    What a killed process left of its beginning is removed. Raises ConfigError.
    """
    if not _may_begin(path):
        raise _occupied(path)
    descriptor = outside.descriptor(path / BEGINNING, os.O_RDWR | os.O_CREAT)
    try:
        _lock(descriptor, path)
        if not _may_begin(path):  # another process was faster
            (path / BEGINNING).unlink(missing_ok=True)
            raise _occupied(path)
        for left in path.iterdir():
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            elif left.name != BEGINNING:
                left.unlink()
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(f"{path} is in use by another process; wait") from None


def _may_begin(path: Path) -> bool:
    """Whether a folder is empty, or has only what a killed beginning leaves. Before run.json was
    renamed into place, it was an empty file.
    """
    names = {entry.name for entry in path.iterdir()}
    if "run.json" in names and not is_begun(path) and "tape.jsonl" not in names:
        names = names - {"run.json"} | {BEGINNING}
    return not names or (BEGINNING in names and names <= COPIED)


def _occupied(path: Path) -> ConfigError:
    advice = "give another --out, or --resume it"
    return ConfigError(f"{path} exists and is not an empty folder; {advice}")


def holds_calls(path: Path, first_round: int = 0) -> bool:
    """Whether a tape has a call of this round or a later one, or one may be in flight. What belongs
    to no round, as the list of models, counts as round 0.
    """
    if not os.path.lexists(path):
        return False
    try:
        jsonl.Appender(path).unlock()
        located = jsonl.located(path)
        calls = [str(row["call"]) for _, row in located if "call" in row]
    except (OSError, ConfigError):
        return True  # it cannot be read now
    return any(tape_file.round_of(call) >= first_round for call in calls)


def fork(source: Path, target: Path, manifest: Manifest) -> None:
    """Copy the rounds before that of a fork into the new folder `target`. Raises ConfigError."""
    from_round = manifest.from_round
    tape = source / "tape.jsonl"
    last = max((tape_file.round_of(e.call) for e in tape_file.entries(tape)), default=0)
    if not 1 <= from_round <= max(last, 1):
        problem = f"the run in {source} has rounds 1 to {last}"
        raise ConfigError(f"--from-round {from_round}: {problem}")
    folders = [source / name for name in ("media", "workdir", "workdir.git")]
    for folder in sorted((source / "work").glob("r*-t*")):
        place = Place.of_folder(folder.name)
        if place is not None and place.round < from_round:
            folders.append(folder)
    for folder in folders:
        outside.check(folder, deep=True, links=True)
        if folder.is_dir():
            copy = target / folder.relative_to(source)
            shutil.copytree(folder, copy, symlinks=True)
    with outside.written(target / "tape.jsonl") as copied:
        for row in tape_file.exchanges(tape):
            if tape_file.round_of(row["call"]) < from_round:
                row |= {"kept": True, "reused": name_of(source)}
                line = json.dumps(row, ensure_ascii=False)
                copied.write(f"{line}\n".encode("utf-8", "replace"))
    manifest.write(target)
