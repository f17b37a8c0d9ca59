"""The backend, the tools and the share of the budget of a sub-task (Eq. 5-8, 11-12). They follow
from the graph, the pool and the budget alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orchestra.money import Purse
from orchestra.schedule import batch
from orchestra.vocabulary import (
    SKILL_OF,
    SKILLS,
    Backend,
    BudgetExceeded,
    Media,
    SubTask,
    Task,
)

LAMBDA_COST = 10.0  # lambda_c of Eq. 5: one US cent weighs 0.1 of a capability
LAMBDA_LATENCY = 0.005  # lambda_l of Eq. 5, per second
LAMBDA_TOOL = 0.05  # lambda_s of Eq. 7
STEP_INPUT_TOKENS, STEP_OUTPUT_TOKENS = 1500, 250
DECISION_INPUT_TOKENS, DECISION_OUTPUT_TOKENS = 6000, 500
EASY = 0.2  # r(u) of a sub-task that reads one file or searches; 1 for any other
UNKNOWN = (
    0.5  # web and code in r_T(u), as a share of r(u), if the main agent gave no tools
)
Capabilities = Mapping[str, frozenset[str]]  # psi(g) by tool name
Requirements = Mapping[str, float]  # r(u) and r_T(u) by capability, each in [0, 1]


def mentions(text: str, m: Media) -> bool:
    """Whether a text names a file. (?a: in Chinese no space separates a name from its sentence.)"""
    return bool(re.search(rf"(?a:(?<!\w){re.escape(m.name)}(?!\w))", text))


def requirements(
    u: SubTask, task: Task, capabilities: Capabilities
) -> dict[str, float]:
    """r(u) and r_T(u) in one, as the main agent gave them; else a guess from the files that the
    sub-task names and the tools that it was given.
    """
    if u.requirements:
        return {"web": UNKNOWN, **u.requirements}
    text = f"{u.instruction}\n{u.context}"
    files = [m.modality for m in task.media if mentions(text, m)]
    given = {c for g in u.tools or () for c in capabilities.get(g, ())}
    need = EASY if len(files) == 1 or given == {"web"} else 1.0
    maybe = UNKNOWN * need
    other = {
        c: maybe if u.tools is None else need * (c in given) for c in ("web", "code")
    }
    named = {*files, *u.modalities}
    seen: dict[str, float] = {
        s: need for m, s in SKILL_OF.items() if m in named or s in given
    }
    return {"txt": need, **other, **seen}


def match_tools(r: Requirements, capabilities: Capabilities) -> tuple[str, ...]:
    """T*(u), the sparse cover: the objective is a sum over tools, so each is decided alone."""
    gain = {g: sum(r.get(c, 0.0) for c in psi) for g, psi in capabilities.items()}
    return tuple(g for g in capabilities if gain[g] > LAMBDA_TOOL)  # Eq. 7


def match_backend(u: SubTask, r: Requirements, pool: Sequence[Backend]) -> Backend:
    """b*(u): capability match less cost less latency; on a tie, the first of the pool (Eq. 5)."""

    def score(b: Backend) -> float:
        match = sum(
            r.get(s, 0.0) * b.skills.get(s, 0.0) for s in SKILLS
        )  # <r(u), phi_b>
        return (
            match - LAMBDA_COST * expected_cost_usd(u, b) - LAMBDA_LATENCY * b.latency_s
        )  # Eq. 5

    return max(pool, key=score)


def materialize(
    u: SubTask, task: Task, pool: Sequence[Backend], capabilities: Capabilities
) -> tuple[SubTask, Backend]:
    """Gamma(v, s_t) = (I, C, b, T), Eq. 11, with e(u) = (b*(u), T*(u)), Eq. 8.

    A valid backend and tools that the main agent named are kept.
    """
    r = requirements(u, task, capabilities)
    u = replace(u, tools=match_tools(r, capabilities)) if u.tools is None else u
    backend = next((b for b in pool if b.name == u.backend), None) or match_backend(
        u, r, pool
    )
    return replace(u, backend=backend.name), backend


@dataclass(frozen=True)
class Placed:
    """A sub-task of P_t with its executor e(u), Eq. 8, and what it may spend."""

    subtask: SubTask
    backend: Backend
    purse: Purse


def place(
    candidates: Sequence[SubTask],
    task: Task,
    pool: Sequence[Backend],
    tools: Capabilities,
    k_max: int | None,
    budget_usd: float | None,
) -> list[Placed]:
    """U_t, Eq. 12: the batch P_t of the candidates, each with its executor and its share of B_t, in
    proportion to cost(v). `k_max` None: all of them. This is the program's Scheduler.

    Shares are fixed before anything runs, so what one sub-task spends changes no request of
    another. A sub-task on a free backend gets the share of the cheapest paid one, because its tools
    may cost money. Raises BudgetExceeded if no candidate is affordable.
    """
    found = [materialize(u, task, pool, tools) for u in candidates]  # Eq. 11
    cost = {u.id: expected_cost_usd(u, b) for u, b in found}
    if k_max is not None:
        ready = [u for u, _ in found]
        chosen = batch(ready, k_max, budget_usd, lambda u: cost[u.id])
        found = [(u, b) for u, b in found if u in chosen]
    if not found:
        raise BudgetExceeded(
            f"budget exhausted: {budget_usd:.6f} USD, without the reserve for the next decision, "
            "cannot cover any sub-task; start a new run with a larger --budget"
        )
    paid = [cost[u.id] for u, _ in found if cost[u.id] > 0]
    least = min(paid, default=1.0)
    weights = [cost[u.id] or least for u, _ in found]
    placed = []
    for (u, backend), weight in zip(found, weights, strict=True):
        share = None if budget_usd is None else budget_usd * (weight / sum(weights))
        placed.append(Placed(u, backend, Purse(share)))
    return placed


def expected_cost_usd(u: SubTask, backend: Backend) -> float:
    """cost(v) of Eq. 10: kappa_b l(u), with l(u) = a step for each tool and one to finish. An
    unknown price counts as 0 (--budget refuses such a backend).
    """
    steps = 1 + len(u.tools or ())  # l(u)
    return (
        backend.cost_usd(steps * STEP_INPUT_TOKENS, steps * STEP_OUTPUT_TOKENS) or 0.0
    )


def decision_reserve_usd(main: Backend, budget_usd: float) -> float:
    """The part of B_t that is reserved for the main agent, to pay for the answer."""
    two_decisions = main.cost_usd(2 * DECISION_INPUT_TOKENS, 2 * DECISION_OUTPUT_TOKENS)
    return min(budget_usd / 2, two_decisions or 0.0)
