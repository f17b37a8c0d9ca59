"""The graph of sub-tasks G_t, its ready set, and the batch that runs next (Eq. 9-10).

A sub-task is ready when every sub-task that it needs has found something. Of the ready ones a batch
runs in parallel: at most K_max sub-tasks, together within the budget, and as useful as possible.
The batch follows from the graph and the budget alone.

    >>> hear, look = SubTask("hear", "When?"), SubTask("look", "Where?", priority=2.0)
    >>> convert = SubTask("convert", "In UTC?", needs=("hear", "look"))
    >>> graph = refine(Graph(), Delegate((hear, look, convert)))
    >>> [u.id for u in ready(graph)]
    ['hear', 'look']
    >>> chosen = batch(ready(graph), k_max=8, budget_usd=0.03, cost_usd=lambda u: 0.02)
    >>> [u.id for u in chosen]
    ['look']
    >>> graph = graph.with_result("hear", Result("done", "7:49", ""))
    >>> graph = graph.with_result("look", Result("partial", "Prague", ""))
    >>> [u.id for u in ready(graph)]
    ['convert']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from itertools import combinations

from orchestra.vocabulary import Delegate, ModelMistake, Result, SubTask

EXACT = 15  # with at most this many ready sub-tasks, all subsets are compared


# ---- the graph -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Graph:
    """G_t = (V_t, E_t): sub-tasks by id, in the order of delegation, and their `needs` as edges."""

    subtasks: Mapping[str, SubTask] = field(default_factory=dict)
    results: Mapping[str, Result] = field(default_factory=dict)

    def with_result(self, id: str, z: Result) -> Graph:
        return replace(self, results={**self.results, id: z})


def refine(graph: Graph, decision: Delegate) -> Graph:
    """G_{t+1} = Refine(G_t, y_t): new nodes are added; one with a known id replaces it (a retry).

    Raises ModelMistake: duplicate_id, unknown_need, cycle, nothing_ready.
    """
    ids = [u.id for u in decision.subtasks]
    for id in ids:
        if ids.count(id) > 1:
            raise ModelMistake("duplicate_id", id=id)
    subtasks = dict(graph.subtasks)
    for u in decision.subtasks:
        subtasks[u.id] = u
    for u in decision.subtasks:
        for need in u.needs:
            if need not in subtasks:
                known = ", ".join(subtasks)
                raise ModelMistake("unknown_need", id=u.id, need=need, known=known)
    path = cycle({id: u.needs for id, u in subtasks.items()})
    if path:
        raise ModelMistake("cycle", path=" -> ".join(reversed(path)))
    results = {id: z for id, z in graph.results.items() if id not in ids}
    refined = Graph(subtasks=subtasks, results=results)
    if not ready(refined):
        raise ModelMistake("nothing_ready", waiting=_waiting_text(refined))
    return refined


def cycle(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """The ids of one cycle, each needed by the next; or [].

    >>> cycle({"a": ["b"], "b": ["a"]})
    ['a', 'b', 'a']
    """
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


# ---- Eq. 9: what is ready ------------------------------------------------------------------------


def ready(graph: Graph) -> list[SubTask]:
    """R_t = {v in V_t without result : Pred(v) completed}, in submission order."""
    held = waiting(graph)
    return [graph.subtasks[id] for id, needs in held.items() if not needs]  # Eq. 9


def waiting(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Sub-tasks that have not run, each with the needs that are not completed (none: it is ready).
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


def _waiting_text(graph: Graph) -> str:
    rows = [f"{id} <- {', '.join(needs)}" for id, needs in waiting(graph).items()]
    return "; ".join(rows) or "-"


# ---- Eq. 10: what runs next ----------------------------------------------------------------------


def batch(
    candidates: Sequence[SubTask],
    k_max: int,
    budget_usd: float | None,
    cost_usd: Callable[[SubTask], float],
) -> list[SubTask]:
    """P_t: the subset of R_t with the largest sum of U under |P| <= K_max and sum of cost <= B_t.

    Exact for up to EXACT candidates, or if the budget is enough for any batch. Otherwise the better
    of two greedy choices, by utility and by utility per cost, which reached 0.986 of the best
    utility on average and 0.765 at worst (benchmarks/optimum.py). A tie goes to the cheaper subset,
    then the smaller, then the earlier. `budget_usd` None: no limit.
    """
    utility = [u.priority for u in candidates]
    cost = [cost_usd(u) for u in candidates]
    dearest = sorted(cost, reverse=True)[:k_max]
    chosen: Subset
    if budget_usd is None or sum(dearest) <= budget_usd:
        indices = range(len(candidates))
        order = sorted(indices, key=lambda i: (-utility[i], cost[i], i))
        chosen = tuple(order[:k_max])
    else:
        knapsack = _Knapsack(
            utility=utility, cost_usd=cost, k_max=k_max, budget_usd=budget_usd
        )
        chosen = knapsack.solution()
    return [candidates[i] for i in sorted(chosen)]


Subset = tuple[int, ...]  # of the candidates, by number


@dataclass(frozen=True)
class _Knapsack:
    """Eq. 10 where the budget does not pay for every batch. Item i is candidate i."""

    utility: Sequence[float]
    cost_usd: Sequence[float]
    k_max: int
    budget_usd: float

    def solution(self) -> Subset:
        affordable = [i for i, c in enumerate(self.cost_usd) if c <= self.budget_usd]
        if len(affordable) <= EXACT:
            return self.best_of_all(affordable)
        by_utility = self.greedy(affordable, gain=self.utility)
        by_utility_per_cost = self.greedy(affordable, gain=self.utility_per_cost())
        return min(by_utility_per_cost, by_utility, key=self.rank)

    def rank(self, subset: Subset) -> tuple[float, float, int, Subset]:
        """The best subset has the lowest rank."""
        utility = sum(self.utility[i] for i in subset)
        return (-utility, self.total_usd(subset), len(subset), subset)

    def total_usd(self, subset: Subset) -> float:
        return sum(self.cost_usd[i] for i in subset)

    def best_of_all(self, items: Sequence[int]) -> Subset:
        """The best of all subsets that are small and cheap enough."""
        within: list[Subset] = []
        for size in range(min(self.k_max, len(items)) + 1):
            for subset in combinations(items, size):
                if self.total_usd(subset) <= self.budget_usd:
                    within.append(subset)
        return min(within, key=self.rank, default=())  # Eq. 10

    def greedy(self, items: Sequence[int], gain: Sequence[float]) -> Subset:
        """One item after the other, by gain, while there is room and money."""
        taken: list[int] = []
        left_usd = self.budget_usd
        for i in sorted(items, key=lambda i: gain[i], reverse=True):
            if len(taken) < self.k_max and self.cost_usd[i] <= left_usd:
                left_usd -= self.cost_usd[i]
                taken.append(i)
        return tuple(taken)

    def utility_per_cost(self) -> list[float]:
        """What is free is divided by almost nothing."""
        costs_usd = [cost if cost > 0 else 1e-12 for cost in self.cost_usd]
        pairs = zip(self.utility, costs_usd, strict=True)
        return [utility / cost for utility, cost in pairs]
