"""G_t, its ready set and the batch that runs now (Eq. 9-10).

Everything here is a pure function: the same graph and budget give the same batch.

    >>> g = refine(Graph(), Delegate((SubTask("a", "hear"), SubTask("b", "sum", needs=("a",)))))
    >>> [u.id for u in ready(g)]
    ['a']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestra.prompts import say
from orchestra.vocabulary import Delegate, ModelMistake, Result, SubTask


@dataclass(frozen=True)
class Graph:
    """G_t = (V_t, E_t): sub-tasks by id, in the order of delegation, and their `needs` as edges."""

    subtasks: Mapping[str, SubTask] = field(default_factory=dict)
    results: Mapping[str, Result] = field(default_factory=dict)

    def completed(self) -> set[str]:
        """C_t: a sub-task that failed or was blocked is not completed, so what needs it waits."""
        return {id for id, z in self.results.items() if z.status in ("done", "partial")}

    def with_result(self, id: str, z: Result) -> Graph:
        return replace(self, results={**self.results, id: z})


def refine(graph: Graph, decision: Delegate) -> Graph:
    """G_{t+1} = Refine(G_t, y_t): new nodes join; a node named again takes the old one's place (a
    retry).

    Raises ModelMistake: an id twice in one decision, an unknown need, a cycle, nothing left to run.
    """
    ids = [u.id for u in decision.subtasks]
    for id in ids:
        if ids.count(id) > 1:
            raise ModelMistake(say("mistakes", "duplicate_id", id=id))
    nodes = {**graph.subtasks, **{u.id: u for u in decision.subtasks}}
    for u in decision.subtasks:
        for need in u.needs:
            if need not in nodes:
                raise ModelMistake(
                    say("mistakes", "unknown_need", id=u.id, need=need, known=", ".join(nodes))
                )
    refined = Graph(nodes, {id: z for id, z in graph.results.items() if id not in ids})
    if path := cycle({id: u.needs for id, u in nodes.items()}):
        raise ModelMistake(say("mistakes", "cycle", path=" -> ".join(path)))
    if not ready(refined):
        raise ModelMistake(say("mistakes", "nothing_ready", waiting=_lines(waiting(refined))))
    return refined


def cycle(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """The ids along one cycle, each before what it needs, or []: walk the needs depth first,
    without recursion.
    """
    finished: set[str] = set()
    for start in needs:
        path: list[str] = []
        walk: list[tuple[str, bool]] = [(start, False)]
        while walk:
            id, leaving = walk.pop()
            if leaving:
                finished.add(path.pop())
            elif id in path:
                return [*path[path.index(id) :], id]
            elif id not in finished:
                path.append(id)
                walk += [(id, True), *((need, False) for need in needs[id])]
    return []


def ready(graph: Graph) -> list[SubTask]:
    """R_t = {v in V_t without result : Pred(v) subset of C_t}, in submission order."""
    completed = graph.completed()
    return [
        u
        for id, u in graph.subtasks.items()
        if id not in graph.results and completed.issuperset(u.needs)
    ]  # Eq. 9


def waiting(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Sub-tasks that have not run, each with the needs that hold it back (none: it is ready)."""
    completed = graph.completed()
    unrun = [u for id, u in graph.subtasks.items() if id not in graph.results]
    return {u.id: tuple(n for n in u.needs if n not in completed) for u in unrun}


def _lines(waits: Mapping[str, tuple[str, ...]]) -> str:
    return "; ".join(f"{id} <- {', '.join(needs)}" for id, needs in waits.items()) or "-"


# ---- Eq. 10: the batch ---------------------------------------------------------------------------


def batch(
    candidates: Sequence[SubTask],
    k_max: int,
    budget_usd: float | None,
    cost_usd: Callable[[SubTask], float],
) -> list[SubTask]:
    """P_t: the subset of R_t with the largest sum of U under |P| <= K_max and sum of cost <= B_t.

    Exact for U > 0. Ties go to the cheaper subset, then the smaller, then the earlier submitted.
    `budget_usd` None: no money limit.
    """
    items = [(i, u.priority, cost_usd(u)) for i, u in enumerate(candidates)]
    chosen: Sequence[int]
    if (
        budget_usd is None
        or sum(sorted((c for _, _, c in items), reverse=True)[:k_max]) <= budget_usd
    ):
        chosen = [i for i, _, _ in sorted(items, key=lambda v: (-v[1], v[2], v[0]))[:k_max]]
    else:
        chosen = _knapsack(items, k_max, budget_usd)
    return [candidates[i] for i in sorted(chosen)]


# Cost, size, -utility and -picks, the order of ties. A pick is a bit, the earliest the highest, so
# the union of two subsets is a sum in all four.
Subset = tuple[float, int, float, int]


def _knapsack(
    items: Sequence[tuple[int, float, float]], k_max: int, budget_usd: float
) -> list[int]:
    """Dynamic programming over the subsets that no other subset beats in cost, size and utility at
    once.

    What extends a beaten subset extends the one that beats it as well, so only the front is kept.
    Costs are those of a few backends: of sub-tasks that cost alike the most useful come first.
    """
    alike: dict[float, list[Subset]] = {}  # by cost: the best one, the best two, ...
    for i, utility, cost in sorted(items, key=lambda v: (-v[1], v[0])):
        best = alike.setdefault(cost, [(0.0, 0, 0.0, 0)])
        best.append(_union(best[-1], (cost, 1, -utility, -1 << (len(items) - i))))
    front: list[Subset] = [(0.0, 0, 0.0, 0)]
    for best in alike.values():
        grown = (_union(s, more) for s in front for more in best[: k_max + 1])
        fitting = sorted(s for s in grown if s[1] <= k_max and (s[0] <= budget_usd or not s[1]))
        front = _unbeaten(fitting, k_max if k_max < len(items) else 0)
    picks = -min(front, key=lambda s: (s[2], s[0], s[1], s[3]))[3]  # Eq. 10: argmax of the summed U
    return [i for i in range(len(items)) if picks >> (len(items) - i) & 1]


def _union(s: Subset, t: Subset) -> Subset:
    return s[0] + t[0], s[1] + t[1], s[2] + t[2], s[3] + t[3]


def _unbeaten(subsets: Iterable[Subset], slots: int) -> list[Subset]:
    """Of subsets sorted by cost: those more useful than every cheaper one of at most their size.

    `slots` 0: size is no limit, so it does not count.
    """
    least_loss = [1.0] * (slots + 1)  # of at most this size; every real loss is <= 0
    kept = []
    for subset in subsets:
        _, size, loss, _ = subset
        if loss < least_loss[min(size, slots)]:
            kept.append(subset)
            for n in range(min(size, slots), slots + 1):
                if least_loss[n] <= loss:
                    break
                least_loss[n] = loss
    return kept
