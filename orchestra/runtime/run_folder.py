"""A run on disk: one folder that can be copied, replayed, resumed and forked.

run.json  trajectory.jsonl  tape.jsonl  media/  work/  log.txt
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from orchestra.runtime import pool as pools
from orchestra.runtime import tape as tapes
from orchestra.runtime.options import GIVEN_AGAIN, Options, flag_of, spec_of, variables
from orchestra.runtime.pool import Checked, Invalid, Pool
from orchestra.runtime.secrets import Secrets
from orchestra.runtime.trajectory import Trajectory, ended
from orchestra.runtime.trajectory import read as events_of
from orchestra.vocabulary import ConfigError, Media, Modality, Task

MAX_CHARS = 16 << 20  # of run.json


class MediaRow(Checked):
    """A file of the run, as `Media` without its path."""

    model_config = ConfigDict(from_attributes=True)
    modality: Modality
    name: Annotated[str, Field(pattern=r"^[^/\x00]+$")]
    sha256: str


class Manifest(Checked):
    """run.json: the question, its media, the pool and the options."""

    v: Literal[2] = 2
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
                raise ConfigError(
                    f"{path} is missing or changed; copy the whole run folder"
                )
            media.append(Media(m.modality, m.name, path, m.sha256))
        copy = folder / "workdir"
        top = (
            sorted(p.name + "/" * p.is_dir() for p in copy.iterdir())
            if self.workdir
            else []
        )
        return Task(
            self.question, tuple(media), tuple(name for name in top if name != ".git/")
        )

    def write(self, folder: Path) -> None:
        text = json.dumps(self.row(), ensure_ascii=False, indent=1)
        (folder / "run.json").write_text(text, "utf-8")

    def row(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)


def check(question: str, pool: Pool, options: Options) -> Secrets:
    """The secrets of a run: the keys of its pool and the variables in --mcp. Raises ConfigError for
    what would fail only after the first paid call.
    """
    if not question.strip():
        raise ConfigError("the question is empty; give it a text")
    pools.check(pool, options.budget_usd)
    secrets = Secrets([b.api_key_env for b in pool.backends] + variables(options.mcp))
    text = pool.model_dump_json()
    if secrets.text(text) != text:
        raise ConfigError("the pool has a key in it: name its variable in api_key_env")
    if options.instruction and secrets.text(options.instruction) != options.instruction:
        raise ConfigError("--instruction: has a key in it; remove it")
    if any(secrets.text(command) != command for command in options.mcp):
        raise ConfigError(
            "--mcp: has a key in it; name its variable in single quotes: '$MY_KEY'"
        )
    return secrets


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def default_path() -> Path:
    """runs/<time to the microsecond>: runs that start together get folders of their own."""
    return Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S-%f}"


def write_whole(path: Path, text: str) -> None:
    """Write a file, by a rename: no reader finds a part of it."""
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
        manifest = Manifest(**row)
        json.dumps(row, ensure_ascii=False).encode()  # not half a surrogate pair
    except (Invalid, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{file} is damaged, or of another version ({' '.join(str(error).split())[:200]})"
        ) from None
    inside = (folder, folder / "media", folder / "work")
    paths = [p for place in inside if place.is_dir() for p in place.iterdir()]
    for path in (*paths, *(folder / "workdir.git").rglob("*")):
        leads_out = (
            path.is_symlink() or path.name == "alternates"
        )  # git's link to other objects
        if leads_out or not (path.is_file() or path.is_dir()):
            raise ConfigError(
                f"{path} is a link or a special file; a run folder has none"
            )
    return manifest


def named_again(
    folder: Path, manifest: Manifest, given: Mapping[str, Any], pool: Pool | None = None
) -> Manifest:
    """The manifest with the options given now. A run folder may come from someone else, so its
    Python files must be named again; for a resume (with a `pool`) also MCP commands, hosts and
    endpoints. Raises ConfigError that lists the flags to add.
    """
    stored = manifest.options
    given = {k: v for k, v in given.items() if v is not None}
    repo = str(given.pop("workdir", ""))
    now = Options(
        **{"method": "" if ".py:" in stored.method else stored.method, **given}
    )
    if fixed := given.keys() - {*GIVEN_AGAIN}:
        raise ConfigError(f"{flag_of(min(fixed))}: is stored in {folder}; leave it out")
    reached = (
        [(b.base_url.rstrip("/"), b.api_key_env) for b in pool.backends] if pool else []
    )
    for b in manifest.pool.backends if pool else ():
        if (b.base_url.rstrip("/"), b.api_key_env) not in reached:
            key = f" with the key in {b.api_key_env}" if b.api_key_env else ""
            problem = (
                f"calls {b.base_url}{key}: if you trust it, name it in --backends FILE"
            )
            raise ConfigError(f"{folder} {problem} or by OPENAI_BASE_URL")
    ours = _permissions(now, repo, pool is not None)
    theirs = _permissions(stored, manifest.workdir, pool is not None)
    if unknown := [flag for flag in ours if flag not in theirs]:
        raise ConfigError(
            f"{unknown[0]}: the run in {folder} does not use it; leave it out"
        )
    if missing := [flag for flag in theirs if flag not in ours]:
        flags = " ".join(_with_path(flag, str(theirs[flag])) for flag in missing)
        raise ConfigError(f"{folder} needs your permission again: add {flags}")
    own: dict[str, Any] = {
        "tools": tuple(ours[f] for f in theirs if f.startswith("--tools "))
    }
    own |= {k: given[k] for k in ("method", "timeout_s", "patience_s") if k in given}
    return manifest.model_copy(update={"options": stored.with_(**own)})


def _permissions(
    o: Options, workdir: str = "", resumed: bool = False
) -> dict[str, Any]:
    """What only a command line allows, by its flag: Python files by their names, as they may have
    moved; for a resume also what else the run starts, reaches and reads.
    """
    found: list[tuple[str, str, Any]] = [
        ("tools", Path(spec_of(t)).name, t) for t in o.tools
    ]
    found += [("method", Path(o.method).name, o.method)] if o.method else []
    if resumed:
        found += [
            (k, value, value) for k in ("mcp", "allow_hosts") for value in getattr(o, k)
        ]
        found += [("unsafe_code", "", True)] if o.unsafe_code else []
        found += (
            [("workdir", str(Path(workdir).absolute()), workdir)] if workdir else []
        )
    return {
        f"{flag_of(k)} {shlex.quote(n) if n else ''}".strip(): v for k, n, v in found
    }


def _with_path(flag: str, spec: str) -> str:
    """The flag of a Python file with the path that it had, if the file is still there."""
    there = Path(spec.rpartition(":")[0]).is_file()
    return f"{flag.partition(' ')[0]} {shlex.quote(spec)}" if there else flag


@contextlib.contextmanager
def begun(path: Path) -> Iterator[Path]:
    """A new run folder. It is removed if the run fails before anything may have been paid for.
    Raises ConfigError, OSError.
    """
    existed = path.exists()
    if existed and (not path.is_dir() or any(path.iterdir())):
        problem = (
            "exists and is not an empty folder; give another --out, or --resume it"
        )
        raise ConfigError(f"{path} {problem}")
    path.mkdir(parents=True, exist_ok=True)
    (path / "run.json").touch(exist_ok=False)  # of two processes, one gets the folder
    try:
        yield path
    except BaseException:
        if not holds_paid(path / "tape.jsonl"):
            shutil.rmtree(path.resolve(), ignore_errors=True)
            if existed:
                path.resolve().mkdir(exist_ok=True)
        raise


def recorded(
    orchestrate: Callable[..., Trajectory],
    replay: Callable[..., Trajectory],
    resume: Callable[..., Trajectory],
    question: str,
    media: Sequence[Any] = (),
    out: Path | str = "",
    record_mode: str = "once",
    **how: Any,
) -> Trajectory:
    """For tests: replays the run in `out` if it has this very question, media and options (under
    any budget), continues it if it was not finished, and records it if there is none. `record_mode`
    "none" never records, "rewrite" always does. `how`: options and pool, as for `orchestrate`.

    Raises ConfigError where `out` holds another run, or none and none may be recorded.
    """
    if record_mode not in ("none", "once", "rewrite"):
        raise ConfigError(f"record mode {record_mode!r}: needs none, once or rewrite")
    folder, options = Path(out), how.get("options") or Options()
    exists = (folder / "run.json").is_file()
    if (
        record_mode == "rewrite" and exists
    ):  # the old run stays until the new one has ended
        new = folder.with_name(f"{folder.name}.new")
        again = recorded(orchestrate, replay, resume, question, media, new, **how)
        shutil.rmtree(folder)
        new.rename(folder)
        return replace(again, run=str(folder))
    if record_mode != "none" and not exists:
        return orchestrate(question, media, out=folder, **how)
    if not exists:
        raise ConfigError(
            f"{folder}: nothing is recorded; --record-mode once records it"
        )
    held = read_manifest(folder)
    files = [Path(f if isinstance(f, str | Path) else f[1]) for f in media]
    ours = (
        Secrets().text(question).strip(),
        [sha256_of(f) for f in files],
        *_comparable(options),
    )
    if ours != (
        held.question.strip(),
        [m.sha256 for m in held.media],
        *_comparable(held.options),
    ):
        problem = "was recorded with another question, media or options"
        raise ConfigError(
            f"{folder} {problem}: remove it, or use --record-mode rewrite"
        )
    if record_mode != "none" and not ended(events_of(folder / "trajectory.jsonl")):
        own = {"pool": how.get("pool"), "workdir": how.get("workdir")}
        return resume(folder, **own, **options.again())
    return replay(folder, **options.again())


def _comparable(options: Options) -> tuple[Any, ...]:
    """Options to compare: Python files by their names, and no budget, since a run replays under
    any.
    """
    return _permissions(options).keys(), options.with_(
        tools=(), method="", budget_usd=None
    )


def holds_paid(path: Path) -> bool:
    """Whether a call of this tape may have been paid for: it was answered, is in flight, or an
    attempt got no answer.
    """
    if not path.is_file():
        return False
    try:
        tapes.Appender(path).unlock()
        rows = [row for row in tapes.read(path) if tapes.round_of(str(row.get("call")))]
    except (OSError, ConfigError):
        return True  # it cannot be read now
    return any(
        "answer" in row or (row.get("failure") or {}).get("unanswered") for row in rows
    )


def fork(source: Path, target: Path, from_round: int, manifest: Manifest) -> None:
    """Copy the rounds before `from_round` into the new folder `target`. Raises ConfigError."""
    rows = tapes.exchanges(source / "tape.jsonl")
    last = max((tapes.round_of(row["call"]) for row in rows), default=0)
    if not 1 <= from_round <= max(last, 1):
        raise ConfigError(
            f"--from-round {from_round}: the run in {source} has rounds 1 to {last}"
        )
    folders = [source / name for name in ("media", "workdir", "workdir.git")]
    folders += sorted((source / "work").glob("r*-t*"))
    for part in folders:
        if part.is_dir() and tapes.round_of(part.name) < from_round:
            shutil.copytree(part, target / part.relative_to(source), symlinks=True)
    kept = [row for row in rows if tapes.round_of(row["call"]) < from_round]
    lines = [
        json.dumps({**row, "kept": True}, ensure_ascii=False) + "\n" for row in kept
    ]
    parent = f"{source.name} from round {from_round}"
    manifest.model_copy(update={"parent": parent}).write(target)
    write_whole(
        target / "tape.jsonl", "".join(lines)
    )  # last: a fork without it is none
