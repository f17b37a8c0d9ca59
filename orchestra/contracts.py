"""What each seam must return. The user's Python may return anything; a value that does not fit ends
the run with one line that says where it came from and what is needed.

`flag` is the setting that named the user's Python, as in --memory newest.py:Newest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from numbers import Real
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from orchestra.matching import Placed
from orchestra.money import Purse
from orchestra.seams import Orchestrator, Scores
from orchestra.vocabulary import (
    Backend,
    Complete,
    ConfigError,
    Decision,
    Delegate,
    Evidence,
    Result,
    Status,
    Step,
    SubTask,
)

ROUNDING = 1e-9  # relative, of a sum of shares
SHOWN_CHARS = 80  # of a value that does not fit


def decision(value: object, flag: str) -> Decision:
    """y_t. Raises ConfigError."""
    if isinstance(value, Complete) and isinstance(value.answer, str):
        return value
    if not isinstance(value, Delegate):
        wanted = "Delegate(subtasks) or Complete(answer)"
        raise _misfit(flag, "decide returned", value, wanted)
    subtasks: object = value.subtasks
    if not isinstance(subtasks, tuple | list):
        raise _misfit(flag, "decide delegates", subtasks, "a tuple of SubTask")
    for u in subtasks:
        if not isinstance(u, SubTask):
            raise _misfit(flag, "decide delegates", u, "a SubTask")
        _check_fields(u, flag, f"SubTask {u.id}")
    return value


def result(value: object, flag: str) -> Result:
    """z. Raises ConfigError."""
    if not isinstance(value, Result):
        raise _misfit(flag, "run returned", value, "a Result, as of job.result(...)")
    statuses: tuple[str, ...] = get_args(Status)
    if value.status not in statuses:
        wanted = f"one of {', '.join(statuses)}"
        raise _misfit(flag, "run returned the status", value.status, wanted)
    texts = {"answer": value.answer, "summary": value.summary, "error": value.error}
    for name, text in texts.items():
        _check_text(text, flag, f"run returned the {name}")
    cost_usd: object = value.cost_usd
    if not isinstance(cost_usd, float | int | None):
        raise _misfit(flag, "run returned the cost", cost_usd, "a float, or None")
    steps: object = value.steps
    if type(steps) is not int or steps < 0:
        raise _misfit(flag, "run returned the steps", steps, "an int of 0 or more")
    trace: object = value.trace
    is_trace = isinstance(trace, tuple) and all(isinstance(s, Step) for s in trace)
    if not is_trace:
        raise _misfit(flag, "run returned the trace", trace, "a tuple of Step")
    return value


def history(
    value: object, flag: str, checked: Sequence[Evidence] = ()
) -> tuple[Evidence, ...]:
    """H_{t+1}. `checked` are entries that need no second look. Raises ConfigError."""
    known = {id(entry) for entry in checked}
    entries: list[Evidence] = []
    for entry in _items(value, flag, "remember returned", "a tuple of Evidence"):
        if not isinstance(entry, Evidence):
            raise _misfit(flag, "an entry of the history is", entry, "Evidence")
        if id(entry) not in known:
            _check_fields(entry, flag, f"Evidence {entry.id}")
        entries.append(entry)
    return tuple(entries)


def context(value: object, flag: str) -> str:
    """C_{t+1}. Raises ConfigError."""
    return _check_text(value, flag, "context returned")


def orchestrator(value: Orchestrator, flag: str) -> Orchestrator:
    """One whose attributes can be used. Raises ConfigError."""
    rounds: object = value.rounds
    if type(rounds) is not int or rounds < 1:
        raise _misfit(flag, "rounds is", rounds, "an int of 1 or more")
    shares: object = value.shares_context
    if not isinstance(shares, bool):
        raise _misfit(flag, "shares_context is", shares, "True or False")
    return value


# ---- a batch -------------------------------------------------------------------------------------


def batch(
    value: object,
    flag: str,
    candidates: Sequence[SubTask],
    pool: Sequence[Backend],
    k_max: int | None,
    budget_usd: float | None,
) -> list[Placed]:
    """U_t: some of the candidates, each once, within K_max and B_t. Each names the backend that it
    was placed on. Raises ConfigError.
    """
    wanted = "a list of Placed(subtask, backend, purse)"
    items = _items(value, flag, "place returned", wanted)
    placed = [_named(item, flag) for item in items]
    _check_choice(placed, flag, candidates, k_max)
    _check_executors(placed, flag, pool)
    if budget_usd is not None and _shares_usd(placed) > budget_usd * (1 + ROUNDING):
        problem = f"gave away more than the budget of {budget_usd:.6f} USD"
        raise ConfigError(f"{flag}: {problem}")
    return placed


def _shares_usd(placed: Sequence[Placed]) -> float:
    """The sum of all shares; infinite if one has no limit."""
    total_usd = 0.0
    for p in placed:
        if p.purse.limit_usd is None:
            return math.inf
        total_usd += p.purse.limit_usd
    return total_usd


def _named(value: object, flag: str) -> Placed:
    """A Placed whose sub-task names its backend. Raises ConfigError."""
    if not isinstance(value, Placed):
        wanted = "Placed(subtask, backend, purse)"
        raise _misfit(flag, "an entry of the batch is", value, wanted)
    fields: tuple[tuple[str, object, type], ...] = (
        ("subtask", value.subtask, SubTask),
        ("backend", value.backend, Backend),
        ("purse", value.purse, Purse),
    )
    for name, field, kind in fields:
        if not isinstance(field, kind):
            what = f"the {name} of a Placed is"
            raise _misfit(flag, what, field, f"a {kind.__name__}")
    u = replace(value.subtask, backend=value.backend.name)
    return replace(value, subtask=u)


def _check_choice(
    placed: Sequence[Placed],
    flag: str,
    candidates: Sequence[SubTask],
    k_max: int | None,
) -> None:
    ids = [p.subtask.id for p in placed]
    known = [u.id for u in candidates]
    if not ids:
        advice = "raise BudgetExceeded if none is affordable"
        raise ConfigError(f"{flag}: placed no sub-task; {advice}")
    is_repeated = len(set(ids)) < len(ids)
    is_unknown = not set(ids) <= set(known)
    if is_repeated or is_unknown:
        wanted = f"the candidates are {', '.join(known)}, each once"
        raise ConfigError(f"{flag}: placed {', '.join(ids)}; {wanted}")
    needs = {u.id: u.needs for u in candidates}
    for p in placed:
        if p.subtask.needs != needs[p.subtask.id]:
            raise ConfigError(f"{flag}: changed the needs of {p.subtask.id}")
    if k_max is None and len(ids) < len(known):
        problem = "left out a node of a whole graph (k_max is None)"
        raise ConfigError(f"{flag}: {problem}; place all candidates")
    if k_max is not None and len(ids) > k_max:
        problem = f"placed {len(ids)} sub-tasks, more than k_max={k_max}"
        raise ConfigError(f"{flag}: {problem}")


def _check_executors(
    placed: Sequence[Placed], flag: str, pool: Sequence[Backend]
) -> None:
    purses = {id(p.purse) for p in placed}
    if len(purses) < len(placed):
        raise ConfigError(f"{flag}: gave one purse to two sub-tasks; make one for each")
    for p in placed:
        share_usd = p.purse.limit_usd
        if p.purse.spent_usd != 0 or not (
            share_usd is None or 0 <= share_usd < math.inf
        ):
            problem = (
                f"the purse of {p.subtask.id} must be new, with a share of 0 or more"
            )
            raise ConfigError(f"{flag}: {problem}")
        name = p.subtask.id
        if p.backend not in pool:
            problem = f"placed {name} on {p.backend.name!r}, which is not in the pool"
            raise ConfigError(f"{flag}: {problem}")
        if p.subtask.tools is None:
            problem = f"left the tools of {name} None; choose them (Eq. 7)"
            raise ConfigError(f"{flag}: {problem}")


# ---- scores --------------------------------------------------------------------------------------


def scores(value: object, flag: str, count: int) -> list[Scores | None]:
    """R of a group of `count` completions. A number is the total of a valid decision without parts.
    Raises ConfigError.
    """
    if not isinstance(value, list | tuple):
        raise _misfit(flag, "score returned", value, "a list of Scores")
    if len(value) != count:
        found = f"{len(value)} scores for {count} completions"
        wanted = "one for each, in order (CONTRIBUTING.md)"
        raise ConfigError(f"{flag}: score returned {found}; it must be {wanted}")
    return [_one_score(entry, flag) for entry in value]


def _one_score(value: object, flag: str) -> Scores | None:
    if value is None:
        return None
    if isinstance(value, Real):
        return Scores(total=_number(value, flag), parts={}, valid=True)
    if not isinstance(value, Scores):
        raise _misfit(flag, "score returned", value, "Scores, a number or None")
    if not isinstance(value.parts, Mapping):
        raise _misfit(flag, "the parts of the Scores are", value.parts, "a dict")
    parts = {name: _number(part, flag) for name, part in value.parts.items()}
    return Scores(_number(value.total, flag), parts, valid=bool(value.valid))


def _number(value: object, flag: str) -> float:
    if not isinstance(value, Real) or not math.isfinite(value):
        raise _misfit(flag, "a score is", value, "a finite number")
    return float(value)


# ---- messages ------------------------------------------------------------------------------------


def _check_text(value: object, flag: str, what: str) -> str:
    """A str that can be written as UTF-8. Raises ConfigError."""
    if not isinstance(value, str):
        raise _misfit(flag, what, value, "a str")
    try:
        value.encode()
    except UnicodeEncodeError:
        wanted = "a str without half a surrogate pair"
        raise _misfit(flag, what, value, wanted) from None
    return value


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """The checks of a type. Creating them takes longer than a check."""
    return TypeAdapter(kind)


def _check_fields(value: Evidence | SubTask, flag: str, what: str) -> None:
    """Raises ConfigError if a field has another type than its class says."""
    kind: Any = type(value)
    try:
        adapter(kind).validate_python(dict(vars(value)))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        problem = f"{what}, {field}: {first['msg']}"
        raise ConfigError(f"{flag}: {problem}; see CONTRIBUTING.md") from None


def _items(value: object, flag: str, what: str, wanted: str) -> Sequence[object]:
    """The entries of a list or tuple. Raises ConfigError for anything else."""
    if not isinstance(value, list | tuple):
        raise _misfit(flag, what, value, wanted)
    return value


def _misfit(flag: str, what: str, value: object, wanted: str) -> ConfigError:
    shown = " ".join(repr(value).split())
    if len(shown) > SHOWN_CHARS:
        shown = shown[:SHOWN_CHARS] + "..."
    problem = f"{what} {shown}; it must be {wanted}"
    return ConfigError(f"{flag}: {problem}; see CONTRIBUTING.md")
