"""For tests: a run that is recorded once, and replayed from then on.

    run = recorded("What is the capital of France?", out="runs/capital", pool=pool)

In pytest, use the fixture of the same name (pytest_plugin.py).
"""

from __future__ import annotations

import contextlib
import glob
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestra.command.pool_file import choose
from orchestra.kernel.folder import (
    Manifest,
    Options,
    read_events,
    read_manifest,
    sha256_of,
)
from orchestra.kernel.tape import TapeMiss, exchanges
from orchestra.kernel.tool import of_user
from orchestra.kernel.vocabulary import ConfigError, Pool, Task
from orchestra.variation import MODES
from orchestra.variation.arguments import check
from orchestra.variation.diff import Difference, changes, difference, short_diff, where
from orchestra.variation.fork import without_addresses
from orchestra.variation.reuse import answers_of
from orchestra_min import (
    Outcome,
    orchestrate,
    replay,
    resume,
    with_defaults,
)

# Kinds of exchanges that depend on something else than code of the user
SHIPPED = "code", "bash", "diff", "visit", "transcribe", "world"
OF_RECORDING = ("pool", "options", "cancelled", "more", "sources")  # not of a replay


class Changed(AssertionError):
    """The run has another answer than its recording, or another decision."""


def recorded(
    question: str,
    media: Sequence[Any] = (),
    out: Path | str = "",
    record_mode: str = "once",
    decisions: bool = False,
    **how: Any,
) -> Outcome:
    """Replays the run in `out` if it has this very question, media and options (under any budget),
    continues it if it was not finished, and records it if there is none. `how`: as for
    `orchestrate`; `pool` may also be a pool file, and without one the environment names it.

    `record_mode` "none" never records, "rewrite" always does, whatever is in `out`. With "changed",
    a run that no longer replays is made again: it takes the answers to equal requests from the
    recording, and takes its place if it gives the same answer and, with `decisions`, makes the same
    decisions.

    Raises ConfigError where `out` holds another run, or none and none may be recorded, and Changed.
    """
    if record_mode not in MODES:
        raise ConfigError(f"record mode {record_mode!r}: needs {', '.join(MODES)}")
    check(question=question, media=media, out=out, decisions=decisions, **how)
    folder = Path(out)
    _put_back(folder)
    if record_mode == "rewrite":
        return _rewrite(question, media, folder, how)
    exists = _is_run(folder)
    if not exists and record_mode == "none":
        raise ConfigError(
            f"{folder}: nothing is recorded; --record-mode once records it"
        )
    if not exists:
        return _record(question, media, folder, how)
    held = read_manifest(folder)
    is_finished = any(event.get("finished") for event in read_events(folder))
    is_changed = record_mode == "changed" and is_finished
    same_options = is_changed or _has_options(held, how)
    if not (same_options and _is_recording_of(held, question, media)):
        problem = "was recorded with another question, media or options"
        raise ConfigError(
            f"{folder} {problem}: remove it, or use --record-mode rewrite"
        )
    if is_changed:
        return _replay_or_vary(question, media, folder, decisions, how)
    return _again(folder, how, is_finished, may_pay=record_mode != "none")


def _again(
    folder: Path, how: Mapping[str, Any], is_finished: bool, may_pay: bool
) -> Outcome:
    """The recording replayed, or continued where its end is missing."""
    again = _given_again(how)
    if is_finished or not may_pay:
        try:
            return replay(folder, **again)
        except TapeMiss as miss:  # of the code of today, or of a tape that was cut
            if miss.differs or not may_pay:
                raise
    return resume(folder, pool=_pool(how), **again)


def _rewrite(
    question: str, media: Sequence[Any], folder: Path, how: Mapping[str, Any]
) -> Outcome:
    """A new recording in place of whatever is there. One that was begun goes on."""
    new = folder.with_name(f"{folder.name}.new")
    try:
        if _is_run(new) and not _has_settings(read_manifest(new), how):
            _set_aside(new)
        again = recorded(question, media, new, **how)
    except (ConfigError, TapeMiss):  # of another test, or of the code of before
        if not new.exists():
            raise
        _set_aside(new)
        again = _record(question, media, new, how)
    return _put_in_place(folder, new, again)


def _given_again(how: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in how.items() if name not in OF_RECORDING}


def _record(
    question: str, media: Sequence[Any], folder: Path, how: Mapping[str, Any]
) -> Outcome:
    return orchestrate(question, media, out=folder, **{**how, "pool": _pool(how)})


def _pool(how: Mapping[str, Any]) -> Pool:
    """The pool that a test gives: an object, a file, or that of the environment."""
    pool = how.get("pool")
    if isinstance(pool, Pool):
        return pool
    return choose(Path(pool) if pool else None)


def _replay_or_vary(
    question: str,
    media: Sequence[Any],
    folder: Path,
    decisions: bool,
    how: Mapping[str, Any],
) -> Outcome:
    """A replay, or else a run that pays only for what the recording lacks. It takes the place of
    the recording. Raises Changed, and then it stays next to it, as `out`.new.
    """
    held = read_manifest(folder)
    if _has_settings(held, how) and not _is_stale(held.task(folder), folder, how):
        with contextlib.suppress(TapeMiss):
            return replay(folder, **_given_again(how))
    new = folder.with_name(f"{folder.name}.new")
    if new.exists():  # of an earlier attempt: nothing of it is paid twice
        _set_aside(new)
    sources = [answers_of(folder, *_earlier(new)), *how.get("sources", ())]
    again = _record(question, media, new, {**how, "sources": sources})
    found = difference(folder, new)
    problems = list(changes(found, decisions))
    if problems:
        first = f"{folder}: {problems[0]}"
        raise Changed("\n".join([first, *_advice(found, problems)]))
    return _put_in_place(folder, new, again)


def _is_stale(task: Task, folder: Path, how: Mapping[str, Any]) -> bool:
    """Whether a tool or a sub-agent of the test has another source than the one recorded."""
    now = {of_user(agent, task) for agent in (how.get("agents") or {}).values()}
    now |= {tool.depends_on(task) for tool in (how.get("tools") or {}).values()}
    recorded = {
        exchange.depends_on
        for exchange in exchanges(folder / "tape.jsonl")
        if exchange.request["kind"] not in SHIPPED
    }
    return not recorded <= {*now, ""}


def _put_in_place(folder: Path, new: Path, again: Outcome) -> Outcome:
    """The new run is the recording from now on. The old one stays until the new one has ended."""
    replaced = _replaced_by(folder)
    _remove(replaced)  # left by a kill
    others = _earlier(new)
    if folder.exists():
        folder.rename(replaced)
    new.rename(folder)
    for old in (replaced, *others):
        _remove(old)
    return replace(again, run=folder)


def _put_back(folder: Path) -> None:
    """Undo what a kill left between two renames."""
    replaced = _replaced_by(folder)
    if folder.exists():
        _remove(replaced)
    elif replaced.exists():
        replaced.rename(folder)


def _replaced_by(folder: Path) -> Path:
    """Where the recording of before is, while another one takes its place."""
    return folder.with_name(f".{folder.name}.old")


def _is_run(folder: Path) -> bool:
    return (folder / "run.json").exists()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _set_aside(new: Path) -> None:
    """Make room for another attempt."""
    numbers = [int(path.suffix[1:]) for path in _earlier(new)]
    if _is_run(new):
        new.rename(new.with_name(f"{new.name}.{max(numbers, default=0) + 1}"))
    else:
        _remove(new)


def _earlier(new: Path) -> list[Path]:
    """The attempts that were made before the run in `new`."""
    found = new.parent.glob(f"{glob.escape(new.name)}.*")
    return sorted(path for path in found if path.suffix[1:].isdecimal())


def _advice(found: Difference, problems: Sequence[str]) -> list[str]:
    """Where the runs part, and how to go on: two lines."""
    more = f"{len(problems) - 1} more changes; " if len(problems) > 1 else ""
    part = "all calls are the same"
    if found.parting:
        place = where(found.parting, "the recording", "the new run")
        part = f"first difference: {place}"
    see = f"orchestra-min diff {found.first.run} {found.second.run}"
    return [f"{more}{part}", f"see {see}; --record-mode rewrite accepts the new run"]


def in_three_lines(error: BaseException) -> str:
    """A mistake of the user, a miss or a change. Of a miss, the first line that differs."""
    first, *rest = str(error).splitlines()
    if not isinstance(error, TapeMiss):
        return "\n".join([first, *rest])
    removed = [line[1:] for line in rest if line.startswith("-")][1:2]  # 0: its name
    added = [line[1:] for line in rest if line.startswith("+")][1:2]
    advice = "--record-mode changed makes only the calls that differ"
    return "\n".join([f"{first}; {advice}", *short_diff(removed, added)])


def _has_settings(held: Manifest, how: Mapping[str, Any]) -> bool:
    """Whether a recording has the options of a test, and its pool if the test names one."""
    pool = _pool(how) if how.get("pool") else held.pool
    same_pool = without_addresses(pool) == without_addresses(held.pool)
    return same_pool and _has_options(held, how)


def _has_options(held: Manifest, how: Mapping[str, Any]) -> bool:
    """Whether a recording has the options of a test; a run replays under any budget."""
    options = with_defaults(how.get("options") or Options())
    return (
        replace(options, budget_usd=held.options.budget_usd).row() == held.options.row()
    )


def _is_recording_of(held: Manifest, question: str, media: Sequence[Any]) -> bool:
    files = [media] if isinstance(media, str | Path) else media
    try:
        paths = [f if isinstance(f, str | Path) else f[1] for f in files]
        hashes = [sha256_of(Path(path)) for path in paths]
    except (OSError, TypeError, LookupError) as error:
        raise ConfigError(f"recorded: media={media!r:.60}: {error}") from None
    same_media = hashes == [sha256 for _, _, sha256 in held.media]
    return question.strip() == held.question.strip() and same_media
