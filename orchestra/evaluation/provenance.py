"""What a sweep was made of: its questions, pool, options, prompts and code, as sweep.json has them.

A sweep goes on only with the same. What may change is in `FREE`, where a model is served, and how
many questions are asked, with --extend.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orchestra
from orchestra.evaluation.answering import FREE, Plan
from orchestra.evaluation.questions import Question
from orchestra.runtime import prompts
from orchestra.runtime.options import SEAMS, Options, flag_of
from orchestra.runtime.run_folder import sha256_of
from orchestra.runtime.user_code import is_spec, source_file, spec_of

Settings = dict[str, Any]  # of a sweep, as sweep.json has them
Hashes = dict[str, str]  # of files or questions, by name
VERSION = 2
HASH_CHARS = 16  # of a SHA-256, for a file of prompts or code
NOT_COMPARED = ("version", "made_with", "data", "extended", "merged")
SERVED = (
    "base_url",
    "api_key_env",
)  # where a backend is; a run may be resumed elsewhere, too
PACKAGE = Path(orchestra.__file__).parent
CODE = (  # what a row depends on
    "*.py",
    "agents/*.py",
    "methods/*.py",
    "minigaia/*.py",
    "runtime/*.py",
    "tools/*.py",
    "evaluation/answering.py",
    "evaluation/judge.py",
    "evaluation/question*.py",
    "evaluation/scores.py",
    "evaluation/sentences.py",
    "evaluation/units.py",
    "evaluation/values.py",
)
NO_RUN_USES = {"curate", "diff", "evaluate", "masbench", "optimize_prompt", "report"}


# ---- what is written -----------------------------------------------------------------------------


def settings_for(
    plan: Plan, asked: Sequence[Question], data: Path, with_budget: bool
) -> Settings:
    """What sweep.json has of a sweep. Raises ConfigError if Python of the user cannot be loaded."""
    return {
        "version": VERSION,
        "made_with": {
            "orchestra-min": orchestra.__version__,
            "python": platform.python_version(),
        },
        "data": sha256_of(data),
        "questions": {q.id: hash_of(q) for q in asked if q.repeat == 1},
        "repeat": max(q.repeat for q in asked),
        "shard": plan.shard,
        "with_budget": with_budget,
        "model": plan.pool.main,
        "pool": plan.pool.model_dump(mode="json", by_alias=True),
        "judge": None if plan.judge is None else plan.judge.model,
        "world": plan.world,
        "reuse": plan.reuse.name if plan.reuse else None,
        **plan.options.model_dump(mode="json", exclude={*FREE}),
        "prompt_files": dict(_prompt_hashes()),
        "code_files": {**dict(_code_hashes()), **dict(_user_code(plan.options))},
    }


def hash_of(q: Question) -> str:
    """The SHA-256 of a question: its text, answers, level, category, facts and media."""
    media = [(kind, Path(path).name, sha256_of(Path(path))) for kind, path in q.media]
    row = [q.question, q.accepted, q.level, q.category, media, q.facts]
    text = json.dumps(row, ensure_ascii=False, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _prompt_hashes() -> Iterator[tuple[str, str]]:
    for path in sorted(prompts.ROOT.rglob("*")):
        if path.is_file():
            yield path.relative_to(prompts.ROOT).as_posix(), _short(path)


def _code_hashes() -> Iterator[tuple[str, str]]:
    """The modules of the program that a row depends on."""
    yield "orchestra_min.py", _short(PACKAGE.parent / "orchestra_min.py")
    for pattern in CODE:
        for path in sorted(PACKAGE.glob(pattern)):
            if path.stem not in NO_RUN_USES or path.parent != PACKAGE:
                name = path.relative_to(PACKAGE).as_posix()
                yield f"orchestra/{name}", _short(path)


def _user_code(options: Options) -> Iterator[tuple[str, str]]:
    """The files of Python that options name."""
    for name in (*SEAMS, "tools"):
        value = getattr(options, name)
        for chosen in value if isinstance(value, tuple) else (value,):
            spec = spec_of(chosen)
            if is_spec(spec):
                flag = f"{flag_of(name)} {spec}"
                yield flag, _short(source_file(spec, flag))


def _short(path: Path) -> str:
    return sha256_of(path)[:HASH_CHARS]


# ---- what differs --------------------------------------------------------------------------------


def difference(stored: Settings, now: Settings, extend: bool) -> str:
    """What of a sweep is now another, for people; "" if it is the same. `extend`: more questions
    and repeats may be asked.
    """
    if stored.get("version") != VERSION:
        return "was begun by another version of the program"
    compared = [key for key in now if key not in NOT_COMPARED]
    for key in sorted(compared, key=_least_telling_last):
        was = stored.get(key)
        if was == now[key] or _is_extended(key, was, now[key], extend):
            continue
        found = _described(key, was, now[key])
        if found:
            return f"is a sweep with another {found}"
    return ""


def _least_telling_last(key: str) -> bool:
    """As a sort key: any other setting says more than hashes."""
    return key in ("questions", "prompt_files", "code_files")


def _is_extended(key: str, was: Any, value: Any, extend: bool) -> bool:
    if not extend or was is None:
        return False
    if key == "repeat":
        return bool(value > was)
    return key == "questions" and was.items() <= value.items()


def _described(key: str, was: Any, value: Any) -> str:
    """One setting that differs; "" if that does not matter."""
    if key == "questions":
        return _changed("set of questions", was, value)
    if key == "prompt_files":
        return _changed("prompt", was, value)
    if key == "code_files":
        return _changed("version of the code", was, value)
    if key == "pool":
        return _changed("pool", _without_places(was), _without_places(value))
    if key == "texts":
        return _changed("text of --texts", was, value or {})
    name = key if key not in Options.model_fields else flag_of(key)
    return f"{name} ({_in_short(was)}, now {_in_short(value)})"


def _changed(what: str, was: object, value: Mapping[str, Any]) -> str:
    """The first entry of a mapping that differs, and how many do; "" if none does."""
    before: Mapping[str, Any] = was if isinstance(was, dict) else {}
    gone = [f"{name!r} is missing" for name in before if name not in value]
    new = [f"{name!r} is new" for name in value if name not in before]
    common = [name for name in before if name in value]
    other = [f"{name!r} differs" for name in common if before[name] != value[name]]
    found = other + gone + new
    if not found:
        return ""
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{what} ({found[0]}{more})"


def _without_places(pool: Any) -> dict[str, Any]:
    """A pool as a mapping with an entry for each backend, without where it is served."""
    if not isinstance(pool, dict):
        return {}
    backends = pool.get("backend", ())
    return {
        **{name: value for name, value in pool.items() if name != "backend"},
        **{f"backend {b.get('name')}": _only(b) for b in _dicts(backends)},
    }


def _only(backend: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in backend.items() if name not in SERVED}


def _dicts(values: object) -> Iterable[dict[str, Any]]:
    found = values if isinstance(values, list) else []
    return [value for value in found if isinstance(value, dict)]


def _in_short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:40]}..."
