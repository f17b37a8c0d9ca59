"""Methods compared by their sweeps: the figures of each one, and for each pair the differences on
the questions that both answered, with intervals and a test.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from orchestra.evaluation.figures import (
    Figures,
    by_question,
    figures,
    is_done,
    is_right,
    pass_at_k,
    share_right,
)
from orchestra.evaluation.intervals import (
    Interval,
    holm,
    of_difference,
    sign_flip,
)
from orchestra.evaluation.provenance import Settings
from orchestra.evaluation.questions import QuestionRow
from orchestra.evaluation.sweep_folder import (
    SCORERS,
    has_score,
    scored_rows,
    settings_of,
)
from orchestra.kernel.money import add_usd
from orchestra.kernel.vocabulary import ConfigError

PARTS = "level", "category"
MethodRow = dict[str, Any]  # the figures of a method: overall, and of each part


class Pair(TypedDict):
    """Two methods, a minus b, on their `n` common questions. `only_a`: on how many a has more right
    answers than b; without repeats, those that only a got right.
    """

    score: str
    a: str
    b: str
    n: int
    only_a: int
    only_b: int
    difference: float
    interval: Interval
    p: float  # exact: McNemar's without repeats
    p_holm: float  # after Holm's correction over all pairs


class Sweep(NamedTuple):
    """A sweep that is compared."""

    name: str
    rows: list[QuestionRow]


# ---- the report ----------------------------------------------------------------------------------


def report(
    folders: Iterable[Path], score: str | None, replied: bool = False
) -> dict[str, Any]:
    """The figures of each sweep, and the comparison of each pair of them. The rules score the
    answers that were copied out of the replies if all sweeps have them, and not with `replied`.
    Raises ConfigError.
    """
    sweeps = [(folder, settings_of(folder)) for folder in folders]
    score = _common_score([folder for folder, _ in sweeps], score)
    second = "match" if score == "gaia" else "gaia"
    found = [_rows_with_scores(folder, not replied) for folder, _ in sweeps]
    has_copies = [has_score(folder, "bare") for folder, _ in sweeps]
    done = [row for rows in found for row in rows if is_done(row)]
    bare = not replied and all(has_copies) and all("bare" in row for row in done)
    partly_bare = not (replied or bare) and any(has_copies)
    if partly_bare:
        found = [_rows_with_scores(folder, bare=False) for folder, _ in sweeps]
    methods: dict[str, MethodRow] = {}
    read: list[Sweep] = []
    for (folder, settings), rows in zip(sweeps, found, strict=True):
        name = _name_of(folder, settings, methods)
        scores = [key for key in SCORERS if has_score(folder, key)]
        methods[name] = method_row(
            rows, (score, second), scores, asked_in(settings, rows)
        )
        read.append(Sweep(name, rows))
    return {
        "score": score,
        "second": second,
        "bare": bare,
        "partly_bare": partly_bare,
        "no_copy": sum(
            row.get("bare", "") is None for sweep in read for row in sweep.rows
        ),
        "methods": methods,
        "pairs": [*compared_pairs(read, score), *compared_pairs(read, second)],
    }


def _common_score(folders: Sequence[Path], score: str | None) -> str:
    """The score of the comparison: by default the judge's if all sweeps have it, else match."""
    wanted = score or "judge"
    lacking = [folder for folder in folders if not has_score(folder, wanted)]
    if not lacking:
        return wanted
    if score is None:
        return "match"
    advice = f"orchestra-min evaluate score {lacking[0]} --scorer {score} makes it"
    raise ConfigError(f"--score {score}: {lacking[0]} does not have it; {advice}")


def _rows_with_scores(folder: Path, bare: bool) -> list[QuestionRow]:
    rows = scored_rows(folder, bare)
    if not rows:
        raise ConfigError(f"{folder} has no answer yet: run the sweep again to go on")
    return list(rows.values())


def _name_of(folder: Path, settings: Settings, others: Container[str]) -> str:
    """Method and model of a sweep; its folder too, where another has the same. It is the name of a
    column, so it has no spaces.
    """
    name = f"{settings['method'].rpartition(':')[2]}/{settings['model']}"
    tries = name, f"{name}/{folder.name}", f"{name}/{folder}"
    return next("_".join(text.split()) for text in tries if text not in others)


def asked_in(settings: Settings, rows: Sequence[QuestionRow]) -> int:
    """How many answers a sweep asks for. Earlier versions did not store it."""
    asked = len(settings.get("questions", ())) * settings.get("repeat", 1)
    return max(int(asked), len(rows))


def method_row(
    rows: Sequence[QuestionRow],
    shown: tuple[str, str],
    scores: Iterable[str],
    asked: int,
) -> MethodRow:
    """Figures of one method: overall, by score, level and category. `shown`: the two scores of the
    report.
    """
    done = [row for row in rows if is_done(row)]
    answered = [row for row in done if row["answer"].strip()]
    fallbacks = sum(bool(row.get("fallback")) for row in answered)
    calls = sum(row["calls"] for row in done)
    reused = sum(row.get("reused_calls", 0) for row in done)
    found: MethodRow = {
        "asked": asked,
        "answered": len(answered),
        "no_answer": len(done) - len(answered),
        "fallback": fallbacks / len(answered) if answered else 0.0,
        "unfinished": asked - len(done),
        "calls": calls / len(done) if done else 0.0,  # of a question
        "tokens": sum(row["tokens"] for row in done) / len(done) if done else 0.0,
        "reused": reused / calls if calls else 0.0,  # the share of the calls
        "saved_usd": add_usd(*(row.get("saved_usd", 0.0) for row in done)),
        "overall": figures(rows, *shown),
        "pass_at": pass_at_k(rows, shown[0]),
    }
    for key in scores:
        found[key] = sum(is_right(row, key) for row in rows) / len(rows)
    for part in PARTS:
        found[part] = _by_part(rows, part, shown)
    return found


def _by_part(
    rows: Sequence[QuestionRow], key: str, shown: tuple[str, str]
) -> dict[str, Figures]:
    """The figures of each level or category, in their order."""
    parts: dict[str, list[QuestionRow]] = {}
    for row in rows:
        parts.setdefault(row[key], []).append(row)
    return {part: figures(parts[part], *shown) for part in sorted(parts, key=by_number)}


def by_number(part: str) -> str:
    """As a sort key: 2 comes before 10."""
    return part.zfill(9) if part.isdigit() else part


# ---- pairs ---------------------------------------------------------------------------------------


def compared_pairs(sweeps: Sequence[Sweep], score: str) -> list[Pair]:
    """Each pair of methods, their p-values corrected for the number of pairs."""
    pairs = [compared(a, b, score) for a, b in combinations(sweeps, 2)]
    for pair, p in zip(pairs, holm([pair["p"] for pair in pairs]), strict=True):
        pair["p_holm"] = p
    return pairs


def compared(a: Sweep, b: Sweep, score: str) -> Pair:
    """Two methods on the questions that have the same right answer in both."""
    rows_a, rows_b = _common(a.rows, b.rows)
    shares_a = share_right(rows_a, score)
    shares_b = share_right(rows_b, score)
    names = list(shares_a)
    differences = [shares_a[name] - shares_b[name] for name in names]
    in_a = [shares_a[name] for name in names]
    in_b = [shares_b[name] for name in names]
    repeats = _common_multiple(rows_a, rows_b)
    return {
        "score": score,
        "a": a.name,
        "b": b.name,
        "n": len(names),
        "only_a": sum(d > 0 for d in differences),
        "only_b": sum(d < 0 for d in differences),
        "difference": sum(differences) / len(names) if names else 0.0,
        "interval": of_difference(in_a, in_b) if names else (-1.0, 1.0),
        "p": sign_flip([round(d * repeats) for d in differences]),
        "p_holm": 1.0,
    }


def _common(
    a: Sequence[QuestionRow], b: Sequence[QuestionRow]
) -> tuple[list[QuestionRow], list[QuestionRow]]:
    """The rows of the questions that both sweeps have, with the same right answer."""
    rights_a = {row["id"]: row.get("right") for row in a}
    rights_b = {row["id"]: row.get("right") for row in b}
    both = {name for name in rights_a if name in rights_b}
    same = {name for name in both if rights_a[name] == rights_b[name]}
    return [r for r in a if r["id"] in same], [r for r in b if r["id"] in same]


def _common_multiple(*sweeps: Iterable[QuestionRow]) -> int:
    """With shares times this, every difference of two shares is a whole number."""
    sizes = {len(rows) for sweep in sweeps for rows in by_question(sweep).values()}
    return math.lcm(*sizes)
