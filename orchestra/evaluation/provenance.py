"""What a sweep was made of: its questions, pool, options, prompts and code, as sweep.json has them.

A sweep goes on only with the same. What may change is in `FREE`, where a model is served, and how
many questions are asked, with --extend.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orchestra
from orchestra.command.names import source_file
from orchestra.evaluation.answering import Plan
from orchestra.evaluation.questions import Question
from orchestra.kernel import prompts
from orchestra.kernel.folder import Manifest, Options, sha256_of

Settings = dict[str, Any]  # of a sweep, as sweep.json has them
Hashes = Mapping[str, str]  # of files or questions, by name
VERSION = 3
HASH_CHARS = 16  # of a SHA-256, for a file of prompts or code
FREE = (
    "timeout_s",
    "patience_s",
    "budget_usd",
)  # options that may change when a sweep goes on
SERVED = (
    "base_url",
    "api_key_env",
)  # where a backend is; a run may be resumed elsewhere, too
NOT_COMPARED = "version", "made_with", "data", "extended"
COMPARED_LAST = "questions", "prompt_files", "code_files"  # any other setting says more
ROOT = Path(orchestra.__file__).parent
CODE = (  # what a row depends on
    "kernel/*.py",
    "methods/*.py",
    "tools/*.py",
    "evaluation/answering.py",
    "evaluation/judge.py",
    "evaluation/question*.py",
    "evaluation/scores.py",
    "evaluation/units.py",
    "evaluation/values.py",
)


def settings_for(
    plan: Plan, asked: Sequence[Question], data: Path, with_budget: bool
) -> Settings:
    """What sweep.json has of a sweep. Raises ConfigError if Python of the user cannot be found."""
    program = {"orchestra-min": orchestra.__version__}
    options = Manifest("", (), plan.pool, plan.options).row()["options"]
    return {
        "version": VERSION,
        "made_with": {**program, "python": platform.python_version()},
        "data": sha256_of(data),
        "questions": {q.id: hash_of(q) for q in asked if q.repeat == 1},
        "repeat": max(q.repeat for q in asked),
        "with_budget": with_budget,
        "model": plan.pool.main,
        "pool": _pool(plan),
        "reuse": plan.reuse.name if plan.reuse else None,
        **{name: value for name, value in options.items() if name not in FREE},
        "prompt_files": dict(_hashes(prompts.ROOT, ("**/*.*",))),
        "code_files": {
            "orchestra_min.py": _short(ROOT.parent / "orchestra_min.py"),
            **dict(_hashes(ROOT, CODE)),
            **dict(_user_code(plan.options)),
        },
    }


def _pool(plan: Plan) -> Settings:
    """Each backend by its name, without where it is served, and the engines."""
    backends = {b.name: asdict(b) for b in plan.pool.backends}
    for backend in backends.values():
        for name in SERVED:
            del backend[name]
    return {**backends, "engines": dict(plan.pool.engines)}


def hash_of(q: Question) -> str:
    """The SHA-256 of a question: its text, answers, level, category and media."""
    media = [(kind, Path(path).name, sha256_of(Path(path))) for kind, path in q.media]
    row = [q.question, q.accepted, q.level, q.category, media]
    text = json.dumps(row, ensure_ascii=False, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _hashes(root: Path, patterns: Sequence[str]) -> Iterator[tuple[str, str]]:
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            yield path.relative_to(root).as_posix(), _short(path)


def _user_code(options: Options) -> Iterator[tuple[str, str]]:
    """The files of Python that options name."""
    for spec in (options.method, options.agent, *options.more.get("tools", ())):
        if ":" in spec:
            yield spec, _short(source_file(spec, spec))


def _short(path: Path) -> str:
    return sha256_of(path)[:HASH_CHARS]


# ---- what differs --------------------------------------------------------------------------------


def difference(stored: Settings, now: Settings, extend: bool) -> str:
    """The first setting of a sweep that is now another, for people; "" if all are the same.
    `extend`: more questions and repeats may be asked.
    """
    if stored.get("version") != VERSION:
        return "the version of the program that began it"
    for key in sorted(now, key=lambda key: key in COMPARED_LAST):
        was, value = stored.get(key), now[key]
        is_extended = extend and was is not None and _is_more(key, was, value)
        if was != value and key not in NOT_COMPARED and not is_extended:
            return f"{key} ({_changed(was, value)})"
    return ""


def _is_more(key: str, was: Any, value: Any) -> bool:
    if key == "repeat":
        return bool(value > was)
    return key == "questions" and was.items() <= value.items()


def _changed(was: Any, value: Any) -> str:
    """What differs, in short: of a mapping the first entry, and how many there are."""
    if not (isinstance(was, dict) and isinstance(value, dict)):
        return f"{json.dumps(was)[:40]}, now {json.dumps(value)[:40]}"
    found = [name for name in {**value, **was} if was.get(name) != value.get(name)]
    return f"{found[0]!r}" + (f" and {len(found) - 1} more" if found[1:] else "")
