"""Purses: shares, the longest answer that is affordable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.money import Purse
from orchestra.vocabulary import Backend, BudgetExceeded, Price


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
