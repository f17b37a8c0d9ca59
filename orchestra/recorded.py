"""For tests: a run that is recorded once, and replayed from then on.

    run = recorded("What is the capital of France?", out="runs/capital")

In pytest, use the fixture of the same name (pytest_plugin.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestra.runtime.options import Options
from orchestra.runtime.permission import comparable
from orchestra.runtime.run_folder import Manifest, is_begun, read_manifest, sha256_of
from orchestra.runtime.secrets import Secrets
from orchestra.runtime.tape import TapeMiss
from orchestra.runtime.trajectory import Trajectory, is_finished, read_if_sound
from orchestra.vocabulary import ConfigError
from orchestra_min import orchestrate, replay, resume

MODES = ("none", "once", "rewrite")


def recorded(
    question: str,
    media: Sequence[Any] = (),
    out: Path | str = "",
    record_mode: str = "once",
    **how: Any,
) -> Trajectory:
    """Replays the run in `out` if it has this very question, media and options (under any budget),
    continues it if it was not finished, and records it if there is none. `record_mode` "none" never
    records, "rewrite" always does. `how`: options and pool, as for `orchestrate`.

    Raises ConfigError where `out` holds another run, or none and none may be recorded.
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
    if not _is_recording_of(read_manifest(folder), question, media, options):
        problem = "was recorded with another question, media or options"
        advice = "remove it, or use --record-mode rewrite"
        raise ConfigError(f"{folder} {problem}: {advice}")
    finished = is_finished(read_if_sound(folder / "trajectory.jsonl"))
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
    shutil.rmtree(folder)
    new.rename(folder)
    return replace(again, run=str(folder))


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
