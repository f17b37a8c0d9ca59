"""A run on disk: all that was asked, answered and paid, in one folder that can be copied, replayed,
resumed and forked.

run.json  trajectory.jsonl  tape.jsonl  media/  work/  log.txt
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from orchestra.vocabulary import ConfigError, Media, Modality, Task
from runtime import jsonl
from runtime import tape as tapes
from runtime.options import Options, flag_of, spec_of
from runtime.pool import Checked, Invalid, Pool
from runtime.secrets import Secrets

VERSION = 2
MAX_CHARS = 16 << 20  # of run.json


class MediaRow(Checked):
    modality: Modality
    name: Annotated[str, Field(pattern=r"^[^/\x00]+$")]
    sha256: str


class Manifest(Checked):
    """run.json: what the main agent was given. A replay needs nothing else of the user."""

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
                raise ConfigError(f"{path} is missing or changed; copy the whole run folder")
            media.append(Media(m.modality, m.name, path, m.sha256))
        copy = folder / "workdir"
        top = sorted(p.name + "/" * p.is_dir() for p in copy.iterdir()) if self.workdir else []
        return Task(self.question, tuple(media), tuple(name for name in top if name != ".git/"))

    def write(self, folder: Path) -> None:
        try:
            (folder / "run.json").write_text(json.dumps(self.row(), ensure_ascii=False, indent=1))
        except OSError as error:
            raise unwritable(folder, error) from None

    def row(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def default_path() -> Path:
    """runs/<time to the microsecond>: runs that start together get folders of their own."""
    return Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S-%f}"


def unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path}: cannot be written ({error.strerror}); free space, or use --out")


def read_manifest(folder: Path) -> Manifest:
    """Raises ConfigError: not a run folder, another version, a damaged file, a link out of it."""
    file = folder / "run.json"
    if not file.is_file():
        raise ConfigError(f"{folder} is not a run folder (no run.json)")
    try:
        with file.open(encoding="utf-8") as text:
            row = json.loads(text.read(MAX_CHARS))
        version = row.get("v")
        if version != VERSION:
            raise ConfigError(f"{file}: version {version!r}; this program reads version {VERSION}")
        manifest = Manifest(**row)
    except (Invalid, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{file} is damaged ({' '.join(str(error).split())[:200]})") from None
    inside = (folder, folder / "media", folder / "work")
    for path in (p for place in inside if place.is_dir() for p in place.iterdir()):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise ConfigError(f"{path} is a link or a special file; a run folder has none")
    return manifest


def named_again(
    folder: Path, manifest: Manifest, given: Mapping[str, Any], pool: Pool | None = None
) -> Manifest:
    """The manifest with the options `given` now. A run folder may come from someone else, so the
    caller names again the Python files that it loads; with a `pool`, for a resume, also MCP
    commands, hosts and endpoints.

    Raises ConfigError that lists the flags to add.
    """
    stored, missing, unknown = manifest.options, list[str](), list[str]()
    given = {k: v for k, v in given.items() if v is not None}
    repo = str(given.pop("workdir", ""))
    if ".py:" not in stored.method:  # one of the program's own
        given.setdefault("method", stored.method)
    now = Options(**given)
    names: dict[str, Callable[[Any], dict[str, Any]]] = {"tools": _by_name, "method": _by_name}
    if pool:  # commands and hosts are named as they are
        names |= {"mcp": dict.fromkeys, "allow_hosts": dict.fromkeys}
    for option, named in names.items():
        flag = flag_of(option)
        ours = named(getattr(now, option)) if option in given else {}
        theirs = named(getattr(stored, option))
        missing += [f"{flag} {shlex.quote(name)}" for name in theirs if name not in ours]
        unknown += [f"{flag} {name}" for name in ours if name not in theirs]
    if pool and stored.unsafe_code != now.unsafe_code:
        (missing if stored.unsafe_code else unknown).append(flag_of("unsafe_code"))
    if pool and Path(repo).absolute() != Path(manifest.workdir).absolute():
        here, there = [f"--workdir {shlex.quote(p)}" for p in (repo, manifest.workdir)]
        missing += [there] if manifest.workdir else []
        unknown += [] if manifest.workdir else [here]
    reached = {(b.base_url, b.api_key_env) for b in pool.backends} if pool else set()
    for b in manifest.pool.backends if pool else ():
        if (b.base_url, b.api_key_env) not in reached:
            key = f" with the key in {b.api_key_env}" if b.api_key_env else ""
            raise ConfigError(
                f"{folder}: the run calls {b.base_url}{key}, which your pool does not name; if "
                "you trust it, give its pool with --backends FILE (or OPENAI_BASE_URL)"
            )
    if unknown:
        raise ConfigError(f"{unknown[0]}: the run in {folder} does not use it; leave it out")
    if missing:
        lacking = " ".join(sorted(set(missing)))
        raise ConfigError(f"{folder} uses what only you can allow: add {lacking}")
    tools = _by_name(now.tools)
    own: dict[str, Any] = {"tools": tuple(tools[name] for name in _by_name(stored.tools))}
    own |= {k: given[k] for k in ("method", "timeout_s", "patience_s") if k in given}
    return manifest.model_copy(update={"options": stored.with_(**own)})


def _by_name(values: Any) -> dict[str, Any]:
    """Tools and methods by name; the user's own files wherever they are now."""
    values = [values] if isinstance(values, str) else values
    specs = [(spec_of(value), value) for value in values]
    return {Path(spec).name if ".py:" in spec else spec: value for spec, value in specs}


@contextlib.contextmanager
def begun(path: Path) -> Iterator[Path]:
    """A new run folder. It is removed again if the run fails before anything may have been paid
    for. Raises ConfigError.
    """
    existed = path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise ConfigError(f"{path} exists and is not empty; give another --out, or --resume it")
        (path / "run.json").touch(exist_ok=False)  # of two processes, one gets the folder
    except OSError as error:
        raise unwritable(path, error) from None
    try:
        yield path
    except BaseException:
        if not holds_paid(path / "tape.jsonl"):
            clear(path)
            with contextlib.suppress(OSError):
                if not existed:
                    path.rmdir()
        raise


def clear(path: Path) -> None:
    """Empty a folder; a copy of a repository may have closed folders in it."""
    parts = [str(part) for part in path.absolute().iterdir()]
    for command in (("chmod", "-R", "u+rwX"), ("rm", "-rf")) if parts else ():
        subprocess.run([*command, "--", *parts], capture_output=True, check=False)


def check_same(folder: Path, question: str, media: list[Any], options: Options) -> None:
    """Raises ConfigError where `folder` holds a run of another question, other media, (modality,
    SHA-256) each, or other options.
    """
    held = read_manifest(folder)
    names = [{**_by_name(o.tools), **_by_name(o.method)}.keys() for o in (options, held.options)]
    # Tools and method by name, wherever the files are now; a run replays under any budget.
    own = dict.fromkeys(("tools", "method", "budget_usd"))
    for what, ours, theirs in (
        ("question", Secrets().text(question).strip(), held.question.strip()),
        ("media", media, [(m.modality, m.sha256) for m in held.media]),
        ("tools or method", *names),
        ("options", {**dict(options), **own}, {**dict(held.options), **own}),
    ):
        if ours != theirs:
            raise ConfigError(
                f"{folder} was recorded with other {what}; use another folder, or rewrite it"
            )


def holds_paid(path: Path) -> bool:
    """Whether anything on this tape may have been paid for: an answer, or an unanswered attempt."""
    try:
        rows = [row for row in jsonl.read(path) if tapes.round_of(str(row.get("call")))]
    except OSError:
        return True  # it cannot be read now
    return any("answer" in row or row.get("failure", {}).get("unanswered") for row in rows)


def fork(source: Path, target: Path, from_round: int, manifest: Manifest) -> None:
    """Into the new folder `target` the rounds before `from_round`. Raises ConfigError."""
    rows, _ = tapes.exchanges(source / "tape.jsonl")
    last = max((tapes.round_of(row["call"]) for row in rows), default=0)
    if source.resolve() in target.resolve().parents:
        raise ConfigError(f"--out {target}: is inside {source}; give another folder")
    if not 1 <= from_round <= max(last, 1):
        raise ConfigError(f"--from-round {from_round}: the run in {source} has rounds 1 to {last}")
    folders = [source / name for name in ("media", "workdir", "workdir.git")]
    folders += sorted((source / "work").glob("r*-t*"))
    try:
        for part in folders:
            if part.is_dir() and tapes.round_of(part.name) < from_round:
                shutil.copytree(part, target / part.relative_to(source), symlinks=True)
        with (target / "tape.jsonl").open("w", encoding="utf-8") as tape:
            for row in rows:
                if tapes.round_of(row["call"]) < from_round:
                    tape.write(json.dumps(row, ensure_ascii=False) + "\n")
            tape.write(json.dumps({"v": VERSION, "forked": True}) + "\n")
    except OSError as error:
        raise unwritable(target, error) from None
    parent = f"{source.name} from round {from_round}"
    manifest.model_copy(update={"parent": parent}).write(target)
