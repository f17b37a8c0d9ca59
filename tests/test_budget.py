"""A budget is hard, and what every call costs is counted once."""

import threading
import time
from dataclasses import replace
from random import Random

import pytest

from orchestra.kernel.folder import read_manifest
from orchestra.kernel.money import Bill, Ledger
from tests.conftest import Price, Purse, pool_at
from tests.program import METHODS, any_method, content, replay, resume
from tests.scripted import (
    Raw,
    act,
    complete,
    completion,
    delegate,
    finish,
    is_main,
)

UNIT_USD = (100 * 10 + 10 * 100) / 1e6  # of a scripted completion at this price
PRICE = Price(10.0, 100.0, 10.0)


def most_tokens(request):
    """An endpoint that uses all it may: a token a byte and 16 a message in, the limit out."""
    read = sum(len(str(m["content"]).encode()) + 16 for m in request["messages"])
    limits = (request.get(name) for name in ("max_tokens", "max_completion_tokens"))
    return read, next(limit for limit in limits if limit)


def greedy(request, text):
    read, written = most_tokens(request)
    return completion(text, usage={"prompt_tokens": read, "completion_tokens": written})


def bill_usd(requests, price=PRICE):
    used = [most_tokens(r) for r in requests]
    return sum(read * price.input + written * price.output for read, written in used) / 1e6


# ---- hard ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget_usd", [0.0, 0.01, 0.1, 0.5, 1.3])
@pytest.mark.parametrize("price", [PRICE, Price(0.1, 300.0, 0.1), Price(90.0, 1.0, 9.0)])
def test_no_bill_passes_the_budget(budget_usd, price, run):
    def respond(request):
        return greedy(request, delegate("a", "b", "c") if is_main(request) else finish("seen"))

    result = run(respond=respond, price=price, budget_usd=budget_usd, rounds=20)
    assert bill_usd(run.requests, price) <= budget_usd * (1 + 1e-9)
    assert result.cost_usd == pytest.approx(bill_usd(run.requests, price))
    assert result.state in ("fallback", "stopped") and result.ending.why
    assert result.calls == len(run.requests)


def test_a_method_that_decides_once_may_spend_the_whole_budget(run):
    run(price=Price(1.25, 10.0, 1.25), method="react", budget_usd=0.03)
    (request,) = run.requests
    assert 0.02 < most_tokens(request)[1] * 10.0 / 1e6 < 0.03  # not half of it


LISTED = [("toolorchestra", usd, "tools") for usd in (0.12, 0.15, 0.2)]  # the tools in the prompt


@pytest.mark.parametrize("method, budget_usd, refused", [*((m, 0.6, "") for m in METHODS), *LISTED])
def test_no_method_passes_the_budget(method, budget_usd, refused, run):
    respond = lambda r: Raw(400, {}) if refused in r else greedy(r, any_method(r))  # noqa: E731
    result = run(respond=respond, method=method, price=PRICE, budget_usd=budget_usd)
    bill = bill_usd(r for r in run.requests if refused not in r)
    assert 0 < bill <= budget_usd and result.cost_usd == pytest.approx(bill)


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": -5, "completion_tokens": 1}])
def test_an_answer_that_names_no_cost_is_booked_at_its_most(usage, run):
    result = run(completion(complete("42"), usage=usage), price=PRICE, budget_usd=1.0)
    assert run.requests[0]["max_tokens"] * 100e-6 < result.cost_usd <= 1.0


CUT_OFF = Raw(200, '{"choices": [{"mess')
NO_GZIP = Raw(200, b"this is no gzip", content_encoding="gzip")


@pytest.mark.parametrize("budget_usd", [2.0, None])
@pytest.mark.parametrize("trouble", [None, CUT_OFF, NO_GZIP])
def test_an_attempt_that_may_cost_is_booked_at_its_most(trouble, budget_usd, run):
    """Without a budget such a cost is unknown. More time for a resume changes no recorded call."""
    never = threading.Event()
    work = trouble or (lambda text: never.wait(60))  # late
    decisions = delegate("look"), complete("42")
    result = run(*decisions, work=work, price=PRICE, budget_usd=budget_usd, timeout_s=0.2)
    options = replace(read_manifest(run.folder).options, timeout_s=60.0)
    again = [replay(run.folder), resume(run.folder, options=options)]
    never.set()
    assert {r.cost_usd for r in again} == {result.cost_usd} and result.answer == "42"
    if budget_usd is None:
        assert result.cost_usd is None
    else:
        sub = [r["max_tokens"] for r in run.requests if not is_main(r)]
        assert sum(sub) * 100e-6 + 2 * UNIT_USD < result.cost_usd <= budget_usd


# ---- an endpoint that ignores max_tokens ---------------------------------------------------------


def wait_until(happened):
    until = time.monotonic() + 20
    while not happened() and time.monotonic() < until:
        time.sleep(0.01)


def charging(text, usd):
    """A completion that costs so much."""
    return completion(text, usage={"prompt_tokens": 0, "completion_tokens": round(usd * 1e4)})


def test_no_call_starts_once_another_thread_has_passed_the_budget(run):
    """The other sub-task, whose share is untouched, gets its first answer after that."""
    notices = []

    def respond(request):
        if is_main(request):
            return greedy(request, delegate("dear", "cheap"))
        if "dear" in str(request["messages"]):
            wait_until(lambda: len(run.requests) == 3)
            return charging(finish("seen"), 3.0)
        tape = run.folder / "tape.jsonl"
        wait_until(lambda: '"r1/t1/s1"' in tape.read_text())
        time.sleep(0.2)  # and it is booked
        return charging(act("none"), 0.001)

    result = run(respond=respond, price=PRICE, budget_usd=1.0, listeners=[notices.append])
    assert len(run.requests) == result.calls == 3 and result.fallback
    assert "cannot cover a call" in str(result.events)
    assert sum("billed more tokens" in str(row.get("message")) for row in notices) == 1
    again = resume(run.folder)
    assert content(again.events) == content(result.events) and len(run.requests) == 3


def test_only_the_calls_in_flight_can_pass_the_budget(run):
    """40 runs, with replies of up to 30 times the tokens that were allowed."""
    for seed in range(40):
        random, bill = Random(seed), []

        def respond(request, random=random, bill=bill):
            if is_main(request):
                bill.append(UNIT_USD)
                return delegate(*"abcd")
            text = random.choice([act("none"), finish("x")])
            read, written = most_tokens(request)
            written = int(written * random.choice([0.01, 0.1, random.uniform(0, 30)]))
            bill.append((read * PRICE.input + written * PRICE.output) / 1e6)
            return completion(text, usage={"prompt_tokens": read, "completion_tokens": written})

        budget = {"budget_usd": random.choice([0.3, 1.0, 4.0]), "k_max": 4}
        result = run(respond=respond, price=PRICE, out=f"run{seed}", rounds=9, **budget)
        assert result.cost_usd == pytest.approx(sum(bill)) and result.calls == len(bill)
        assert sum(sorted(bill)[:-4]) <= budget["budget_usd"]


@pytest.mark.parametrize("seed", range(20))
def test_a_call_starts_only_if_its_most_fits_beside_those_in_flight(seed):
    random, ledger = Random(seed), Ledger(limit_usd=1.0)
    (backend,) = pool_at("http://127.0.0.1:9").backends
    spent_usd, worst_usd, started, in_flight = 0.0, 0.0, 0, []
    for _ in range(300):
        if in_flight and random.random() < 0.5:
            bill = in_flight.pop(random.randrange(len(in_flight)))
            cost_usd = bill.most_usd * random.choice([0.1, 0.5, 1.0, random.uniform(1, 9)])
            bill.book(cost_usd)
            if bill.is_exceeded:
                worst_usd = max(worst_usd, cost_usd)
            bill.settle()
            spent_usd += cost_usd
        else:
            bill = Bill(ledger, Purse(), backend, random.uniform(0, 0.1))
            starts = bill.covers(attempts=1)
            reserved_usd = max(bill.most_usd, worst_usd)
            assert not starts or spent_usd + reserved_usd <= 1.0 + 1e-6
            in_flight += [bill] * starts
            started += starts
    assert started > 0 and not Bill(ledger, Purse(), backend, 1.0).covers(attempts=1)


# ---- counted once --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_every_call_of_a_method_is_counted_once(method, run):
    result = run(method=method, price=PRICE)
    assert (result.answer, result.calls) == ("42", len(run.requests))
    assert result.cost_usd == pytest.approx(result.calls * UNIT_USD) == result.paid_usd
    assert result.tokens == 110 * result.calls
    run.server.close()
    for again in (replay(run.folder), resume(run.folder, parallel=1)):
        assert content(again.events) == content(result.events)
        assert (again.cost_usd, again.calls, again.paid_usd) == (result.cost_usd, result.calls, 0.0)


def test_a_decision_that_takes_two_calls_counts_both(run):
    """Eq. 22: sure enough to stop while it delegates, the main agent is asked for the answer."""
    sure = completion(delegate("look"))
    tokens = [{"token": '{"action": "', "logprob": 0.0, "top_logprobs": []},
              {"token": 'delegate_task"', "logprob": -5.0,
               "top_logprobs": [{"token": "complete", "logprob": -0.01}]}]  # fmt: skip
    sure["choices"][0]["logprobs"] = {"content": tokens}
    result = run(sure, complete("42"), price=PRICE, stop_threshold=0.5)
    assert (result.answer, result.calls) == ("42", 2)
    assert result.cost_usd == pytest.approx(2 * UNIT_USD)
