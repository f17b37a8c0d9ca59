"""What docs/PAPERS.md calls exact, computed again from the papers' formulas on 1,000 random cases.
test_figure_7.py has the worked example of Orchestra-o1.

Nothing here calls a function of the program to know what another one should return. Only constants
that a paper leaves open (lambda, tokens of a step) are taken from the program.
"""

import json
from itertools import product
from random import Random

import pytest

from orchestra.curation.pareto import Version, front
from orchestra.kernel.folder import Options
from orchestra.kernel.memory import summarize
from orchestra.kernel.method import Method
from orchestra.kernel.money import Purse
from orchestra.kernel.placing import (
    LAMBDA_COST,
    LAMBDA_LATENCY,
    LAMBDA_TOOL,
    STEP_TOKENS,
    Graph,
    batch,
    materialize,
    place,
    ready,
    score,
)
from orchestra.kernel.vocabulary import Backend, Pool, Price, Result, State, SubTask, Task
from orchestra.methods import all_tools
from orchestra.methods.main_agent import read_tasks
from orchestra.methods.orchestra_o1 import OrchestraO1
from orchestra.training.judge import read_scores
from orchestra.training.options import TrainingOptions, _default_lr
from orchestra.training.rewards import weighted

SKILLS = "txt", "img", "aud", "vid", "code"
CAPABILITIES = (*SKILLS, "web")
SIX = [
    "ImageAnalysisAction",
    "ParseAudioAction",
    "VideoAnalysisAction",
    "GoogleSearchAction",
    "ExtractUrlContentAction",
    "ExecuteCodeAction",
]
WORDS = ["read", "the", "clock", "in", "clock.png", "and", "say", "which", "city", "has", "it"]


def cases():
    """The generators of 1,000 random cases, the same in each test."""
    return (Random(seed) for seed in range(1000))


def subsets(items):
    return [
        [x for x, taken in zip(items, mask, strict=True) if taken]
        for mask in product((0, 1), repeat=len(items))
    ]


# ---- Eq. 5, 7, 8, 10-12: who does a sub-task -----------------------------------------------------


def drawn_pool(rng):
    """phi(b) and prices of one to four backends."""
    return [
        Backend(
            f"b{n}", "m", "http://none/v1", latency_s=rng.uniform(0, 60), price_usd_per_mtok=Price(rng.uniform(0, 5), rng.uniform(0, 20)),
            skills={skill: rng.random() for skill in SKILLS},
        )
        for n in range(rng.randint(1, 4))
    ]  # fmt: skip


def drawn_psi(rng):
    """psi(g) of up to five tools."""
    return {
        f"g{n}": frozenset(rng.sample(CAPABILITIES, rng.randint(1, 3)))
        for n in range(rng.randint(0, 5))
    }


def drawn_requirements(rng):
    return {capability: rng.random() for capability in CAPABILITIES}


def kappa_l(b, tools):
    """kappa_b l(u), with a step for each tool and one more."""
    price = b.price_usd_per_mtok
    read, written = STEP_TOKENS
    step_usd = (read * price.input + written * price.output) / 1e6
    return step_usd * (len(tools) + 1)


def eq_5(r, b, tools):
    match = sum(r[skill] * b.skills[skill] for skill in SKILLS)
    return match - LAMBDA_COST * kappa_l(b, tools) - LAMBDA_LATENCY * b.latency_s


def eq_7(r, psi, chosen):
    """<r_T(u), sum of psi(g)> - lambda_s |S|."""
    total = [sum(capability in psi[g] for g in chosen) for capability in CAPABILITIES]
    return sum(r[c] * n for c, n in zip(CAPABILITIES, total, strict=True)) - LAMBDA_TOOL * len(
        chosen
    )


def test_the_backend_is_the_argmax_of_eq_5():
    for rng in cases():
        pool, r, tools = drawn_pool(rng), drawn_requirements(rng), rng.sample(SIX, 3)
        u = SubTask("u", "do it", tools=tuple(tools), requirements=r)
        expected = [eq_5(r, b, tools) for b in pool]
        assert [score(u, r, b) for b in pool] == pytest.approx(expected)
        assert materialize(u, Task("?"), pool, {})[1] is pool[expected.index(max(expected))]


def test_the_tools_are_the_argmax_of_eq_7_over_all_subsets():
    for rng in cases():
        r, psi = drawn_requirements(rng), drawn_psi(rng)
        best = max(subsets(list(psi)), key=lambda chosen: eq_7(r, psi, chosen))
        u = SubTask("u", "do it", requirements=r)
        assert sorted(materialize(u, Task("?"), drawn_pool(rng), psi)[0].tools) == sorted(best)


def test_a_batch_is_placed_as_eq_8_and_10_to_12_say():
    """P_t is the best of all subsets, and each of its sub-tasks has b* and T*, unless they were named."""
    for rng in cases():
        pool, psi, k_max = drawn_pool(rng), drawn_psi(rng), rng.randint(1, 4)
        subtasks, executors = [], {}
        for n in range(rng.randint(1, 6)):
            r = drawn_requirements(rng)
            tools = max(subsets(list(psi)), key=lambda chosen, r=r: eq_7(r, psi, chosen))
            b = max(pool, key=lambda b, r=r, tools=tools: eq_5(r, b, tools))
            named = rng.choice([None, rng.choice(pool)])
            fields = {"backend": named and named.name, "priority": rng.uniform(0.1, 3)}
            subtasks.append(SubTask(f"t{n}", f"do {n}", requirements=r, **fields))
            executors[f"t{n}"] = (named or b, set(tools))
        cost = {u.id: kappa_l(executors[u.id][0], executors[u.id][1]) for u in subtasks}
        budget = rng.uniform(1, 2) * max(cost.values())
        within = [
            p for p in subsets(subtasks) if len(p) <= k_max and sum(cost[u.id] for u in p) <= budget
        ]
        most = max(sum(u.priority for u in p) for p in within)
        placed = place(subtasks, Task("?"), pool, psi, k_max, budget)
        assert sum(p.subtask.priority for p in placed) == pytest.approx(most)
        assert len(placed) <= k_max and sum(cost[p.subtask.id] for p in placed) <= budget
        assert [(p.backend, set(p.subtask.tools)) for p in placed] == [
            executors[p.subtask.id] for p in placed
        ]
        assert [p.subtask.backend for p in placed] == [p.backend.name for p in placed]


def test_a_batch_that_any_budget_pays_is_the_k_most_useful_of_eq_10():
    for rng in cases():
        utility = [rng.uniform(0.1, 9) for _ in range(rng.randint(1, 40))]
        subtasks = [SubTask(f"t{n}", "do", priority=u) for n, u in enumerate(utility)]
        k_max = rng.randint(1, 9)
        chosen = batch(subtasks, k_max, None, [1.0] * len(subtasks))
        assert sorted(u.priority for u in chosen) == sorted(utility)[-k_max:]


# ---- Eq. 9: the ready set ------------------------------------------------------------------------


def test_the_ready_set_is_that_of_eq_9_where_nothing_failed():
    for rng in cases():
        names = [f"v{n}" for n in range(rng.randint(1, 8))]
        pred = {v: rng.sample(names[:n], rng.randint(0, n)) for n, v in enumerate(names)}
        completed = {v for v in names if rng.random() < 0.5}
        results = {v: Result(rng.choice(["done", "partial"]), "a", "s") for v in completed}
        graph = Graph({v: SubTask(v, "do", needs=tuple(pred[v])) for v in names}, results)
        expected = {v for v in set(names) - completed if set(pred[v]) <= completed}
        assert {u.id for u in ready(graph)} == expected


# ---- Eq. 2 and 19: a sub-task and an entry of the history ----------------------------------------


def drawn_tuple(rng):
    """(I, C, b, T)."""
    text = " ".join(rng.choices(WORDS, k=rng.randint(1, 9)))
    return (
        text,
        rng.choice(["", text]),
        rng.choice(["small", "large"]),
        rng.sample(SIX, rng.randint(0, 6)),
    )


def test_a_sub_task_is_the_four_tuple_of_eq_2():
    state = State(Task("?"), "", (), ("small", "large"), tuple(SIX), 1, 10)
    for rng in cases():
        instruction, context, model, tools = drawn_tuple(rng)
        row = {"task_instruction": instruction, "context": context, "model": model, "tools": tools}
        (u,) = read_tasks([json.loads(json.dumps(row))], state)
        assert (u.instruction, u.context, u.backend, list(u.tools)) == (
            instruction,
            context,
            model,
            tools,
        )


def test_an_entry_of_the_history_is_the_six_tuple_of_eq_19():
    history, method, expected = (), Method(Pool((), ""), {}, Options()), []
    for rng in cases():
        instruction, _, backend, tools = drawn_tuple(rng)
        status = rng.choice(["done", "partial", "blocked", "failed"])
        answer, summary = f"answer {rng.random()}", f"summary {rng.random()}"
        u = SubTask("t1", instruction, backend=backend, tools=tuple(tools))
        h = summarize(u, Result(status, answer, summary, round=1))
        expected.append((instruction, backend, tuple(tools), status, answer, summary))
        assert (h.instruction, h.backend, h.tools, h.status, h.answer, h.summary) == expected[-1]
        history = method.remember(history, u, Result(status, answer, summary, round=1))
    assert [
        (h.instruction, h.backend, h.tools, h.status, h.answer, h.summary) for h in history
    ] == expected


# ---- Eq. 21 --------------------------------------------------------------------------------------


def test_the_budget_that_is_left_is_that_of_eq_21():
    for rng in cases():
        purse, costs = Purse(100.0), [rng.random() for _ in range(rng.randint(0, 9))]
        for cost in costs:
            part = Purse()
            part.charge(cost)
            purse.join(part)
        assert purse.left_usd == pytest.approx(100 - sum(costs))


# ---- Eq. 29, settings, the Pareto front ----------------------------------------------------------


def test_the_reward_is_that_of_eq_29_for_all_scores():
    for f, a, t, d in product(range(2), range(2), range(4), range(4)):
        lines = (
            f"FORMAT_CORRECT: {f}\nACTION_VALID: {a}\nTOOL_REASONABLE: {t}\nDECISION_QUALITY: {d}"
        )
        assert weighted(read_scores(lines)) == pytest.approx(
            0.1 * f + 0.1 * a + 0.2 * t / 3 + 0.6 * d / 3
        )


def test_the_settings_are_those_of_section_4_1():
    assert (OrchestraO1.rounds, Options().steps) == (10, 30)
    assert sorted({*all_tools()} - {"ReadFileAction"}) == sorted(SIX)  # for files that are no media
    options = {name: field.default for name, field in TrainingOptions.model_fields.items()}
    wanted = {"group": 8, "batch": 24, "beta": 0.01, "max_tokens": 4096, "epochs": 5}
    assert {name: options[name] for name in wanted} == wanted
    assert _default_lr({"full": True}) == 5e-6


def test_the_front_has_the_versions_that_no_other_one_beats():
    for rng in cases():
        drawn = [(rng.randint(0, 4) / 4, rng.randint(1, 5) / 100) for _ in range(rng.randint(1, 7))]
        versions = [
            Version(k, records="r", success=s, cost_usd=c) for k, (s, c) in enumerate(drawn)
        ]

        def beaten(k, drawn=drawn):
            s, c = drawn[k]
            others = [(n, *at) for n, at in enumerate(drawn) if n != k]
            return any(
                s2 >= s and c2 <= c and ((s2, c2) != (s, c) or n < k) for n, s2, c2 in others
            )

        assert {v.k for v in front(versions)} == {k for k in range(len(drawn)) if not beaten(k)}
