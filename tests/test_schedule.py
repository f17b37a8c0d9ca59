"""The graph, the batch and the matching, Eq. 5-12 of arXiv 2606.13707."""

from __future__ import annotations

import random
import time
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.matching import (
    LAMBDA_TOOL,
    allowances,
    decision_reserve_usd,
    expected_cost_usd,
    match_backend,
    match_tools,
    materialize,
    place,
)
from orchestra.memory import compress
from orchestra.schedule import Graph, batch, ready, refine, waiting
from orchestra.vocabulary import (
    Backend,
    BudgetExceeded,
    Delegate,
    Evidence,
    Media,
    ModelMistake,
    Price,
    Result,
    SubTask,
    Task,
)

TASK = Task("What time is it in UTC?", tuple(
    Media(modality, name, Path("/none"), "")
    for modality, name in (("image", "clock.png"), ("audio", "speech.wav"), ("video", "walk.mp4"))
))  # fmt: skip
TOOLS = {
    "See": frozenset({"img"}),
    "Hear": frozenset({"aud"}),
    "Watch": frozenset({"vid"}),
    "Search": frozenset({"web"}),
    "Code": frozenset({"code"}),
}
DONE, PARTIAL = Result("done", "a", "s"), Result("partial", "a", "s")
FAILED, BLOCKED = Result("failed", "", "s"), Result("blocked", "", "s")


def sub(id: str, *needs: str, **fields) -> SubTask:
    return SubTask(id, f"do {id}", needs=needs, **fields)


def delegated(*subtasks: SubTask, graph: Graph = Graph()) -> Graph:  # noqa: B008
    return refine(graph, Delegate(subtasks))


def names(subtasks) -> list[str]:
    return [u.id for u in subtasks]


def backend(name: str, price: float | None = 0.0, latency_s: float = 0.0, **skills) -> Backend:
    """`price` is for input and output alike, in USD per million tokens."""
    cost = None if price is None else Price(price, price, price)
    return Backend(name, name, "http://none/v1", "", skills or {"txt": 1.0}, cost, latency_s)


# ---- Eq. 9: the graph and its ready set ----------------------------------------------------------


def test_what_needs_nothing_is_ready_in_the_order_of_delegation():
    graph = delegated(sub("z"), sub("m", "z"), sub("a"))
    assert names(ready(graph)) == ["z", "a"]


@pytest.mark.parametrize(
    ("result", "runs"), [(DONE, True), (PARTIAL, True), (FAILED, False), (BLOCKED, False)]
)
def test_what_a_need_came_to_decides_whether_its_dependant_runs(result, runs):
    graph = delegated(sub("a"), sub("b", "a")).with_result("a", result)
    assert names(ready(graph)) == (["b"] if runs else [])


def test_what_has_run_is_never_ready_again():
    graph = delegated(sub("a"), sub("b")).with_result("a", FAILED).with_result("b", DONE)
    assert ready(graph) == []


def test_a_subtask_is_ready_only_after_the_last_of_its_needs():
    graph = delegated(sub("a"), sub("b"), sub("c", "a", "b")).with_result("a", DONE)
    assert names(ready(graph)) == ["b"]
    assert names(ready(graph.with_result("b", DONE))) == ["c"]


def test_needs_may_point_to_a_subtask_of_an_earlier_round():
    graph = delegated(sub("a")).with_result("a", DONE)
    assert names(ready(delegated(sub("b", "a"), graph=graph))) == ["b"]


def test_needs_may_point_to_a_later_subtask_of_the_same_decision():
    assert names(ready(delegated(sub("b", "a"), sub("a")))) == ["a"]


def test_what_waited_in_an_earlier_round_is_ready_beside_what_is_new():
    graph = delegated(sub("a"), sub("b", "a")).with_result("a", DONE)
    assert names(ready(delegated(sub("c"), graph=graph))) == ["b", "c"]


def test_an_empty_decision_lets_go_on_what_waits():
    graph = delegated(sub("a"), sub("b", "a")).with_result("a", DONE)
    assert names(ready(delegated(graph=graph))) == ["b"]


def test_a_failed_need_keeps_its_dependant_waiting_beside_what_is_new():
    graph = delegated(sub("a"), sub("b", "a")).with_result("a", FAILED)
    graph = delegated(sub("c"), graph=graph)
    assert names(ready(graph)) == ["c"]
    assert waiting(graph) == {"b": ("a",), "c": ()}


def test_a_failed_subtask_delegated_again_under_its_id_frees_its_dependant():
    graph = delegated(sub("a"), sub("b", "a")).with_result("a", FAILED)
    again = SubTask("a", "try another way")
    graph = delegated(again, graph=graph)
    assert ready(graph) == [again]
    assert names(ready(graph.with_result("a", DONE))) == ["b"]


def test_waiting_names_only_the_needs_that_hold_back():
    graph = delegated(sub("a"), sub("b"), sub("c", "a", "b")).with_result("a", DONE)
    assert waiting(graph) == {"b": (), "c": ("b",)}


def test_refining_leaves_the_graph_before_it_as_it_was():
    graph = delegated(sub("a"))
    delegated(sub("a", priority=2.0), sub("b"), graph=graph)
    assert graph == delegated(sub("a"))


def test_an_id_twice_in_one_decision_goes_back_to_the_model():
    with pytest.raises(ModelMistake, match="have the id a"):
        delegated(sub("a"), sub("b"), sub("a"))


def test_an_unknown_need_goes_back_to_the_model_with_the_ids_there_are():
    with pytest.raises(ModelMistake, match=r"b needs x,.*Known ids: a, b"):
        delegated(sub("a"), sub("b", "x"))


def test_a_cycle_goes_back_to_the_model_with_its_path():
    with pytest.raises(ModelMistake, match="a -> c -> b -> a"):
        delegated(sub("z"), sub("a", "c"), sub("b", "a"), sub("c", "b"))


def test_a_subtask_that_needs_itself_is_a_cycle():
    with pytest.raises(ModelMistake, match="a -> a"):
        delegated(sub("a", "a"), sub("b"))


def test_a_retry_that_closes_a_circle_with_an_earlier_round_is_a_cycle():
    graph = delegated(sub("a"), sub("b", "a")).with_result("a", FAILED)
    with pytest.raises(ModelMistake, match="a -> b -> a"):
        delegated(sub("a", "b"), graph=graph)


def test_two_ways_to_one_need_are_no_cycle():
    graph = delegated(sub("d", "b", "c"), sub("b", "a"), sub("c", "a"), sub("a"))
    assert names(ready(graph)) == ["a"]


@pytest.mark.parametrize("order", [1, -1])
def test_a_chain_of_three_thousand_is_walked_without_recursion(order):
    chain = [sub("0"), *(sub(str(n), str(n - 1)) for n in range(1, 3000))]
    assert names(ready(delegated(*chain[::order]))) == ["0"]


def test_a_cycle_of_three_thousand_is_found_without_recursion():
    circle = [sub(str(n), str((n + 1) % 3000)) for n in range(3000)]
    with pytest.raises(ModelMistake, match="0 -> 1 -> 2"):
        delegated(*circle)


def test_a_decision_after_which_nothing_can_run_goes_back_to_the_model():
    graph = delegated(sub("a"), sub("b", "a")).with_result("a", FAILED)
    with pytest.raises(ModelMistake, match=r"No sub-task can start.*b <- a"):
        delegated(graph=graph)


@settings(deadline=None)
@given(st.lists(st.sets(st.integers(0, 9), max_size=4), max_size=10))
def test_a_graph_is_refused_exactly_where_it_can_not_drain(needs):
    subtasks = [sub(str(i), *map(str, sorted(n))) for i, n in enumerate(needs)]
    known, left, drained = {u.id for u in subtasks}, subtasks, set()
    while free := [u for u in left if drained.issuperset(u.needs)]:
        drained |= set(names(free))
        left = [u for u in left if u.id not in drained]
    sound = subtasks and not left and all(known.issuperset(u.needs) for u in subtasks)
    try:
        graph = delegated(*subtasks)
    except ModelMistake:
        assert not sound
    else:
        assert sound and graph.subtasks.keys() == known


# ---- Eq. 10: the batch ---------------------------------------------------------------------------

SIXTYFOURTHS = st.integers(0, 24).map(lambda n: n / 64)  # sums of them are exact floats
ITEMS = st.lists(st.tuples(st.integers(1, 8).map(lambda n: n / 64), SIXTYFOURTHS), max_size=12)


def chosen(items: list[tuple[float, float]], k_max: int, budget: float | None) -> list[int]:
    """Indices of the batch of (utility, cost) items."""
    subtasks = [sub(str(i), priority=u) for i, (u, _) in enumerate(items)]
    return [int(v.id) for v in batch(subtasks, k_max, budget, lambda v: items[int(v.id)][1])]


def best_of_all_subsets(items, k_max: int, budget: float | None) -> list[int]:
    """Brute force: most useful, then cheaper, then smaller, then earlier."""

    def order(subset):
        utility, cost = (sum(items[i][n] for i in subset) for n in (0, 1))
        return -utility, cost, len(subset), subset

    sizes = range(min(k_max, len(items)) + 1)
    subsets = [s for size in sizes for s in combinations(range(len(items)), size)]
    affordable = [s for s in subsets if budget is None or sum(items[i][1] for i in s) <= budget]
    return list(min(affordable, key=order))


@settings(deadline=None)
@given(ITEMS, st.integers(1, 12), st.none() | st.integers(0, 200).map(lambda n: n / 64))
def test_the_batch_is_the_best_of_all_subsets(items, k_max, budget):
    assert chosen(items, k_max, budget) == best_of_all_subsets(items, k_max, budget)


@settings(deadline=None)
@given(st.data(), st.integers(1, 12))
def test_the_batch_is_the_best_of_all_subsets_where_few_costs_tie(data, k_max):
    costs = st.sampled_from([0.0, 1 / 64, 4 / 64])
    items = data.draw(st.lists(st.tuples(st.sampled_from([1.0, 2.0]), costs), max_size=12))
    budget = data.draw(st.integers(0, 24)) / 64
    assert chosen(items, k_max, budget) == best_of_all_subsets(items, k_max, budget)


@pytest.mark.parametrize(
    ("items", "k_max", "budget", "expected"),
    [
        pytest.param([(1, 3), (1, 2)], 1, None, [1], id="the cheaper one, without a budget"),
        pytest.param([(1, 3), (1, 2)], 2, 4, [1], id="the cheaper one, within a budget"),
        pytest.param([(1, 1), (1, 1), (2, 2)], 3, 2, [2], id="the smaller set"),
        pytest.param([(1, 2), (1, 2), (1, 2)], 2, 5, [0, 1], id="the earlier ones"),
        pytest.param([(1, 2), (1, 1), (1, 2), (1, 3)], 4, 3, [0, 1], id="the earliest pair"),
    ],
)
def test_a_tie_goes_to(items, k_max, budget, expected):
    assert chosen(items, k_max, budget) == expected


def test_two_cheap_subtasks_can_be_worth_more_than_a_dear_one():
    assert chosen([(3, 4), (2, 2), (2, 2)], 3, 4) == [1, 2]


def test_a_batch_stands_in_the_order_of_delegation():
    assert chosen([(1, 1), (3, 1), (2, 1)], 2, None) == [1, 2]


def test_nothing_is_in_a_batch_that_no_money_pays():
    assert chosen([(1, 2), (1, 3)], 2, 1.5) == []


def test_an_overdrawn_budget_pays_not_even_what_is_free():
    assert chosen([(1, 0)], 1, -0.25) == []


def test_what_is_free_runs_on_a_budget_of_zero():
    assert chosen([(1, 0), (9, 1), (1, 0)], 8, 0.0) == [0, 2]


@pytest.mark.parametrize("spread", [random.Random(1).random, lambda: 1.0])
@pytest.mark.parametrize("count", [128, 160])
def test_a_batch_of_128_under_a_binding_budget_takes_less_than_a_second(spread, count):
    costs = [0.0021, 0.0125, 0.018, 0.05]  # USD, of four backends
    items = [(spread(), costs[i * 7 % 4]) for i in range(count)]
    started = time.thread_time()
    picks = chosen(items, 128, 0.5 * sum(cost for _, cost in items))
    assert time.thread_time() - started < 1
    assert 0 < len(picks) < 128


def test_the_same_candidates_give_the_same_batch():
    numbers = random.Random(7)
    items = [(numbers.random(), numbers.choice([0.1, 0.2, 0.3])) for _ in range(60)]
    assert len({tuple(chosen(items, 20, 3.0)) for _ in range(5)}) == 1


# ---- Eq. 10 and 21: shares of the money ----------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.floats(0, 10), min_size=1, max_size=30), st.floats(0, 100))
def test_shares_come_to_the_budget(costs, budget):
    shares = allowances(costs, budget)
    assert len(shares) == len(costs)
    assert sum(shares) == pytest.approx(budget)


def test_shares_are_in_proportion_to_the_expected_costs():
    assert allowances([1.0, 3.0], 8.0) == [2.0, 6.0]


def test_subtasks_that_cost_nothing_share_evenly():
    assert allowances([0.0, 0.0], 8.0) == [4.0, 4.0]


def test_a_subtask_on_a_free_backend_can_pay_its_tools():
    assert allowances([0.0, 1.0, 2.0], 8.0) == [2.0, 2.0, 4.0]


def test_without_a_budget_no_share_is_limited():
    assert allowances([1.0, 3.0], None) == [None, None]


def test_the_reserve_leaves_at_least_half_to_the_subtasks():
    dear = backend("dear", 1000.0)
    assert decision_reserve_usd(dear, 0.5) == 0.25
    assert decision_reserve_usd(backend("free"), 0.5) == 0.0


def test_the_reserve_of_a_large_budget_pays_more_than_one_subtask_of_the_main_backend():
    main = backend("main", 1.0)
    subtask = expected_cost_usd(main)
    assert subtask < decision_reserve_usd(main, 1000.0) < 3 * subtask


def test_the_expected_cost_grows_with_the_price():
    assert expected_cost_usd(backend("a", 2.0)) == 2 * expected_cost_usd(backend("b", 1.0)) > 0


# ---- Eq. 5: the backend --------------------------------------------------------------------------

LOOK = SubTask("u", "look at clock.png")


def matched(*pool: Backend, u: SubTask = LOOK) -> str:
    return match_backend(u, TASK, pool).name


def test_capability_decides_where_cost_and_latency_tie():
    assert matched(backend("blind", txt=1.0, img=0.1), backend("sees", txt=1.0, img=0.9)) == "sees"


def test_cost_decides_where_capability_and_latency_tie():
    assert matched(backend("dear", 2.0), backend("cheap", 1.0)) == "cheap"


def test_latency_decides_where_capability_and_cost_tie():
    assert matched(backend("slow", latency_s=9.0), backend("fast", latency_s=1.0)) == "fast"


def test_the_first_of_the_pool_wins_a_full_tie():
    assert matched(backend("one"), backend("two")) == "one"


def test_an_unknown_price_weighs_as_nothing():
    assert matched(backend("paid", 5.0), backend("unknown", None)) == "unknown"


def test_stated_requirements_count_for_more_than_the_files_named():
    pool = backend("sees", txt=0.5, img=1.0), backend("codes", txt=0.5, code=1.0)
    u = SubTask("u", "look at clock.png", requirements={"code": 1.0})
    assert (matched(*pool), matched(*pool, u=u)) == ("sees", "codes")


def test_a_stated_modality_counts_like_a_file_of_it():
    pool = backend("reads", txt=1.0), backend("hears", txt=0.9, aud=1.0)
    assert matched(*pool, u=SubTask("u", "listen")) == "reads"
    assert matched(*pool, u=SubTask("u", "listen", modalities=("audio",))) == "hears"


# ---- Eq. 7: the tools ----------------------------------------------------------------------------


def cover(instruction: str, **fields) -> tuple[str, ...]:
    return match_tools(SubTask("u", instruction, **fields), TASK, TOOLS)


@pytest.mark.parametrize(
    ("instruction", "tool"),
    [
        ("Read clock.png.", "See"),
        ("Read 'clock.png', please", "See"),
        ("看clock.png里的时间", "See"),
        ("What is said in speech.wav?", "Hear"),
        ("Where does walk.mp4 end", "Watch"),
    ],
)
def test_a_file_named_in_the_instruction_pulls_in_its_tool(instruction, tool):
    assert {"See", "Hear", "Watch"} & set(cover(instruction)) == {tool}


def test_a_file_named_in_the_context_pulls_in_its_tool():
    assert "Hear" in cover("What is said?", context="The file is speech.wav.")


@pytest.mark.parametrize("name", ["oclock.png", "clock.pngs", "clockxpng"])
def test_a_name_inside_another_word_is_not_that_file(name):
    assert "See" not in cover(f"Open {name}")


def test_two_files_pull_in_two_tools_in_the_order_of_the_tools():
    assert cover("Compare speech.wav with clock.png")[:2] == ("See", "Hear")


def test_without_a_word_about_them_search_and_code_are_at_hand():
    assert cover("Think") == ("Search", "Code")


def test_stated_requirements_leave_out_what_they_do_not_name():
    assert cover("Look at clock.png", requirements={"aud": 1.0, "web": 0.0}) == ("Hear",)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["txt", "img", "aud", "vid", "web", "code"]), SIXTYFOURTHS))
def test_the_cover_is_the_best_of_all_sets_of_tools(needed):
    u = SubTask("u", "x", requirements={"txt": 0.5, "web": 0.0, **needed})

    def objective(tools):
        gain = sum(u.requirements.get(c, 0.0) for g in tools for c in TOOLS[g])
        return gain - LAMBDA_TOOL * len(tools)

    subsets = [s for size in range(6) for s in combinations(TOOLS, size)]
    assert objective(match_tools(u, TASK, TOOLS)) == max(map(objective, subsets))


# ---- Eq. 8, 11 and 12: executors and the batch placed --------------------------------------------


def test_a_subtask_that_names_nothing_gets_both_by_matching():
    pool = backend("blind"), backend("sees", txt=1.0, img=1.0)
    u, b = materialize(LOOK, TASK, pool, TOOLS)
    assert (u.backend, b, u.tools) == ("sees", pool[1], ("See", "Search", "Code"))


def test_an_explicit_backend_wins_over_the_matching():
    pool = backend("best", txt=1.0, img=1.0), backend("worse", 50.0, 90.0, txt=0.1)
    u, b = materialize(SubTask("u", "look at clock.png", backend="worse"), TASK, pool, TOOLS)
    assert (u.backend, b) == ("worse", pool[1])


@pytest.mark.parametrize("tools", [(), ("Code",)])
def test_explicit_tools_win_over_the_matching(tools):
    u, _ = materialize(SubTask("u", "look at clock.png", tools=tools), TASK, [backend("a")], TOOLS)
    assert u.tools == tools


def test_materializing_leaves_the_words_of_the_subtask_alone():
    asked = sub("u", "v", context="c", priority=3.0, modalities=("image",))
    u, _ = materialize(asked, TASK, [backend("a")], TOOLS)
    assert (u.instruction, u.context, u.needs, u.priority) == ("do u", "c", ("v",), 3.0)


def test_what_was_found_so_far_stands_behind_the_context():
    h = Evidence(1, "t0", "read", "a", (), "done", "7:49", "")
    asked = SubTask("u", "convert", context="It is Prague.")
    u, _ = materialize(asked, TASK, [backend("a")], TOOLS, compress("q", [h]))
    assert u.context.startswith("It is Prague.\n\n") and "7:49" in u.context


def placed(budget: float | None, *subtasks: SubTask, k_max: int = 8):
    pool = [backend("cheap", 1.0, txt=0.5), backend("dear", 4.0, txt=0.6)]
    return place(delegated(*subtasks), TASK, pool, TOOLS, k_max, budget)


def test_what_waits_is_not_placed():
    assert names(p.subtask for p in placed(None, sub("a"), sub("b", "a"), sub("c"))) == ["a", "c"]


def test_no_more_than_k_max_are_placed_and_the_most_useful_first():
    batch_ = placed(None, sub("a"), sub("b", priority=3.0), sub("c", priority=2.0), k_max=2)
    assert names(p.subtask for p in batch_) == ["b", "c"]


def test_what_is_placed_carries_its_backend_by_name_and_itself():
    (p,) = placed(None, sub("a", backend="dear"))
    assert p.subtask.backend == p.backend.name == "dear"


def test_purses_share_the_budget_by_price():
    purses = [p.purse.limit_usd for p in placed(10.0, sub("a", backend="dear"), sub("b"))]
    assert purses == pytest.approx([8.0, 2.0])


def test_every_purse_holds_what_its_subtask_is_expected_to_cost():
    costs = expected_cost_usd(backend("cheap", 1.0)), expected_cost_usd(backend("dear", 4.0))
    batch_ = placed(sum(costs), sub("a", backend="cheap"), sub("b", backend="dear"))
    assert [p.purse.limit_usd for p in batch_] == pytest.approx(costs)


def test_without_a_budget_a_purse_has_no_limit():
    assert [p.purse.limit_usd for p in placed(None, sub("a"))] == [None]


def test_money_for_none_of_the_ready_ends_in_budget_exceeded():
    too_little = 0.9 * expected_cost_usd(backend("cheap", 1.0))
    with pytest.raises(BudgetExceeded, match="less than any sub-task"):
        placed(too_little, sub("a"), sub("b"))
