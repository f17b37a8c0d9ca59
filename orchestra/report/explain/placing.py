"""Which sub-tasks ran, on which backends, with which tools (Eq. 5, 7, 9-10)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from orchestra.kernel.placing import (
    LAMBDA_COST,
    LAMBDA_LATENCY,
    LAMBDA_TOOL,
    batch,
    expected_cost_usd,
    materialize,
    ready,
    requirements,
    score,
    tool_gain,
    waiting,
)
from orchestra.kernel.vocabulary import (
    SKILLS,
    Backend,
    Delegate,
    SubTask,
)
from orchestra.report.explain.panel import Panel, Row, figure, source_of
from orchestra.report.explain.rounds import PAPER, Ran, Round

FORMULA_5 = "b^*(u) = argmax_b ⟨r(u), φ_b⟩ − λ_c κ_b ℓ(u) − λ_l δ_b"
FORMULA_7 = "T^*(u) = { g ∈ T : ⟨r_T(u), ψ(g)⟩ − λ_s > 0 }"
FORMULA_9 = "R_t = { v ∈ V_t ∖ C_t : Pred(v) ⊆ C_t }"
FORMULA_10 = (
    "P_t = argmax_{P ⊆ R_t} Σ_{v ∈ P} U(v), |P| ≤ K_max, Σ_{v ∈ P} cost(v) ≤ B_t"
)
WEIGHTS_5 = (  # what the numbers mean, and where they come from
    "match: how far the skills in your pool file cover the needs. "
    f"1 USD costs {LAMBDA_COST:g} points, 1 s {LAMBDA_LATENCY:g} (our weights; the paper has none)."
)
GAIN_7 = f"gain: the needs that the tool covers, minus {LAMBDA_TOOL:g} (our weight)."
NUMBERS_10 = (
    "U is the priority that the main agent gave; cost is what your prices let expect."
)
NAMES_EXECUTORS = (PAPER, "aorchestra")  # their main agent names models and tools
LACKS = {  # of a model, and of one whose tool does it
    "txt": ("cannot read text", ""),
    "img": ("cannot see pictures", "its tool sees the picture"),
    "aud": ("cannot hear", "its tool hears the sound"),
    "vid": ("cannot watch video", "its tool watches the video"),
    "code": ("cannot write code", ""),
}


def executors(round: Round) -> Iterator[Panel]:
    """Eq. 5 and 7 of each sub-task that ran."""
    for ran in round.ran:
        u = round.graph.subtasks.get(ran.subtask.id)  # as it was delegated
        if u is not None:
            yield from _backend(round, u, ran)
            yield from _tools(round, u, ran)


def _requirements(round: Round, u: SubTask) -> dict[str, float]:
    return requirements(u, round.state.task, round.state.capabilities)


# ---- Eq. 5 ---------------------------------------------------------------------------------------


def _backend(round: Round, u: SubTask, ran: Ran) -> Iterator[Panel]:
    chosen = ran.subtask.backend or ""
    panel = Panel(str(ran.place), "5", f"{u.id} went to {chosen}")
    if u.backend in round.pool.names:
        if round.method in NAMES_EXECUTORS:
            yield replace(panel, title=f"{panel.title}: the main agent's choice.")
        return
    r = _requirements(round, u)
    placed = replace(u, tools=ran.subtask.tools)
    scores = {b.name: _scored(placed, r, b) for b in round.pool.backends}
    rows = []
    for b in round.pool.backends:
        is_chosen = b.name == chosen
        note = _lacks(b, r, is_chosen and bool(placed.tools))
        if b.price_usd_per_mtok is None:
            note = ", ".join(filter(None, [note, "price unknown, taken as 0"]))
        rows.append(Row(b.name, scores[b.name], is_chosen, note))
    best = max(scores, key=lambda name: scores[name][-1])
    why = f"the best score of {len(rows)}" if len(rows) > 1 else "the only model"
    match, cost_usd, latency_s, total = scores.get(chosen, (0.0, 0.0, 0.0, 0.0))
    price = f"{figure(LAMBDA_COST)} × cost {figure(cost_usd)}"
    delay = f"{figure(LAMBDA_LATENCY)} × latency {figure(latency_s)}"
    yield replace(
        panel,
        title=f"{panel.title}: {why}." if best == chosen else f"{panel.title}.",
        formula=FORMULA_5,
        numbers=f"score {figure(total)} = match {figure(match)} − {price} − {delay}",
        columns=("match", "cost, USD", "latency, s", "score"),
        rows=tuple(rows),
        notes=(_needs(u, r), WEIGHTS_5, *_differs(best, chosen)),
        source=source_of(score),
    )


def _scored(
    u: SubTask, r: Mapping[str, float], b: Backend
) -> tuple[float, float, float, float]:
    """The parts of Eq. 5 and its value."""
    total = score(u, r, b)
    cost_usd = expected_cost_usd(u, b)
    match = total + LAMBDA_COST * cost_usd + LAMBDA_LATENCY * b.latency_s
    return match, cost_usd, b.latency_s, total


def _lacks(b: Backend, r: Mapping[str, float], has_tools: bool) -> str:
    """What a sub-task needs and a backend cannot do at all, or a tool does for it."""
    lacking = [LACKS[s] for s in SKILLS if r.get(s) and not b.skills.get(s)]
    return ", ".join(
        by_tool if has_tools and by_tool else no for no, by_tool in lacking
    )


def _needs(u: SubTask, r: Mapping[str, float]) -> str:
    parts = [
        f"{capability} {figure(need)}" for capability, need in sorted(r.items()) if need
    ]
    how = (
        "as delegated, with its files"
        if u.requirements
        else "guessed from its files and tools"
    )
    return f"{u.id} needs {', '.join(parts) or 'nothing'} ({how})."


def _differs(computed: str, recorded: str) -> list[str]:
    """A note if this version computes something else than the run did."""
    if computed == recorded:
        return []
    return [f"This version computes {computed}; another one recorded the run."]


# ---- Eq. 7 ---------------------------------------------------------------------------------------


def _tools(round: Round, u: SubTask, ran: Ran) -> Iterator[Panel]:
    """A mini-SWE sub-agent has a shell in place of tools."""
    if round.method not in NAMES_EXECUTORS or u.agent == "mini-swe":
        return
    chosen = ran.subtask.tools or ()
    got = f"{u.id} got {', '.join(chosen) or 'no tools'}"
    panel = Panel(str(ran.place), "7", f"{got}: the main agent's choice.")
    if u.tools is not None:
        yield panel
        return
    psi = round.state.capabilities
    r = _requirements(round, u)
    gains = {tool: tool_gain(r, psi[tool]) for tool in psi}
    rows = [Row(tool, (gain,), tool in chosen) for tool, gain in gains.items()]
    computed = [tool for tool, gain in gains.items() if gain > 0]
    yield replace(
        panel,
        title=f"{got}: tools that cover more than {figure(LAMBDA_TOOL)} of its needs.",
        formula=FORMULA_7,
        columns=("gain",),
        rows=tuple(rows),
        notes=(_needs(u, r), GAIN_7, *_differs(", ".join(computed), ", ".join(chosen))),
        source=source_of(tool_gain),
    )


# ---- Eq. 9-10 ------------------------------------------------------------------------------------


def chosen_batch(round: Round) -> Iterator[Panel]:
    """Which sub-tasks were ready, and which of them ran. A whole graph has no batches, and one
    sub-task alone no choice.
    """
    if not isinstance(round.y_t, Delegate) or round.y_t.whole_graph:
        return
    s = round.state
    held = waiting(round.graph)
    if len(held) == 1 and round.batch_usd is None:
        return
    cost_usd = {}
    for u in ready(round.graph):
        placed, backend = materialize(u, s.task, round.pool.backends, s.capabilities)
        cost_usd[u.id] = expected_cost_usd(placed, backend)
    ran = [r.subtask.id for r in round.ran]
    rows = []
    for id, needs in held.items():
        note = f"waits for {', '.join(needs)}" if needs else ""
        figures = (round.graph.subtasks[id].priority, cost_usd.get(id))
        rows.append(Row(id, figures, id in ran, note))
    waits = len(held) - len(cost_usd)
    later = f"; {waits} more must wait for results of others" if waits else ""
    yield Panel(
        place=f"r{s.round}",
        equation="9-10",
        title=f"{len(ran)} of {len(cost_usd)} ready sub-tasks ran{later}.",
        formula=f"{FORMULA_9}\n{FORMULA_10}",
        numbers=_limits(round, rows),
        columns=("priority", "cost, USD"),
        rows=tuple(rows),
        notes=(NUMBERS_10,),
        source=source_of(batch),
    )


def _limits(round: Round, rows: Sequence[Row]) -> str:
    chosen = [row.figures for row in rows if row.chosen]
    priorities = sum(priority or 0.0 for priority, _ in chosen)
    costs_usd = sum(cost_usd or 0.0 for _, cost_usd in chosen)
    k_max = round.options.k_max
    size = f"|P_t| = {len(chosen)}" + ("" if k_max is None else f" ≤ {k_max}")
    limit = "" if round.batch_usd is None else f" ≤ {figure(round.batch_usd)}"
    return f"{size}, Σ U = {figure(priorities)}, Σ cost = {figure(costs_usd)}{limit}"
