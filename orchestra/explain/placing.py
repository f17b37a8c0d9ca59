"""Which sub-tasks ran, on which backends, with which tools (Eq. 5, 7, 9-10)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from orchestra.explain.panel import Panel, Row, figure, listed, source_of
from orchestra.explain.recorded_run import RecordedRun
from orchestra.matching import (
    LAMBDA_COST,
    LAMBDA_LATENCY,
    LAMBDA_TOOL,
    Placed,
    Requirements,
    Score,
    batch_budget_usd,
    expected_cost_usd,
    match_tools,
    place,
    requirements,
    score,
    tool_gain,
)
from orchestra.runtime.retrace import Ran, Round
from orchestra.runtime.user_code import is_spec
from orchestra.schedule import batch, ready, waiting
from orchestra.vocabulary import (
    OPENED_BY,
    SKILLS,
    Backend,
    BudgetExceeded,
    Delegate,
    SubTask,
)

FORMULA_5 = "b^*(u) = argmax_b ⟨r(u), φ_b⟩ − λ_c κ_b ℓ(u) − λ_l δ_b"
FORMULA_7 = "T^*(u) = { g ∈ T : ⟨r_T(u), ψ(g)⟩ − λ_s > 0 }"
FORMULA_9 = "R_t = { v ∈ V_t ∖ C_t : Pred(v) ⊆ C_t }"
FORMULA_10 = (
    "P_t = argmax_{P ⊆ R_t} Σ_{v ∈ P} U(v), |P| ≤ K_max, Σ_{v ∈ P} cost(v) ≤ B_t"
)
LACKS = {
    "txt": "cannot read text",
    "img": "cannot see pictures",
    "aud": "cannot hear",
    "vid": "cannot watch video",
    "code": "cannot write code",
}
UNKNOWN_TOOLS = "What the run's own tools can do is not recorded."


def executors(run: RecordedRun, round: Round) -> Iterator[Panel]:
    """Eq. 5 and 7 of each sub-task that ran."""
    for ran in round.ran:
        u = round.graph.subtasks.get(ran.subtask.id)  # as it was delegated
        if u is None:
            continue
        yield from _backend(run, u, ran)
        yield from _tools(run, u, ran)


# ---- Eq. 5 ---------------------------------------------------------------------------------------


def _backend(run: RecordedRun, u: SubTask, ran: Ran) -> Iterator[Panel]:
    chosen = ran.subtask.backend or ""
    is_named = u.backend in run.pool.names
    if is_named and not run.names_executors:
        return
    panel = Panel(str(ran.place), "5", f"{u.id} went to {chosen}.")
    if is_named:
        yield replace(panel, title=f"{u.id} went to {chosen}: {_who(run)}'s choice.")
    elif not run.is_known(u):
        yield replace(panel, title=f"{panel.title} {UNKNOWN_TOOLS}")
    else:
        r = requirements(u, run.task, run.psi)
        placed = replace(u, tools=ran.subtask.tools)
        pool = run.pool.for_subtasks()
        scores = [(b, score(placed, r, b)) for b in pool]
        yield _scores(panel, scores, chosen, needs=_needs(u, r), r=r)


def _scores(
    panel: Panel,
    scores: Sequence[tuple[Backend, Score]],
    chosen: str,
    needs: str,
    r: Requirements,
) -> Panel:
    rows = []
    numbers = ""
    for b, s in scores:
        is_chosen = b.name == chosen
        rows.append(Row(b.name, figures=tuple(s), chosen=is_chosen, note=_lacks(b, r)))
        if is_chosen:
            numbers = _sum_of(s)
    best, _ = max(scores, key=lambda pair: pair[1].total)
    why = f"the best score of {len(rows)}" if len(rows) > 1 else "the only model"
    title = f"{panel.title.removesuffix('.')}: {why}."
    notes = [needs]
    if best.name != chosen:
        title = panel.title
        notes.append(_differs(best.name))
    return replace(
        panel,
        title=title,
        formula=FORMULA_5,
        numbers=numbers,
        columns=("match", "cost, USD", "latency, s", "score"),
        rows=tuple(rows),
        notes=tuple(notes),
        source=source_of(score),
    )


def _sum_of(s: Score) -> str:
    price = f"{figure(LAMBDA_COST)} × cost {figure(s.cost_usd)}"
    delay = f"{figure(LAMBDA_LATENCY)} × latency {figure(s.latency_s)}"
    return f"score {figure(s.total)} = match {figure(s.match)} − {price} − {delay}"


def _lacks(b: Backend, r: Requirements) -> str:
    """What a sub-task needs and a backend cannot do at all."""
    lacks = [LACKS[s] for s in SKILLS if r.get(s) and not b.skills.get(s)]
    return ", ".join(lacks)


def _needs(u: SubTask, r: Requirements) -> str:
    parts = [f"{capability} {figure(need)}" for capability, need in r.items() if need]
    how = "guessed from its files and tools"
    if u.requirements:
        of_files = [capabilities[0] for capabilities in OPENED_BY.values()]
        added = [s for s in of_files if r.get(s, 0) > u.requirements.get(s, 0)]
        how = "as delegated, with its files" if added else "as delegated"
    return f"{u.id} needs {', '.join(parts) or 'nothing'} ({how})."


def _who(run: RecordedRun) -> str:
    return "the orchestrator" if is_spec(run.options.method) else "the main agent"


def _differs(computed: str) -> str:
    return f"This version computes {computed}; another one recorded the run."


# ---- Eq. 7 ---------------------------------------------------------------------------------------


def _tools(run: RecordedRun, u: SubTask, ran: Ran) -> Iterator[Panel]:
    """A mini-SWE sub-agent has a shell in place of tools."""
    if not run.names_executors or u.agent == "mini-swe":
        return
    chosen = ran.subtask.tools or ()
    panel = Panel(str(ran.place), "7", "")
    got = f"{u.id} got {listed(chosen) or 'no tools'}"
    if u.tools is not None:
        yield replace(panel, title=f"{got}: {_who(run)}'s choice.")
        return
    r = requirements(u, run.task, run.psi)
    own = [tool for tool in chosen if tool not in run.psi]
    rows = [
        Row(tool, figures=(tool_gain(r, psi),), chosen=tool in chosen)
        for tool, psi in run.psi.items()
    ]
    rows += [Row(tool, figures=(None,), chosen=True) for tool in own]
    notes = [_needs(u, r)]
    notes += [UNKNOWN_TOOLS] if own else []
    computed = match_tools(r, run.psi)
    if {*computed} != {*chosen} - {*own}:
        notes.append(_differs(listed(computed) or "no tools"))
    yield replace(
        panel,
        title=f"{got}: tools that cover more than {figure(LAMBDA_TOOL)} of its needs.",
        formula=FORMULA_7,
        columns=("gain",),
        rows=tuple(rows),
        notes=tuple(notes),
        source=source_of(tool_gain),
    )


# ---- Eq. 9-10 ------------------------------------------------------------------------------------


def chosen_batch(run: RecordedRun, round: Round) -> Iterator[Panel]:
    """Which sub-tasks were ready, and which of them ran. A whole graph has no batches, and one
    sub-task alone no choice.
    """
    y_t = round.y_t
    if not isinstance(y_t, Delegate) or y_t.whole_graph:
        return
    held = waiting(round.graph)
    budget_usd = batch_budget_of(run, round, y_t)
    if len(held) == 1 and budget_usd is None:
        return
    place = f"r{round.state.round}"
    candidates = ready(round.graph)
    if run.has_own_tools and not all(run.is_known(u) for u in candidates):
        yield Panel(place, "9-10", UNKNOWN_TOOLS)
        return
    cost_usd = _costs(run, candidates)
    ran = [r.subtask.id for r in round.ran]
    rows = []
    for id, needs in held.items():
        u = round.graph.subtasks[id]
        note = f"waits for {', '.join(needs)}" if needs else ""
        figures = (u.priority, cost_usd.get(id))
        rows.append(Row(id, figures, chosen=id in ran, note=note))
    yield Panel(
        place=place,
        equation="9-10",
        title=_title(ran, candidates, held=len(held)),
        formula=f"{FORMULA_9}\n{FORMULA_10}",
        numbers=_limits(run, rows, budget_usd),
        columns=("priority", "cost, USD"),
        rows=tuple(rows),
        notes=tuple(_notes(run, candidates, budget_usd, ran, cost_usd)),
        source=source_of(batch),
    )


def batch_budget_of(run: RecordedRun, round: Round, y_t: Delegate) -> float | None:
    """What the sub-tasks of a round could spend together."""
    main = run.pool[run.pool.main]
    is_last = round.state.round > round.state.rounds
    return batch_budget_usd(round.left_usd, y_t, is_last, main)


def _costs(run: RecordedRun, candidates: Sequence[SubTask]) -> dict[str, float]:
    """cost(v) of each candidate with its executor."""
    placed = _placed(run, candidates, k_max=None, budget_usd=None)
    return {p.subtask.id: expected_cost_usd(p.subtask, p.backend) for p in placed}


def _placed(
    run: RecordedRun,
    candidates: Sequence[SubTask],
    k_max: int | None,
    budget_usd: float | None,
) -> list[Placed]:
    """U_t as the run's scheduler computes it; [] if no candidate is affordable."""
    pool = run.pool.for_subtasks(candidates)
    try:
        return place(candidates, run.task, pool, run.psi, k_max, budget_usd)
    except BudgetExceeded:
        return []


def _title(ran: Sequence[str], candidates: Sequence[SubTask], held: int) -> str:
    waits = held - len(candidates)
    later = f"; {waits} more must wait for results of others" if waits else ""
    return f"{len(ran)} of {len(candidates)} ready sub-tasks ran{later}."


def _limits(run: RecordedRun, rows: Sequence[Row], budget_usd: float | None) -> str:
    chosen = [row for row in rows if row.chosen]
    priorities = sum(row.figures[0] or 0.0 for row in chosen)
    costs_usd = sum(row.figures[1] or 0.0 for row in chosen)
    limit = "" if budget_usd is None else f" ≤ {figure(budget_usd)}"
    size = f"|P_t| = {len(chosen)} ≤ {run.options.parallel}"
    return f"{size}, Σ U = {figure(priorities)}, Σ cost = {figure(costs_usd)}{limit}"


def _notes(
    run: RecordedRun,
    candidates: Sequence[SubTask],
    budget_usd: float | None,
    ran: Sequence[str],
    cost_usd: dict[str, float],
) -> Iterator[str]:
    """The best batch that was too dear, and what this version computes if it is something else."""
    k_max = run.options.parallel
    computed = [p.subtask.id for p in _placed(run, candidates, k_max, budget_usd)]
    if ran and computed != [*ran]:
        yield _differs(listed(computed) or "no batch")
    if budget_usd is None:
        return
    best = [p.subtask for p in _placed(run, candidates, k_max, budget_usd=None)]
    ids = [u.id for u in best]
    if ids != computed:
        priorities = figure(sum(u.priority for u in best))
        costs_usd = figure(sum(cost_usd[id] for id in ids))
        yield (
            f"Best batch that was too dear: {listed(ids)}, with priorities of {priorities}, "
            f"costs {costs_usd} USD of {figure(budget_usd)} USD."
        )
