"""From the graph of sub-tasks to a batch with executors and money (Eq. 5-12).

A sub-task is ready when every sub-task that it needs has found something (Eq. 9). Of the ready ones
a batch runs in parallel: at most K_max, within the budget, as useful as possible (Eq. 10). A
sub-task requires capabilities r(u); a backend offers phi(b), a tool psi(g). The match less the
price less the latency chooses the backend (Eq. 5), and each tool that covers enough is taken
(Eq. 7). What the main agent has named is kept. All of it depends on the arguments alone.

    >>> hear, look = SubTask("hear", "When?"), SubTask("look", "Where?", priority=2.0)
    >>> graph = refine(Graph(), Delegate((hear, look, SubTask("utc", "?", needs=("hear",)))))
    >>> [u.id for u in ready(graph)]
    ['hear', 'look']
    >>> [u.id for u in batch(ready(graph), k_max=8, budget_usd=0.03, cost_usd=[0.02, 0.02])]
    ['look']
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from itertools import combinations

from orchestra.kernel.money import Purse
from orchestra.kernel.vocabulary import (
    OPENED_BY,
    SKILL_OF,
    SKILLS,
    Backend,
    BudgetExceeded,
    Delegate,
    Media,
    ModelMistake,
    Result,
    SubTask,
    Task,
)

EXACT = 15  # with at most this many ready sub-tasks, all subsets are compared
Subset = tuple[int, ...]  # of the candidates, by number
LAMBDA_COST = 10.0  # lambda_c of Eq. 5: one US cent weighs 0.1 of a capability
LAMBDA_LATENCY = 0.005  # lambda_l of Eq. 5, per second
LAMBDA_TOOL = 0.05  # lambda_s of Eq. 7
STEP_TOKENS = 1500, 250  # of one step of a sub-agent: read, written
EASY = 0.2  # r(u) of a sub-task that reads one file or searches; 1 for any other
UNKNOWN = 0.5  # web and code, as a share of r(u), if the main agent gave no tools
OF_USER = "txt"  # psi(g) of the user's own tools
Capabilities = Mapping[str, frozenset[str]]  # psi(g) by tool name


# ---- the graph: Eq. 9 ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Graph:
    """G_t = (V_t, E_t): sub-tasks by id, in the order of delegation, and their `needs` as edges."""

    subtasks: Mapping[str, SubTask] = field(default_factory=dict)
    results: Mapping[str, Result] = field(default_factory=dict)

    def with_result(self, id: str, z: Result) -> Graph:
        return replace(self, results={**self.results, id: z})


def refine(graph: Graph, y_t: Delegate) -> Graph:
    """G_{t+1} = Refine(G_t, y_t): new nodes; a known id is a retry. Raises ModelMistake."""
    ids = [u.id for u in y_t.subtasks]
    for id in ids:
        if ids.count(id) > 1:
            raise ModelMistake("duplicate_id", id=id)
    subtasks = {**graph.subtasks, **{u.id: u for u in y_t.subtasks}}
    for u in y_t.subtasks:
        for need in u.needs:
            if need not in subtasks:
                known = ", ".join(subtasks)
                raise ModelMistake("unknown_need", id=u.id, need=need, known=known)
    circle = cycle({id: u.needs for id, u in subtasks.items()})
    if circle:
        path = " -> ".join(reversed(circle))
        raise ModelMistake("cycle", path=path)
    kept = {id: z for id, z in graph.results.items() if id not in ids}
    refined = Graph(subtasks, kept)
    if not ready(refined):
        rows = [f"{id} <- {', '.join(needs)}" for id, needs in waiting(refined).items()]
        raise ModelMistake("nothing_ready", waiting="; ".join(rows) or "-")
    return refined


def cycle(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """The ids of one cycle, each needed by the next; or []."""
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def ready(graph: Graph) -> list[SubTask]:
    """R_t = {v in V_t without result : Pred(v) completed}, in submission order."""
    held = waiting(graph)
    return [graph.subtasks[id] for id, needs in held.items() if not needs]  # Eq. 9


def waiting(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Sub-tasks that have not run, each with the needs that are not completed.

    A failed or blocked sub-task is not completed.
    """
    completed = set()
    for id, z in graph.results.items():
        if z.status in ("done", "partial"):
            completed.add(id)
    held = {}
    for id, u in graph.subtasks.items():
        if id not in graph.results:
            held[id] = tuple(need for need in u.needs if need not in completed)
    return held


# ---- Eq. 10: what runs next ----------------------------------------------------------------------


def batch(
    candidates: Sequence[SubTask],
    k_max: int,
    budget_usd: float | None,
    cost_usd: Sequence[float],
) -> list[SubTask]:
    """P_t: the subset of R_t with the largest sum of U under |P| <= K_max and sum of cost <= B_t.

    Exact for up to EXACT candidates, or if any batch is affordable; otherwise greedy. A tie goes
    to the cheaper subset, then the smaller, then the earlier.
    """
    utility = [u.priority for u in candidates]

    def rank(subset: Subset) -> tuple[float, float, int, Subset]:
        gain = sum(utility[i] for i in subset)
        return -gain, sum(cost_usd[i] for i in subset), len(subset), subset

    indices = range(len(candidates))
    dearest = sorted(cost_usd, reverse=True)[:k_max]
    if budget_usd is None or sum(dearest) <= budget_usd:
        by_utility = sorted(indices, key=lambda i: (-utility[i], cost_usd[i], i))
        chosen = tuple(by_utility[:k_max])
    elif len(affordable := [i for i in indices if cost_usd[i] <= budget_usd]) <= EXACT:
        within = _subsets(affordable, k_max, cost_usd, budget_usd)
        chosen = min(within, key=rank)  # Eq. 10
    else:
        gain_per_usd = [utility[i] / max(cost_usd[i], 1e-12) for i in indices]
        orders = [
            sorted(affordable, key=lambda i: -gain_per_usd[i]),
            sorted(affordable, key=lambda i: -utility[i]),
        ]
        greedy = [_fitting(order, k_max, cost_usd, budget_usd) for order in orders]
        chosen = min(greedy, key=rank)
    return [candidates[i] for i in sorted(chosen)]


def _subsets(
    items: Sequence[int], k_max: int, cost_usd: Sequence[float], budget_usd: float
) -> Iterator[Subset]:
    for size in range(min(k_max, len(items)) + 1):
        for subset in combinations(items, size):
            if sum(cost_usd[i] for i in subset) <= budget_usd:
                yield subset


def _fitting(
    order: Iterable[int], k_max: int, cost_usd: Sequence[float], budget_usd: float
) -> Subset:
    """One item after the other, while there is room and money."""
    taken: list[int] = []
    for i in order:
        if len(taken) < k_max and cost_usd[i] <= budget_usd:
            budget_usd -= cost_usd[i]
            taken.append(i)
    return tuple(taken)


# ---- r(u) ----------------------------------------------------------------------------------------


def requirements(
    u: SubTask, task: Task, capabilities: Capabilities
) -> dict[str, float]:
    """r(u) and r_T(u): what the main agent states, or a guess from the files that the sub-task
    names and the tools that it was given.
    """
    text = f"{u.instruction}\n{u.context}"
    kinds = {m.modality for m in task.media if mentions(text, m)} | set(u.modalities)
    files = [m for m in task.media if mentions(text, m)]
    given = {c for tool in u.tools or () for c in capabilities.get(tool, ())}
    skills = {SKILL_OF[kind] for kind in kinds if kind in SKILL_OF}
    if u.requirements:
        need = EASY
        r = {"web": UNKNOWN, **u.requirements}
    else:
        is_easy = len(files) == 1 or given == {"web"}
        need = EASY if is_easy else 1.0
        r = {"txt": need}
        for capability in ("web", "code"):
            r[capability] = need if capability in given else 0.0
            if u.tools is None:
                r[capability] = UNKNOWN * need
        skills |= given & set(SKILL_OF.values())
    if u.tools is None and "file" in kinds:
        skills |= set(OPENED_BY["file"])
    for skill in skills:
        r[skill] = max(r.get(skill, 0.0), need)
    return r


def mentions(text: str, m: Media) -> bool:
    """Whether a text names a file. (?a: in Chinese no space separates a name from its sentence.)"""
    return bool(re.search(rf"(?a:(?<!\w){re.escape(m.name)}(?!\w))", text))


def may_open(psi: frozenset[str], m: Media) -> bool:
    """Whether a tool with these capabilities can open a file. A tool for sound opens a video, and
    what the user's own tools open is not known.
    """
    if not psi or OF_USER in psi:
        return True
    hears_video = m.modality == "video" and "aud" in psi
    return not psi.isdisjoint(OPENED_BY[m.modality]) or hears_video


def in_program(params: Mapping[str, object], task: Task) -> list[Media]:
    """The files that the code of a call names: a program can read tables and documents."""
    code = str(params.get("code", ""))
    return [m for m in task.media if m.modality == "file" and mentions(code, m)]


# ---- e(u): tools and backend ---------------------------------------------------------------------


def tool_gain(r: Mapping[str, float], psi: frozenset[str]) -> float:
    """What a tool adds to Eq. 7. The sum is over tools, so each is decided alone."""
    return sum(r.get(capability, 0.0) for capability in psi) - LAMBDA_TOOL  # Eq. 7


def score(u: SubTask, r: Mapping[str, float], b: Backend) -> float:
    """How well a backend suits a sub-task, Eq. 5."""
    match = sum([r.get(skill, 0.0) * b.skills.get(skill, 0.0) for skill in SKILLS])
    price = LAMBDA_COST * expected_cost_usd(u, b)
    return match - price - LAMBDA_LATENCY * b.latency_s  # Eq. 5


def expected_cost_usd(u: SubTask, b: Backend) -> float:
    """cost(v) of Eq. 10: kappa_b l(u), with l(u) = a step for each tool and one to finish."""
    steps = len(u.tools or ()) + 1
    read, written = STEP_TOKENS
    return b.cost_usd(steps * read, steps * written) or 0.0


def materialize(
    u: SubTask, task: Task, pool: Sequence[Backend], capabilities: Capabilities
) -> tuple[SubTask, Backend]:
    """Gamma(v, s_t) = (I, C, b, T), Eq. 11, with e(u) = (b*(u), T*(u)), Eq. 8."""
    r = requirements(u, task, capabilities)
    if u.tools is None:
        chosen = [tool for tool, psi in capabilities.items() if tool_gain(r, psi) > 0]
        u = replace(u, tools=tuple(chosen))
    named = [b for b in pool if b.name == u.backend]
    backend = named[0] if named else max(pool, key=lambda b: score(u, r, b))
    return replace(u, backend=backend.name), backend


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
    """U_t, Eq. 12: the batch P_t, each with its executor and its share of B_t in proportion to
    cost(v). `k_max` None: all candidates. Raises BudgetExceeded if none is affordable.

    Shares are fixed before anything runs, so what one sub-task spends changes no request of
    another.
    """
    found = [materialize(u, task, pool, tools) for u in candidates]  # Eq. 11
    cost_usd = [expected_cost_usd(u, backend) for u, backend in found]
    if k_max is not None:
        chosen = batch([u for u, _ in found], k_max, budget_usd, cost_usd)
        found = [(u, backend) for u, backend in found if u in chosen]
    if not found:
        raise BudgetExceeded(
            f"budget exhausted: USD {budget_usd:.6f} are left besides the reserve for decisions, "
            f"and the cheapest sub-task needs about USD {min(cost_usd):.6f}"
        )
    costs = [expected_cost_usd(u, backend) for u, backend in found]
    least = min((cost for cost in costs if cost > 0), default=1.0)
    weights = [
        cost if cost > 0 else least for cost in costs
    ]  # tools of a free one may cost
    placed = []
    for (u, backend), weight in zip(found, weights, strict=True):
        share_usd = None
        if budget_usd is not None:
            share_usd = budget_usd * (weight / sum(weights))
        placed.append(Placed(u, backend, Purse(share_usd)))
    return placed
