"""For tests: a run that is recorded once, and replayed from then on.

    run = recorded("What is the capital of France?", out="runs/capital")

In pytest, use the fixture of the same name (pytest_plugin.py).
"""

from __future__ import annotations

import glob
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestra.diff import changes, short_diff, where
from orchestra.runtime import pool as pools
from orchestra.runtime.console import invocation
from orchestra.runtime.options import Options
from orchestra.runtime.permission import comparable
from orchestra.runtime.pool import Pool
from orchestra.runtime.run_folder import Manifest, is_begun, read_manifest, sha256_of
from orchestra.runtime.secrets import Secrets
from orchestra.runtime.tape import TapeMiss
from orchestra.runtime.trajectory import Trajectory, is_finished, read_if_sound
from orchestra.variation import Difference, difference
from orchestra.vocabulary import ConfigError
from orchestra_min import orchestrate, replay, resume

MODES = ("none", "once", "changed", "rewrite")


class Changed(AssertionError):
    """The run has another answer than its recording, or another decision."""


def recorded(
    question: str,
    media: Sequence[Any] = (),
    out: Path | str = "",
    record_mode: str = "once",
    decisions: bool = False,
    **how: Any,
) -> Trajectory:
    """Replays the run in `out` if it has this very question, media and options (under any budget),
    continues it if it was not finished, and records it if there is none. `how`: options and pool,
    as for `orchestrate`.

    `record_mode` "none" never records, "rewrite" always does. With "changed", a run that no longer
    replays is made again: it takes the answers to equal requests from the recording, and takes its
    place if it gives the same answer and, with `decisions`, makes the same decisions.

    Raises ConfigError where `out` holds another run, or none and none may be recorded, and Changed.
    """
    if record_mode not in MODES:
        raise ConfigError(f"record mode {record_mode!r}: needs {', '.join(MODES)}")
    folder = Path(out)
    options = how.get("options") or Options()
    exists = is_begun(folder)
    if record_mode == "rewrite" and exists:
        return _rewritten(question, media, folder, how)
    if not exists and record_mode == "none":
        advice = "--record-mode once records it"
        raise ConfigError(f"{folder}: nothing is recorded; {advice}")
    if not exists:
        return orchestrate(question, media, out=folder, **how)
    finished = is_finished(read_if_sound(folder / "trajectory.jsonl"))
    if finished and record_mode == "changed":
        return _varied(question, media, folder, decisions, how)
    if not _is_recording_of(read_manifest(folder), question, media, options):
        problem = "was recorded with another question, media or options"
        advice = "remove it, or use --record-mode rewrite"
        raise ConfigError(f"{folder} {problem}: {advice}")
    if finished or record_mode == "none":
        try:
            return replay(folder, **options.again())
        except TapeMiss as miss:  # of the code of today, or of a tape that was cut
            if miss.differs or record_mode == "none":
                raise
    again = {**options.again(), "workdir": how.get("workdir")}
    return resume(folder, pool=how.get("pool"), **again)


def _rewritten(
    question: str, media: Sequence[Any], folder: Path, how: dict[str, Any]
) -> Trajectory:
    """A new recording. The old one stays until the new one has ended."""
    new = folder.with_name(f"{folder.name}.new")
    again = recorded(question, media, new, **how)
    return _in_place_of(folder, new, again)


def _in_place_of(folder: Path, new: Path, again: Trajectory) -> Trajectory:
    """The new run is the recording from now on. It does not name those that it has replaced."""
    manifest = read_manifest(new)
    if manifest.reuse:
        manifest.model_copy(update={"reuse": ()}).write(new)
    replaced = folder.with_name(f"{folder.name}.old")
    shutil.rmtree(replaced, ignore_errors=True)  # left by a kill
    others = [*_earlier(new)]
    folder.rename(replaced)
    new.rename(folder)
    for old in (replaced, *others):
        shutil.rmtree(old)
    return replace(again, run=str(folder))


def _varied(
    question: str,
    media: Sequence[Any],
    folder: Path,
    decisions: bool,
    how: dict[str, Any],
) -> Trajectory:
    """A replay, or else a run that pays only for what the recording lacks. It takes the place of
    the recording. Raises Changed, and then it stays next to it, as `out`.new.
    """
    held = read_manifest(folder)
    if not _is_recording_of(held, question, media, held.options):
        problem = "was recorded with another question or media"
        raise ConfigError(f"{folder} {problem}: remove it, or give another out")
    if _has_settings(held, how):
        try:
            return replay(folder, **(how.get("options") or Options()).again())
        except TapeMiss:
            pass
    new = folder.with_name(f"{folder.name}.new")
    if is_begun(new):  # of an earlier attempt: nothing of it is paid twice
        new.rename(new.with_name(f"{new.name}.{len(_earlier(new)) + 1}"))
    reuse = [folder, *_earlier(new)]
    again = orchestrate(question, media, out=new, **{**how, "reuse": reuse})
    found = difference(folder, new)
    problems = list(changes(found, decisions))
    if problems:
        first = f"{folder}: {problems[0]}"
        raise Changed("\n".join([first, *_advice(found, problems)]))
    return _in_place_of(folder, new, again)


def _earlier(new: Path) -> list[Path]:
    """The attempts that were made before the run in `new`."""
    return sorted(new.parent.glob(f"{glob.escape(new.name)}.[0-9]*"))


def _advice(found: Difference, problems: Sequence[str]) -> list[str]:
    """Where the runs part, and how to go on: two lines."""
    more = f"{len(problems) - 1} more changes; " if len(problems) > 1 else ""
    part = "all calls are the same"
    if found.parting:
        place = where(found.parting, "the recording", "the new run")
        part = f"the runs part at {place}"
    see = invocation("diff", found.first.run, found.second.run)
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


def _has_settings(held: Manifest, how: dict[str, Any]) -> bool:
    """Whether a recording has the options of a test, and its pool if the test names one."""
    same_options = comparable(how.get("options") or Options()) == comparable(
        held.options
    )
    if how.get("pool") is None:
        return same_options
    return same_options and _models(pools.choose(how["pool"])) == _models(held.pool)


def _models(pool: Pool) -> dict[str, Any]:
    """A pool without the addresses of its servers."""
    row = pool.model_dump(mode="json", by_alias=True)
    for backend in row["backend"]:
        del backend["base_url"], backend["api_key_env"]
    return row


def _is_recording_of(
    held: Manifest, question: str, media: Sequence[Any], options: Options
) -> bool:
    hashes = []
    for file in media:
        is_path = isinstance(file, str | Path)
        path = Path(file if is_path else file[1])  # or (modality, path)
        hashes.append(sha256_of(path))
    same_question = Secrets().text(question).strip() == held.question.strip()
    same_media = hashes == [m.sha256 for m in held.media]
    same_options = comparable(options) == comparable(held.options)
    return same_question and same_media and same_options
