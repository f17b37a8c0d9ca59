"""What the main agent read, whether it was sure enough, and what a round cost (Eq. 20-22)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestra.explain.panel import Panel, Row, figure, shortened, source_of
from orchestra.explain.placing import batch_budget_of
from orchestra.explain.recorded_run import PAPER, RecordedRun
from orchestra.memory import HEAD, Choice, compress, select, tokens
from orchestra.money import Purse, add_usd
from orchestra.runtime.prompts import WORDING
from orchestra.runtime.retrace import Round
from orchestra.stopping import is_sure, stop_probability
from orchestra.vocabulary import Delegate, Evidence, Place

FORMULA_20 = "C_{t+1} = argmax_{|C| ≤ L_ctx} I(C; q) + Σ_{h ∈ H_{t+1}} w(h) I(C; h)"
FORMULA_21 = "B_{t+1} = B_t − Σ_j c_{t,j}"
FORMULA_22 = "p_stop(s_t) = p(a_t = complete | s_t) > τ_stop"
LEFT_OUT = "A part of the tokens is reserved for the line that counts what is left out."


# ---- Eq. 20 --------------------------------------------------------------------------------------


def context(run: RecordedRun, round: Round) -> Iterator[Panel]:
    """Which findings the main agent read."""
    history = round.state.history
    if not history or run.options.method != PAPER:
        return
    limit = run.options.context_tokens
    selection = select(run.task.question, history, WORDING, limit)
    used = f"{tokens(selection.text)} of {limit} tokens"
    notes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ("tokens",)
    if selection.choice is None:
        rows = [_whole(run, h, limit) for h in history]
        title = f"All findings fit into the context ({len(rows)}): {used}."
    else:
        rows = list(_pieces(history, selection.choice))
        columns = ("tokens", "gain per token")
        notes = (LEFT_OUT,)
        kept = sum(row.chosen for row in rows)
        title = f"{kept} of {len(rows)} pieces of the findings are kept: {used}."
    yield Panel(
        place=f"r{round.state.round}",
        equation="20",
        title=title,
        formula=FORMULA_20,
        numbers=f"|C| = {tokens(selection.text)} ≤ {limit}",
        columns=columns,
        rows=tuple(rows),
        notes=notes,
        source=source_of(Choice.gain if selection.choice else select),
    )


def _whole(run: RecordedRun, h: Evidence, limit: int) -> Row:
    line = compress(run.task.question, [h], WORDING, limit)
    return Row(shortened(line.removeprefix("- ")), (tokens(line),), chosen=True)


def _pieces(history: Sequence[Evidence], choice: Choice) -> Iterator[Row]:
    """Each piece, with its gain when it was chosen, or at the end if it was left out."""
    for i, (h, pieces) in enumerate(zip(history, choice.pieces, strict=True)):
        for n, piece in enumerate(pieces):
            gain = choice.chosen.get((i, n))
            is_kept = gain is not None
            note = ""
            if not is_kept:
                gain = choice.gain((i, n))
                has_head = (i, HEAD) in choice.chosen
                note = "no room" if has_head or n == HEAD else "without its head"
            name = piece.text if n == HEAD else f"{h.id}: {piece.text}"
            figures = (piece.tokens, gain)
            yield Row(shortened(name), figures, chosen=is_kept, note=note)


# ---- Eq. 22 --------------------------------------------------------------------------------------


def stop(run: RecordedRun, round: Round, is_last_chance: bool) -> Iterator[Panel]:
    """How sure the main agent was in each attempt at a decision. A last chance is not asked."""
    tau_stop = run.options.stop_threshold
    if tau_stop is None or not run.logprobs or is_last_chance:
        return
    rows: list[Row] = []
    for attempt in round.attempts:
        logprobs = run.logprobs.get(Place(*attempt["at"]))
        p_stop = stop_probability(logprobs)
        can_stop = p_stop is not None and is_sure(p_stop, tau_stop)
        note = "refused"  # the mistake is a text for the model
        if "decision" in attempt:
            note = str(attempt["decision"].get("action"))
        name = f"attempt {len(rows) + 1}"
        rows.append(Row(name, (p_stop, tau_stop), chosen=can_stop, note=note))
    *_, last = rows
    p_stop, _ = last.figures
    if p_stop is None:
        title = "The endpoint gave no log-probabilities: the action alone decided."
        numbers = ""
    else:
        sure = "was" if last.chosen else "was not"
        title = f"The main agent {sure} sure enough to answer."
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


def budget(run: RecordedRun, round: Round, next_usd: float | None) -> Iterator[Panel]:
    """What the round could spend and spent. `next_usd`: B_t of the next round, if there is one."""
    before_usd = round.state.budget_usd
    if before_usd is None or round.left_usd is None:
        return
    decided_usd = add_usd(*(attempt["cost_usd"] for attempt in round.attempts))
    rows = [
        Row("before the decision", (before_usd, None)),
        Row("the decision", (None, decided_usd)),
    ]
    if isinstance(round.y_t, Delegate):
        batch_usd = batch_budget_of(run, round, round.y_t) or 0.0
        reserve_usd = round.left_usd - batch_usd
        rows.append(Row("reserved for the next decision", (reserve_usd, None)))
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
