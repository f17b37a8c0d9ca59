"""The graph, the batch and the matching, Eq. 5-12 of arXiv 2606.13707."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.kernel import placing
from orchestra.kernel import vocabulary as v
from orchestra.kernel.placing import EXACT, Graph, batch, ready, refine
from orchestra.kernel.vocabulary import SubTask
from tests.conftest import Backend, Price

FILES = {"image": "clock.png", "audio": "speech.wav", "video": "walk.mp4"}
TASK = v.Task("?", tuple(v.Media(kind, name, Path("/none"), "") for kind, name in FILES.items()))
ABLE = {"See": "img", "Hear": "aud", "Watch": "vid", "Search": "web", "Code": "code"}
TOOLS = {name: frozenset({capability}) for name, capability in ABLE.items()}
READ = SubTask("u", "read clock.png")


def sub(id: str, *needs: str, **fields) -> SubTask:
    return SubTask(id, f"do {id}", needs=needs, **fields)


def delegated(*subtasks: SubTask, graph: Graph | None = None) -> Graph:
    return refine(graph or Graph(), v.Delegate(subtasks))


def ended(graph: Graph, **statuses: str) -> Graph:
    return replace(graph, results={id: v.Result(s, "a", "s") for id, s in statuses.items()})


def ids(subtasks) -> str:
    return " ".join(u.id for u in subtasks)


def backend(name: str, usd: float | None = 0.0, latency_s: float = 0.0, **skills) -> Backend:
    """`usd` per million tokens, in or out."""
    price = None if usd is None else Price(usd, usd)
    return Backend(name, name, "http://none/v1", "", skills or {"txt": 1.0}, price, latency_s)


# ---- Eq. 9: the graph and its ready set ----------------------------------------------------------


@pytest.mark.parametrize("status", ["done", "partial", "failed", "blocked"])
def test_a_sub_task_is_ready_when_all_its_needs_have_succeeded(status):
    graph = delegated(sub("z"), sub("b", "a", "c"), sub("a"), sub("c"))
    now = "z b" if status in ("done", "partial") else "z"
    assert ids(ready(ended(graph, a="done", c=status))) == now


BEFORE = ended(delegated(sub("a"), sub("b", "a")), a="failed")


@pytest.mark.parametrize(("graph", "subtasks", "rule", "shown"), [
    (Graph(), [sub("a"), sub("b"), sub("a")], "duplicate_id", "a"),
    (Graph(), [sub("a"), sub("b", "x")], "unknown_need", "a, b"),
    (Graph(), [sub("z"), sub("a", "c"), sub("b", "a"), sub("c", "b")], "cycle", "a -> c -> b -> a"),
    (Graph(), [sub("a", "a"), sub("b")], "cycle", "a -> a"),
    (BEFORE, [sub("a", "b")], "cycle", "a -> b -> a"), (BEFORE, [], "nothing_ready", "b <- a"),
])  # fmt: skip
def test_a_graph_that_cannot_run_is_refused_with_the_ids(graph, subtasks, rule, shown):
    with pytest.raises(v.ModelMistake) as mistake:
        delegated(*subtasks, graph=graph)
    assert mistake.value.rule == rule and shown in mistake.value.values.values()


@given(st.lists(st.sets(st.integers(0, 9), max_size=4), min_size=1, max_size=10))
def test_a_graph_is_refused_exactly_where_some_sub_task_could_never_run(needs):
    left = {str(i): {str(need) for need in n} for i, n in enumerate(needs)}
    subtasks, drained = [sub(id, *sorted(n)) for id, n in left.items()], set()
    while free := {id for id, n in left.items() if n <= drained}:
        drained |= free
        left = {id: n for id, n in left.items() if id not in free}
    try:
        assert delegated(*subtasks).subtasks.keys() == drained
    except v.ModelMistake:
        assert left


# ---- Eq. 10: the batch ---------------------------------------------------------------------------

COSTS = st.integers(0, 24).map(lambda n: n / 64) | st.sampled_from([0.0, 1 / 64, 4 / 64])
ITEMS = st.tuples(st.integers(1, 8).map(lambda n: n / 64), COSTS)  # sums of 64ths are exact
BUDGETS = st.integers(0, 200).map(lambda n: n / 64)


def chosen(items: list[tuple[float, float]], k_max: int, budget: float | None) -> list[int]:
    """The indices of the batch of (utility, cost) items."""
    subtasks = [sub(str(i), priority=utility) for i, (utility, _) in enumerate(items)]
    costs = [cost for _, cost in items]
    return [int(u.id) for u in batch(subtasks, k_max, budget, costs)]


@settings(max_examples=60)
@given(st.lists(ITEMS, max_size=EXACT), st.integers(1, 12), st.none() | BUDGETS)
def test_a_batch_of_few_is_the_best_of_all_subsets(items, k_max, budget):
    """By brute force: most useful, then cheaper, then smaller, then earlier."""

    def order(subset):
        utility, cost = (sum(items[i][n] for i in subset) for n in (0, 1))
        return budget is not None and cost > budget, -utility, cost, len(subset), subset

    sizes = range(min(k_max, len(items)) + 1)
    subsets = (s for size in sizes for s in combinations(range(len(items)), size))
    assert chosen(items, k_max, budget) == list(min(subsets, key=order))


@settings(max_examples=50)
@given(st.lists(ITEMS, min_size=EXACT + 1, max_size=60), st.integers(1, 40), BUDGETS)
def test_a_batch_of_many_is_affordable_and_no_worse_than_any_single_one(items, k_max, budget):
    picks = chosen(items, k_max, budget)
    affordable = [utility for utility, cost in items if cost <= budget]
    assert len(picks) <= k_max and sum(items[i][1] for i in picks) <= budget
    assert sum(items[i][0] for i in picks) >= max(affordable, default=0)


# ---- Eq. 10 and 21: shares of the budget ---------------------------------------------------------


@pytest.mark.parametrize(("usd", "budget", "shares"), [
    ([1.0, 3.0], 8.0, [2.0, 6.0]), ([0.0, 0.0], 8.0, [4.0, 4.0]), ([1.0, 3.0], 0.0, [0.0, 0.0]),
    ([0.0, 1.0, 2.0], 8.0, [2.0, 2.0, 4.0]), ([1.0, 3.0], None, [None, None]),
])  # fmt: skip
def test_shares_are_in_proportion_to_the_expected_costs(usd, budget, shares):
    pool = [backend(str(n), price) for n, price in enumerate(usd)]
    subtasks = [sub(b.name, backend=b.name) for b in pool]
    placed = placing.place(subtasks, TASK, pool, {}, None, budget)
    assert [p.purse.limit_usd for p in placed] == shares


# ---- Eq. 5: the backend; Eq. 7: the tools --------------------------------------------------------


@pytest.mark.parametrize(("worse", "better"), [
    (backend("x", txt=1.0, img=0.1), backend("y", txt=1.0, img=0.9)),
    (backend("x", 2.0), backend("y", 1.0)), (backend("x", 5.0), backend("y", None)),
    (backend("x", latency_s=9.0), backend("y", latency_s=1.0)),
])  # fmt: skip
def test_skill_cost_and_latency_decide_between_backends_and_a_tie_is_the_first(worse, better):
    assert placing.materialize(READ, TASK, [worse, better, better], TOOLS)[1] is better


@pytest.mark.parametrize(("text", "tools"), {
    "Read 'clock.png'.": ["See"], "看clock.png里的时间": ["See"], "Where does walk.mp4 end": ["Watch"],
    "Compare speech.wav with clock.png": ["See", "Hear"], "Open oclock.png, clock.pngs": [],
}.items())  # fmt: skip
def test_a_file_that_is_named_brings_its_tool_next_to_search_and_code(text, tools):
    for u in (SubTask("u", text), SubTask("u", "x", context=text)):
        placed, _ = placing.materialize(u, TASK, [backend("b")], TOOLS)
        assert placed.tools == (*tools, "Search", "Code")


EASY = [
    ("Read the time in clock.png", None), ("Read the time in clock.png", ("See",)),
    ("Write down what is said in speech.wav", None), ("Who built the Eiffel tower?", ("Search",)),
]  # fmt: skip
HARD = [
    ("Which of the two routes is shorter?", None), ("What is 17 times 23?", ("Code",)),
    ("Does speech.wav fit what clock.png shows?", None),
    ("Does speech.wav fit what clock.png shows?", ("See", "Hear")),
]  # fmt: skip


def backend_of(text: str, tools, backends, **fields) -> str:
    u = SubTask("u", text, tools=tools, **fields)
    return placing.materialize(u, TASK, backends, TOOLS)[1].name


def test_the_shipped_pool_searches_with_the_cheap_model_and_reasons_with_the_strong_one():
    from orchestra.command import pool_file  # a layer, which may be left out

    shipped = pool_file.load(pool_file.SHIPPED).backends
    assert {backend_of(*asked, shipped) for asked in EASY} == {"gpt-5-mini"}
    assert {backend_of(*asked, shipped) for asked in HARD} == {"gpt-5"}
    easy, hard = ({"requirements": {"txt": r, "code": r}} for r in (0.2, 1.0))
    assert [backend_of(*HARD[0], shipped, **r) for r in (easy, hard)] == ["gpt-5-mini", "gpt-5"]


def test_sub_tasks_of_many_kinds_go_to_many_backends():
    four = [
        backend("strong", 4.0, 30, txt=1.0, img=0.9, code=1.0), backend("cheap", 0.5, 20, txt=0.7, img=0.6, code=0.6),
        backend("eyes", 1.0, 20, txt=0.6, vid=1.0, img=1.0), backend("ears", 1.0, 20, txt=0.6, aud=1.0),
    ]  # fmt: skip
    needed = [{s: r} for s in ("txt", "img", "aud", "vid", "code") for r in (0.2, 0.6, 1.0)]
    used = {backend_of("Which is it?", None, four, requirements=r) for r in needed}
    used |= {backend_of(*asked, four) for asked in EASY + HARD}
    assert used == {b.name for b in four}


# ---- Eq. 8, 11 and 12: executors and the batch placed --------------------------------------------

PRICED, BEST = backend("priced", 9.0), backend("best", txt=1.0, img=1.0)
MATCHED = "See", "Search", "Code"


@pytest.mark.parametrize(("fields", "name", "tools"), [
    ({}, "best", MATCHED), ({"backend": "priced"}, "priced", MATCHED), ({"tools": ()}, "best", ()),
    ({"backend": "unknown"}, "best", MATCHED), ({"tools": ("Code",)}, "best", ("Code",)),
    ({"modalities": ("audio",)}, "best", ("See", "Hear", "Search", "Code")),
    ({"requirements": {"aud": 1.0, "web": 0.0}}, "best", ("See", "Hear")),
])  # fmt: skip
def test_what_the_main_agent_states_wins_over_the_matching(fields, name, tools):
    u = SubTask("u", "read clock.png", **fields)
    u, b = placing.materialize(u, TASK, [PRICED, BEST], TOOLS)
    assert (u.backend, b.name, u.tools) == (name, name, tools)
