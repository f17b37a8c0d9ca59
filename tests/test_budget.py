"""A budget is hard, and what every call costs is counted once."""

import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.vocabulary import BudgetExceeded
from orchestra_min import orchestrate
from tests.conftest import Backend, Options, Price, Purse, pool_at
from tests.program import METHODS, any_method, called, content, replay, resume
from tests.scripted import Raw, complete, completion, delegate, finish, is_main
from tests.test_input import BACKEND

UNIT_USD = (100 * 10 + 10 * 100) / 1e6  # of a scripted completion at this price
PRICE = Price(10.0, 100.0, 10.0)


def most_tokens(request: dict[str, Any]) -> tuple[int, int]:
    """An endpoint that uses all it may: a token a byte and 16 a message in, the limit out."""
    read = sum(len(str(m["content"]).encode()) + 16 for m in request["messages"])
    limits = (request.get(name) for name in ("max_tokens", "max_completion_tokens"))
    return read, next(limit for limit in limits if limit)


def greedy(request: dict[str, Any], text: str) -> dict[str, Any]:
    read, written = most_tokens(request)
    return completion(text, usage={"prompt_tokens": read, "completion_tokens": written})


def bill_usd(requests: list[dict[str, Any]], price: Price = PRICE) -> float:
    used = [most_tokens(r) for r in requests]
    return sum(read * price.input + written * price.output for read, written in used) / 1e6


# ---- hard ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget_usd", [0.0, 0.01, 0.1, 0.5, 1.3])
@pytest.mark.parametrize("price", [PRICE, Price(0.1, 300.0, 0.1), Price(90.0, 1.0, 9.0)])
def test_no_bill_passes_the_budget(budget_usd, price, endpoint, tmp_path):
    def respond(request: dict[str, Any]) -> Any:
        return greedy(request, delegate("a", "b", "c") if is_main(request) else finish("seen"))

    server, options = endpoint(respond), Options(budget_usd=budget_usd, rounds=20)
    result = orchestrate("?", (), pool_at(server.url, price=price), options, tmp_path / "run")
    assert bill_usd(server.requests, price) <= budget_usd * (1 + 1e-9)
    assert result.cost_usd == pytest.approx(bill_usd(server.requests, price))
    assert result.fallback and result.why and result.calls == len(server.requests)


def test_a_method_that_decides_once_may_spend_the_whole_budget(endpoint, tmp_path):
    server, options = (
        endpoint(lambda request: finish("seen")),
        Options(method="react", budget_usd=0.03),
    )
    pool = pool_at(server.url, price=Price(1.25, 10.0, 1.25))
    assert orchestrate("?", (), pool, options, tmp_path / "run").answer == "seen"
    (request,) = server.requests
    assert 0.02 < most_tokens(request)[1] * 10.0 / 1e6 < 0.03  # not half of it


@pytest.mark.parametrize("method", METHODS)
def test_no_method_passes_the_budget(method, endpoint, tmp_path):
    server = endpoint(lambda request: greedy(request, any_method(request)))
    options = Options(method=method, budget_usd=0.6)
    result = orchestrate("?", (), pool_at(server.url, price=PRICE), options, tmp_path / "run")
    assert 0 < bill_usd(server.requests) <= 0.6
    assert result.cost_usd == pytest.approx(bill_usd(server.requests))


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": -5, "completion_tokens": 1}])
def test_an_answer_that_names_no_cost_is_booked_at_its_most(usage, endpoint, tmp_path):
    server = endpoint(lambda request: completion(complete("42"), usage=usage))
    options, pool = Options(budget_usd=1.0), pool_at(server.url, price=PRICE)
    result = orchestrate("?", (), pool, options, tmp_path / "run")
    assert result.cost_usd is not None
    assert server.requests[0]["max_tokens"] * 100e-6 < result.cost_usd <= 1.0


CUT_OFF = Raw(200, '{"choices": [{"mess')
NO_GZIP = Raw(200, b"this is no gzip", content_encoding="gzip")


@pytest.mark.parametrize("budget_usd", [2.0, None])
@pytest.mark.parametrize("trouble", [None, CUT_OFF, NO_GZIP])
def test_an_attempt_that_may_cost_is_booked_at_its_most(trouble, budget_usd, endpoint, tmp_path):
    """Without a budget such a cost is unknown."""
    never = threading.Event()
    sub: list[dict[str, Any]] = []

    def respond(request: dict[str, Any]) -> Any:
        if is_main(request):
            return complete("42") if sub else delegate("look")
        sub.append(request)
        return trouble or never.wait(60)  # late

    pool = pool_at(endpoint(respond).url, price=PRICE)
    options = Options(budget_usd=budget_usd, timeout_s=0.5)
    result = orchestrate("?", (), pool, options, tmp_path / "run")
    again = [f(tmp_path / "run") for f in (replay, resume)]
    never.set()
    assert {r.cost_usd for r in again} == {result.cost_usd} and result.answer == "42"
    if budget_usd is None:
        assert result.cost_usd is None
    else:
        least = sum(r["max_tokens"] for r in sub) * 100e-6 + 2 * UNIT_USD
        assert result.cost_usd is not None and least < result.cost_usd <= budget_usd


# ---- counted once --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_every_call_of_a_method_is_counted_once(method, endpoint, tmp_path):
    server = endpoint(any_method)
    pool, out = pool_at(server.url, price=PRICE), tmp_path / "run"
    result = orchestrate("?", (), pool, Options(method=method), out)
    assert (result.answer, result.calls) == ("42", len(server.requests))
    assert result.cost_usd == pytest.approx(result.calls * UNIT_USD) == result.paid_usd
    assert result.tokens == 110 * result.calls
    server.close()
    for again in (replay(out), resume(out, parallel=1)):
        assert content(again.events) == content(result.events)
        assert (again.cost_usd, again.calls, again.paid_usd) == (result.cost_usd, result.calls, 0.0)


def test_a_decision_that_takes_two_calls_counts_both(endpoint, tmp_path):
    """Eq. 22: sure enough to stop while it delegates, the main agent is asked for the answer."""
    sure = completion(delegate("look"))
    tokens = [{"token": '{"action": "', "logprob": 0.0, "top_logprobs": []},
              {"token": 'delegate_task"', "logprob": -5.0,
               "top_logprobs": [{"token": "complete", "logprob": -0.01}]}]  # fmt: skip
    sure["choices"][0]["logprobs"] = {"content": tokens}
    answers = iter([sure, complete("42")])
    server = endpoint(lambda request: next(answers))
    options, pool = Options(stop_threshold=0.5), pool_at(server.url, price=PRICE)
    result = orchestrate("?", (), pool, options, tmp_path / "run")
    assert (result.answer, result.calls) == ("42", 2)
    assert result.cost_usd == pytest.approx(2 * UNIT_USD)


# ---- what a budget needs -------------------------------------------------------------------------


def test_each_method_of_a_comparison_has_the_whole_budget(endpoint, tmp_path):
    server = endpoint(lambda request: greedy(request, any_method(request)))
    price = "price_usd_per_mtok = { input = 10, output = 100, cached = 10 }\n"
    (tmp_path / "pool.toml").write_text(BACKEND.replace("http://x/v1", server.url) + price)
    flags = "--compare", "orchestra-o1,aorchestra", "--budget", 0.5, "--out", tmp_path / "all"
    done = called("?", "--json", "--backends", tmp_path / "pool.toml", *flags)
    results = json.loads(done.stdout)
    assert [r["answer"] for r in results] == ["42", "42"]
    assert all(0.25 < r["cost_usd"] <= 0.5 for r in results)


@pytest.mark.parametrize("budget_usd", [0.12, 0.15, 0.2])
def test_tools_that_are_told_in_the_prompt_count_towards_the_budget(budget_usd, endpoint, tmp_path):
    def respond(request: dict[str, Any]) -> Any:
        return Raw(400, {}) if "tools" in request else greedy(request, any_method(request))

    server = endpoint(respond)
    options = Options(method="toolorchestra", budget_usd=budget_usd)
    orchestrate("?", (), pool_at(server.url, price=PRICE), options, tmp_path / "run")
    paid = [r for r in server.requests if "tools" not in r]
    assert paid and bill_usd(paid) <= budget_usd


# ---- the purse: shares, the longest answer that is affordable -----------------------------------


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 9), st.integers(0, 9))
def test_even_shares_and_those_kept_back_add_up_to_what_is_left(limit, spent, parts, later):
    purse = Purse(limit)
    purse.charge(spent)
    shares = [part.limit_usd for part in purse.split(parts, later)]
    assert len(shares) == parts and min(shares) >= 0
    assert sum(shares) * (parts + later) / parts == pytest.approx(max(limit - spent, 0))


@given(st.floats(0, 1), st.floats(0.01, 100), st.integers(0, 10_000))
def test_a_call_that_is_started_never_costs_more_than_is_left(limit, usd, given_tokens):
    backend = Backend("a", "a", "http://none/v1", price_usd_per_mtok=Price(usd, usd))
    try:
        length = Purse(limit).output_tokens(backend, given_tokens)
        assert backend.cost_usd(given_tokens, length) <= limit * (1 + 1e-9)
    except BudgetExceeded:
        assert backend.cost_usd(given_tokens, 64) > limit * (1 - 1e-9)


def test_an_unknown_cost_stays_unknown_in_every_sum():
    run, part = Purse(), Purse()
    part.charge(None, tokens=7)
    run.charge(0.5)
    run.join(part)
    assert (run.spent_usd, run.paid_usd, run.calls, run.tokens) == (None, None, 2, 7)
