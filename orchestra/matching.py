"""Who does a sub-task, with which tools, and for how much (Eq. 5-8, 11-12).

A sub-task requires capabilities r(u): text, vision, hearing, code. A backend offers them as
phi(b), a tool as psi(g). The match less the price less the latency chooses the backend, and each
tool that covers enough of r(u) is taken. What the main agent has named is kept. All of it follows
from the graph, the pool and the budget alone.

    >>> from pathlib import Path
    >>> picture = Media(modality="image", name="clock.png", path=Path("clock.png"), sha256="")
    >>> task = Task("What time is it?", media=(picture,))
    >>> psi = {"SeeAction": frozenset({"img"}), "SearchAction": frozenset({"web"})}
    >>> reader = Backend("reader", "m1", "http://a/v1", skills={"txt": 1.0})
    >>> viewer = Backend("viewer", "m2", "http://a/v1", skills={"txt": 1.0, "img": 1.0})
    >>> u, backend = materialize(SubTask("t1", "Read clock.png"), task, [reader, viewer], psi)
    >>> u.backend, u.tools
    ('viewer', ('SeeAction', 'SearchAction'))
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from orchestra.money import Purse
from orchestra.schedule import batch
from orchestra.vocabulary import (
    OPENED_BY,
    SKILL_OF,
    SKILLS,
    Backend,
    BudgetExceeded,
    Delegate,
    Media,
    Modality,
    SubTask,
    Task,
)

LAMBDA_COST = 10.0  # lambda_c of Eq. 5: one US cent weighs 0.1 of a capability
LAMBDA_LATENCY = 0.005  # lambda_l of Eq. 5, per second
LAMBDA_TOOL = 0.05  # lambda_s of Eq. 7
STEP_INPUT_TOKENS = 1500
STEP_OUTPUT_TOKENS = 250
DECISION_INPUT_TOKENS = 6000
DECISION_OUTPUT_TOKENS = 500
EASY = 0.2  # r(u) of a sub-task that reads one file or searches; 1 for any other
# Web and code in r_T(u), as a share of r(u), if the main agent gave no tools
UNKNOWN = 0.5
OF_USER = "txt"  # psi(g) of the user's own tools

Capabilities = Mapping[str, frozenset[str]]  # psi(g) by tool name
Requirements = Mapping[str, float]  # r(u) and r_T(u) by capability, each in [0, 1]


# ---- r(u) ----------------------------------------------------------------------------------------


def requirements(
    u: SubTask, task: Task, capabilities: Capabilities
) -> dict[str, float]:
    """r(u) and r_T(u) in one table: what the main agent states, and at least EASY of the skill for
    each file that the sub-task names. If it states nothing, all is guessed from these files and
    from the tools that the sub-task was given.
    """
    text = f"{u.instruction}\n{u.context}"
    files = [m.modality for m in task.media if mentions(text, m)]
    if u.requirements:
        return _with_other_files(_stated(u, files), u, files, EASY)
    given: set[str] = set()  # capabilities of the tools that the main agent gave
    for tool in u.tools or ():
        given |= capabilities.get(tool, frozenset())
    is_easy = len(files) == 1 or given == {"web"}
    need = EASY if is_easy else 1.0
    r = {"txt": need}
    for capability in ("web", "code"):
        if u.tools is None:
            r[capability] = UNKNOWN * need
        else:
            r[capability] = need if capability in given else 0.0
    for modality, skill in SKILL_OF.items():
        if modality in files or modality in u.modalities or skill in given:
            r[skill] = need
    return _with_other_files(r, u, files, need)


def _with_other_files(
    r: dict[str, float], u: SubTask, files: Sequence[Modality], need: float
) -> dict[str, float]:
    """A file that is neither picture, sound nor video brings the tool that reads it, and code, if
    the main agent gave no tools.
    """
    is_named = "file" in files or "file" in u.modalities
    if u.tools is None and is_named:
        for capability in OPENED_BY["file"]:
            r[capability] = max(r.get(capability, 0.0), need)
    return r


def _stated(u: SubTask, files: Sequence[str]) -> dict[str, float]:
    """What the main agent states, with the skills for these kinds of file."""
    r = {"web": UNKNOWN, **u.requirements}
    for modality, skill in SKILL_OF.items():
        if modality in files or modality in u.modalities:
            r[skill] = max(r.get(skill, 0.0), EASY)
    return r


def mentions(text: str, m: Media) -> bool:
    """Whether a text names a file. (?a: in Chinese no space separates a name from its sentence.)"""
    return bool(re.search(rf"(?a:(?<!\w){re.escape(m.name)}(?!\w))", text))


def may_open(psi: frozenset[str], m: Media) -> bool:
    """Whether a tool with these capabilities can open a file, or may be able to: what the tools of
    the user's own open is not known. A tool for sound also opens a video.

    >>> from pathlib import Path
    >>> picture = Media(modality="image", name="clock.png", path=Path("clock.png"), sha256="")
    >>> may_open(frozenset({"img"}), picture), may_open(frozenset({"web"}), picture)
    (True, False)
    """
    if not psi or OF_USER in psi:
        return True
    hears_video = m.modality == "video" and "aud" in psi
    return not psi.isdisjoint(OPENED_BY[m.modality]) or hears_video


def in_program(params: Mapping[str, object], task: Task) -> list[Media]:
    """The files that the code of a call names: a program can read tables, documents and data. It
    cannot see what a picture shows, nor hear a recording.
    """
    code = str(params.get("code", ""))
    others = [m for m in task.media if m.modality == "file"]
    return [m for m in others if mentions(code, m)]


# ---- e(u): tools and backend ---------------------------------------------------------------------


def match_tools(r: Requirements, capabilities: Capabilities) -> tuple[str, ...]:
    """T*(u), the sparse cover: the objective is a sum over tools, so each is decided alone."""
    chosen = [tool for tool, psi in capabilities.items() if tool_gain(r, psi) > 0]
    return tuple(chosen)


def tool_gain(r: Requirements, psi: frozenset[str]) -> float:
    """What a tool adds to the objective of Eq. 7: how much of r_T(u) it covers, less lambda_s."""
    covered = sum(r.get(capability, 0.0) for capability in psi)
    return covered - LAMBDA_TOOL  # Eq. 7


def match_backend(u: SubTask, r: Requirements, pool: Sequence[Backend]) -> Backend:
    """b*(u): the backend with the best score; on a tie, the first of the pool (Eq. 5)."""
    return max(pool, key=lambda b: score(u, r, b).total)


class Score(NamedTuple):
    """The objective of Eq. 5 for one backend: capability match less cost less latency."""

    match: float  # <r(u), phi_b>
    cost_usd: float  # kappa_b l(u)
    latency_s: float  # delta_b
    total: float


def score(u: SubTask, r: Requirements, b: Backend) -> Score:
    """How well a backend suits a sub-task, Eq. 5."""
    match = sum([r.get(s, 0.0) * b.skills.get(s, 0.0) for s in SKILLS])
    cost_usd = expected_cost_usd(u, b)
    price = LAMBDA_COST * cost_usd
    delay = LAMBDA_LATENCY * b.latency_s
    total = match - price - delay  # Eq. 5
    return Score(match, cost_usd, b.latency_s, total)


def materialize(
    u: SubTask, task: Task, pool: Sequence[Backend], capabilities: Capabilities
) -> tuple[SubTask, Backend]:
    """Gamma(v, s_t) = (I, C, b, T), Eq. 11, with e(u) = (b*(u), T*(u)), Eq. 8.

    A valid backend and tools that the main agent named are kept.
    """
    r = requirements(u, task, capabilities)
    if u.tools is None:
        u = replace(u, tools=match_tools(r, capabilities))
    named = [b for b in pool if b.name == u.backend]
    backend = named[0] if named else match_backend(u, r, pool)
    return replace(u, backend=backend.name), backend


def expected_cost_usd(u: SubTask, backend: Backend) -> float:
    """cost(v) of Eq. 10: kappa_b l(u), with l(u) = a step for each tool and one to finish. An
    unknown price counts as 0 (--budget refuses such a backend).
    """
    tools = u.tools or ()
    steps = len(tools) + 1  # l(u)
    usd = backend.cost_usd(steps * STEP_INPUT_TOKENS, steps * STEP_OUTPUT_TOKENS)
    return 0.0 if usd is None else usd


# ---- Eq. 12: a batch with its money --------------------------------------------------------------


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
    cost_usd = {u.id: expected_cost_usd(u, backend) for u, backend in found}
    if k_max is not None:
        ready = [u for u, _ in found]
        chosen = batch(ready, k_max, budget_usd, lambda u: cost_usd[u.id])
        found = [(u, backend) for u, backend in found if u in chosen]
    if not found:
        least_usd = min(cost_usd.values())
        raise BudgetExceeded(
            f"budget exhausted: {budget_usd:.6f} USD, without the reserve for the next decision, "
            f"cannot cover a sub-task; the cheapest needs about {least_usd:.6f} USD"
        )
    shares_usd = _shares_usd([cost_usd[u.id] for u, _ in found], budget_usd)
    placed = []
    for (u, backend), share_usd in zip(found, shares_usd, strict=True):
        purse = Purse(limit_usd=share_usd)
        placed.append(Placed(subtask=u, backend=backend, purse=purse))
    return placed


def _shares_usd(
    costs_usd: Sequence[float], budget_usd: float | None
) -> Sequence[float | None]:
    """The budget in proportion to costs; what is free counts as the cheapest that is not."""
    if budget_usd is None:
        return [None] * len(costs_usd)
    least = min((cost for cost in costs_usd if cost > 0), default=1.0)
    weights = [cost if cost > 0 else least for cost in costs_usd]
    total = sum(weights)
    return [budget_usd * (weight / total) for weight in weights]


def batch_budget_usd(
    left_usd: float | None, y_t: Delegate, is_last: bool, main: Backend
) -> float | None:
    """What is left of B_t for a batch: all, or less the reserve if a decision follows. `is_last`:
    the round of a last chance.
    """
    if left_usd is None or is_last or y_t.final:
        return left_usd
    return left_usd - decision_reserve_usd(main, left_usd)


def decision_reserve_usd(main: Backend, budget_usd: float) -> float:
    """The part of B_t that is reserved for the main agent, to pay for the answer."""
    two_decisions = main.cost_usd(2 * DECISION_INPUT_TOKENS, 2 * DECISION_OUTPUT_TOKENS)
    if two_decisions is None:
        return 0.0
    return min(budget_usd / 2, two_decisions)
