"""A run folder made ready: a new one, one to go on with, or one to play again. Each yields the
folder and its manifest, held while the run is at work there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from orchestra import media as media_files
from orchestra import pool as pools
from orchestra import pool_file, repository, run_folder, secrets, trajectory, trust
from orchestra.pool import Pool
from orchestra.replay import TapeMiss
from orchestra.run_folder import Manifest, Options
from orchestra.trajectory import Event
from orchestra.trust import Named
from orchestra.vocabulary import ConfigError, Modality, Task

Opened = tuple[Path, Manifest]


@contextlib.contextmanager
def new(
    question: str,
    media: Sequence[tuple[Modality, str | Path]],
    pool: Pool,
    options: Options,
    out: str | Path | None,
    workdir: str | Path | None,
) -> Iterator[Opened]:
    """A new folder; it is taken away again where the run fails before anything was paid for.
    Raises ConfigError.
    """
    options = replace(options, tools=trust.absolute(options.tools))
    question = _clean(question, options)
    files = media_files.check([(modality, Path(path)) for modality, path in media])
    at = Path(out) if out else run_folder.default_path()
    run_folder.check_space(at, sum(path.stat().st_size for _, path in files))
    with run_folder.begun(at) as folder:
        task = Task(question, media_files.copy_into(folder, files))
        if workdir:
            repository.copy_into(folder, Path(workdir))
        manifest = Manifest(task, pool, options)
        run_folder.write_manifest(folder, manifest)
        trust.claim(folder)
        yield folder, manifest


def asked(
    pool: Pool | None, options: Options | None, workdir: str | Path | None, with_media: bool
) -> tuple[Pool, Options]:
    """What a run is asked for, with what is left out filled in. Raises ConfigError where that can
    not be done: a key, a price or the repository is missing.
    """
    options = options or Options()
    pool = pool or pool_file.from_environment(None)
    pool = replace(pool, engines={**pools.default_engines(pool), **pool.engines})
    pools.check(pool, options.budget_usd)
    if workdir:
        repository.check(Path(workdir), with_media)
    return pool, options


def _clean(question: str, options: Options) -> str:
    """The question without half characters, which no wire takes, and without a secret of the
    environment. Raises ConfigError for an empty one, and for a key that no file could leave out.
    """
    if not question.strip():
        raise ConfigError("the question is empty; give --question a text")
    secrets.look_up()
    if any("<SECRET>" in secrets.scrub(command) for command in options.mcp):
        raise ConfigError('--mcp: holds a key; name an environment variable in it, as "$MY_KEY"')
    return secrets.scrub(question.encode("utf-8", "replace").decode())


@contextlib.contextmanager
def resumed(
    folder: Path,
    from_round: int | None,
    out: str | Path | None,
    timeout_s: float | None,
    named: Named,
) -> Iterator[Opened]:
    """The folder of a run to go on with; with `from_round`, a new one that keeps the rounds before
    it. Raises ConfigError.
    """
    manifest = trust.checked(folder, run_folder.read_manifest(folder), named, resumed=True)
    pools.check(manifest.pool, manifest.options.budget_usd)
    run_folder.check_space(folder)
    if from_round is None:
        opened = _held(folder, manifest)
    else:
        opened = _forked(folder, manifest, from_round, out)
    with opened as (held, kept):
        timeout_s = timeout_s or kept.options.timeout_s
        yield held, replace(kept, options=replace(kept.options, timeout_s=timeout_s))


@contextlib.contextmanager
def _held(folder: Path, manifest: Manifest) -> Iterator[Opened]:
    with run_folder.locked(folder):
        yield folder, manifest


@contextlib.contextmanager
def _forked(
    source: Path, manifest: Manifest, from_round: int, out: str | Path | None
) -> Iterator[Opened]:
    run_folder.check_round(source, from_round)
    with run_folder.begun(Path(out) if out else run_folder.default_path()) as folder:
        with run_folder.locked(source, shared=True):
            run_folder.fork(source, folder, from_round, manifest)
        trust.claim(folder)
        yield folder, replace(run_folder.read_manifest(folder), options=manifest.options)


@contextlib.contextmanager
def played(folder: Path, named: Named) -> Iterator[tuple[Manifest, list[Event]]]:
    """The manifest of a run to play again, and the events that it must come to: none where it was
    not finished. Raises ConfigError, and TapeMiss that says more than the tape can know.
    """
    manifest = trust.checked(folder, run_folder.read_manifest(folder), named, resumed=False)
    if not (folder / "tape.jsonl").exists():
        raise ConfigError(f"{folder}/tape.jsonl: is missing; copy the whole run folder")
    with run_folder.locked(folder, shared=True):
        recorded = trajectory.read(folder / "trajectory.jsonl")
        finished = bool(recorded) and recorded[-1]["event"] == "end"
        try:
            yield manifest, recorded if finished else []
        except TapeMiss as miss:
            unfinished = f"; the run was not finished: --resume {folder} goes on"
            raise TapeMiss(f"{miss}{'' if finished else unfinished}") from None
