"""A run on disk: one folder that can be copied, replayed, resumed and forked.

    run.json  trajectory.jsonl  tape.jsonl  media/  work/  log.txt

With --workdir also workdir/, workdir.git/ and changes.diff (agents/workdir.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from orchestra.runtime import jsonl
from orchestra.runtime import pool as pools
from orchestra.runtime import tape as tapes
from orchestra.runtime.options import SEAMS, Options, variables
from orchestra.runtime.pool import Checked, Invalid, Pool
from orchestra.runtime.secrets import Secrets
from orchestra.vocabulary import ConfigError, Media, Modality, Place, Task

MAX_CHARS = 16 << 20  # of run.json


class MediaRow(Checked):
    """A file of the run, as `Media` without its path."""

    model_config = ConfigDict(from_attributes=True)
    modality: Modality
    name: Annotated[str, Field(pattern=r"^[^/\x00]+$")]
    sha256: str


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

    def task(self, folder: Path) -> Task:
        """Raises ConfigError for a media file that is missing or not the one of the run."""
        media = []
        for m in self.media:
            path = folder / "media" / m.name
            if not path.is_file() or sha256_of(path) != m.sha256:
                problem = "is missing or changed; copy the whole run folder"
                raise ConfigError(f"{path} {problem}")
            file = Media(modality=m.modality, name=m.name, path=path, sha256=m.sha256)
            media.append(file)
        repo = _top_of(folder / "workdir") if self.workdir else ()
        return Task(self.question, media=tuple(media), repo=repo)

    def write(self, folder: Path) -> None:
        text = json.dumps(self.row(), ensure_ascii=False, indent=1)
        (folder / "run.json").write_text(text, "utf-8")

    def row(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)


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
    for command in options.mcp:
        if secrets.found_in(command):
            advice = "name its variable in single quotes: '$MY_KEY'"
            raise ConfigError(f"--mcp: has a key in it; {advice}")
    return secrets


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def default_path() -> Path:
    """runs/<time to the microsecond>: runs that start together get folders of their own."""
    return Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S-%f}"


def write_whole(path: Path, text: str) -> None:
    """Write a file and rename it into place, so that no reader finds half of it."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.rename(path)


def unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{path}: cannot be written ({error.strerror}); free space, or use --out"
    )


def read_manifest(folder: Path) -> Manifest:
    """Raises ConfigError: not a run folder, another version, a damaged file, a link out of it."""
    file = folder / "run.json"
    if not file.is_file():
        raise ConfigError(f"{folder} is not a run folder (no run.json)")
    try:
        with file.open(encoding="utf-8") as text:
            row = json.loads(text.read(MAX_CHARS))
        row = _current(row)
        manifest = Manifest(**row)
        _check_seams(row["options"])
        json.dumps(row, ensure_ascii=False).encode()  # not half a surrogate pair
    except (
        Invalid,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        why = " ".join(str(error).split())[:200]
        raise ConfigError(f"{file} is damaged, or of another version ({why})") from None
    _check_no_links(folder)
    return manifest


def _check_seams(options: dict[str, Any]) -> None:
    """Raises ValueError if run.json has anything but a name where Python may be named."""
    for name in SEAMS:
        if not isinstance(options.get(name, ""), str):
            raise ValueError(f"options.{name} is not a name")


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


def _check_no_links(folder: Path) -> None:
    """Raises ConfigError for a link, or what is neither a file nor a folder."""
    paths: list[Path] = []
    for part in (folder, folder / "media", folder / "work"):
        if part.is_dir():
            paths += part.iterdir()
    paths += (folder / "workdir.git").rglob("*")
    for path in paths:
        # "alternates" is git's link to objects elsewhere.
        leads_out = path.is_symlink() or path.name == "alternates"
        if leads_out or not (path.is_file() or path.is_dir()):
            problem = "is a link or a special file; a run folder has none"
            raise ConfigError(f"{path} {problem}")


@contextlib.contextmanager
def begun(path: Path) -> Iterator[Path]:
    """A new run folder. It is removed if the run fails before its first call; at a mistake of the
    user, before the first call of a round. Raises ConfigError, OSError.
    """
    existed = path.exists()
    if existed and (not path.is_dir() or any(path.iterdir())):
        advice = "give another --out, or --resume it"
        raise ConfigError(f"{path} exists and is not an empty folder; {advice}")
    path.mkdir(parents=True, exist_ok=True)
    (path / "run.json").touch(exist_ok=False)  # of two processes, one gets the folder
    made = path.resolve()  # the user's Python may change the current folder
    try:
        yield path
    except BaseException as error:
        first_round = 1 if isinstance(error, ConfigError) else 0
        if not holds_calls(made / "tape.jsonl", first_round):
            shutil.rmtree(made, ignore_errors=True)
            if existed:
                made.mkdir(exist_ok=True)
        raise


def holds_calls(path: Path, first_round: int = 0) -> bool:
    """Whether a tape has a call of this round or a later one, or one may be in flight. What belongs
    to no round, as the list of models, counts as round 0.
    """
    if not path.is_file():
        return False
    try:
        jsonl.Appender(path).unlock()
        calls = [str(row["call"]) for row in jsonl.read(path) if "call" in row]
    except (OSError, ConfigError):
        return True  # it cannot be read now
    return any(tapes.round_of(call) >= first_round for call in calls)


def fork(source: Path, target: Path, from_round: int, manifest: Manifest) -> None:
    """Copy the rounds before `from_round` into the new folder `target`. Raises ConfigError."""
    rows = tapes.exchanges(source / "tape.jsonl")
    last = max((tapes.round_of(row["call"]) for row in rows), default=0)
    if not 1 <= from_round <= max(last, 1):
        problem = f"the run in {source} has rounds 1 to {last}"
        raise ConfigError(f"--from-round {from_round}: {problem}")
    folders = [source / name for name in ("media", "workdir", "workdir.git")]
    for folder in sorted((source / "work").glob("r*-t*")):
        place = Place.of_folder(folder.name)
        if place is not None and place.round < from_round:
            folders.append(folder)
    for folder in folders:
        if folder.is_dir():
            copy = target / folder.relative_to(source)
            shutil.copytree(folder, copy, symlinks=True)
    kept = [row for row in rows if tapes.round_of(row["call"]) < from_round]
    lines = [json.dumps({**row, "kept": True}, ensure_ascii=False) for row in kept]
    parent = f"{source.name} from round {from_round}"
    manifest.model_copy(update={"parent": parent}).write(target)
    tape = "".join(f"{line}\n" for line in lines)
    write_whole(target / "tape.jsonl", tape)  # last: without it, a fork is not complete
