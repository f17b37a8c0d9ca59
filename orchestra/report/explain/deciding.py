"""What the main agent read, whether it was sure enough, and what a round cost (Eq. 20-22)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestra.kernel.memory import compress, select
from orchestra.kernel.method import share
from orchestra.kernel.money import Purse, add_usd
from orchestra.kernel.prompts import tokens
from orchestra.kernel.selection import HEAD
from orchestra.kernel.tape import Answer, exchanges
from orchestra.kernel.vocabulary import Delegate, Evidence, Place
from orchestra.methods.orchestra_o1 import stop_probability
from orchestra.report.explain.panel import Panel, Row, figure, shortened, source_of
from orchestra.report.explain.rounds import PAPER, Round

FORMULA_20 = "C_{t+1} = argmax_{|C| ≤ L_ctx} I(C; q) + Σ_{h ∈ H_{t+1}} w(h) I(C; h)"
FORMULA_21 = "B_{t+1} = B_t − Σ_j c_{t,j}"
FORMULA_22 = "p_stop(s_t) = p(a_t = complete | s_t) > τ_stop"
NO_LIMIT = 1 << 60  # of tokens


# ---- Eq. 20 --------------------------------------------------------------------------------------


def context(round: Round) -> Iterator[Panel]:
    """Which findings the main agent read."""
    s = round.state
    if not s.history or round.method != PAPER:
        return
    question = s.task.question
    limit = round.options.context_tokens
    is_whole = s.context == compress(question, s.history, NO_LIMIT)
    used = f"{tokens(s.context)} of {limit} tokens"
    if is_whole:
        lines = [compress(question, [h], NO_LIMIT) for h in s.history]
        rows = [
            _row_of(line.removeprefix("- "), (tokens(line),), True) for line in lines
        ]
        title = f"All findings fit into the context ({len(rows)}): {used}."
    else:
        rows = list(_pieces(question, s.history, limit))
        kept = sum(row.chosen for row in rows)
        title = f"{kept} of {len(rows)} pieces of the findings are kept: {used}."
    yield Panel(
        place=f"r{s.round}",
        equation="20",
        title=title,
        formula=FORMULA_20,
        numbers=f"|C| = {tokens(s.context)} ≤ {limit}",
        columns=("tokens",) if is_whole else ("tokens", "gain per token"),
        rows=tuple(rows),
        source=source_of(select),
    )


def _pieces(question: str, history: Sequence[Evidence], limit: int) -> Iterator[Row]:
    """Each piece of the findings; those that were chosen have the gain that they had then."""
    pieces, gains = select(question, history, limit)
    for i, h in enumerate(history):
        for n, piece in enumerate(pieces[i]):
            name = piece.text if n == HEAD else f"{h.id}: {piece.text}"
            gain = gains.get((i, n))
            yield _row_of(name, (piece.tokens, gain), gain is not None)


def _row_of(text: str, figures: tuple[float | None, ...], is_kept: bool) -> Row:
    return Row(shortened(text), figures, is_kept, "" if is_kept else "no room")


# ---- Eq. 22 --------------------------------------------------------------------------------------


def log_probabilities(folder: Path) -> dict[Place, Any]:
    """Those of each attempt at a decision, from the tape of a run. A decision to stop is followed
    by a second call, for the answer, which does not count.
    """
    found: dict[Place, Any] = {}
    for exchange in exchanges(folder / "tape.jsonl"):
        place = Place.parse(exchange.call)
        outcome = exchange.outcome
        if place and not place.subtask and isinstance(outcome, Answer):
            choice = outcome.value["data"]["choices"][0]
            found.setdefault(place, (choice.get("logprobs") or {}).get("content"))
    return found


def stop(
    round: Round, logprobs: Mapping[Place, Any], is_last_chance: bool
) -> Iterator[Panel]:
    """How sure the main agent was in each attempt at a decision. A last chance is not asked."""
    threshold = round.options.more.get("stop_threshold")
    if threshold is None or round.method != PAPER or is_last_chance:
        return
    tau_stop = share(threshold)
    rows = []
    for number, attempt in enumerate(round.attempts, 1):
        p_stop = stop_probability(logprobs.get(Place(*attempt["at"])))
        can_stop = p_stop is not None and p_stop > tau_stop
        y_t = attempt.get("decision")
        note = y_t["action"] if y_t else "refused"
        rows.append(Row(f"attempt {number}", (p_stop, tau_stop), can_stop, note))
    last = rows[-1]
    p_stop = last.figures[0]
    title = "The endpoint gave no log-probabilities: the action alone decided."
    numbers = ""
    if p_stop is not None:
        was = "was" if last.chosen else "was not"
        title = f"The main agent {was} sure enough to answer."
        numbers = f"{figure(p_stop)} {'>' if last.chosen else '≤'} {figure(tau_stop)}"
    yield Panel(
        place=f"r{round.state.round}",
        equation="22",
        title=title,
        formula=FORMULA_22,
        numbers=numbers,
        columns=("p_stop", "τ_stop"),
        rows=tuple(rows),
        source=source_of(stop_probability),
    )


# ---- Eq. 21 --------------------------------------------------------------------------------------


def budget(round: Round, next_usd: float | None) -> Iterator[Panel]:
    """What the round could spend and spent. `next_usd`: B_t of the next round, if there is one."""
    before_usd = round.state.budget_usd
    if before_usd is None or round.left_usd is None:
        return
    decided_usd = add_usd(*(attempt["cost_usd"] for attempt in round.attempts))
    rows = [
        Row("before the decision", (before_usd, None)),
        Row("the decision", (None, decided_usd)),
    ]
    batch_usd = round.batch_usd
    if isinstance(round.y_t, Delegate) and batch_usd is not None:
        rows.append(Row("reserved for decisions", (round.left_usd - batch_usd, None)))
        rows.append(Row("for the sub-tasks together", (batch_usd, None)))
    for ran in round.ran:
        spent_usd = ran.result.cost_usd if ran.result else None
        note = "" if ran.result else "did not end"
        rows.append(Row(ran.subtask.id, (ran.share_usd, spent_usd), note=note))
    after_usd = round.end_usd if next_usd is None else next_usd
    unanswered_usd = (round.end_usd or 0.0) - (after_usd or 0.0)
    if unanswered_usd:
        rows.append(Row("attempts without an answer", (None, unanswered_usd)))
    rows.append(Row("after the round", (after_usd, None)))
    spent = [row.figures[1] for row in rows if row.figures[1] is not None]
    costs = "".join(f" − {figure(usd)}" for usd in spent)
    yield Panel(
        place=f"r{round.state.round}",
        equation="21",
        title=f"{figure(before_usd)} USD before the round, {figure(after_usd)} after it.",
        formula=FORMULA_21,
        numbers=f"{figure(after_usd)} = {figure(before_usd)}{costs}",
        columns=("available, USD", "spent, USD"),
        rows=tuple(rows),
        source=source_of(Purse.join),
    )
