"""What may be on the bill is booked: answers without a choice, time-outs, broken answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

import orchestra_min
from orchestra.lines import read
from orchestra.money import Purse
from orchestra.replay import Tape
from orchestra.run_folder import Options
from orchestra.vocabulary import EndpointError
from tests.asking import answering, ask
from tests.conftest import pool_at
from tests.scripted import Raw, completion


def test_an_answer_without_a_choice_is_booked_by_its_own_count(endpoint, tmp_path):
    server = endpoint(answering({**completion(""), "choices": []}))
    purse = Purse(1.0)
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape, pytest.raises(EndpointError):
        ask(tape, server.url, purse)
    assert purse.spent_usd == pytest.approx(110e-6) and purse.calls == 1


def test_a_call_that_timed_out_is_booked_at_the_most_it_can_cost(endpoint, tmp_path):
    server = endpoint(answering("late"), delay_s=0.4)
    purse = Purse(1.0)
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape, pytest.raises(EndpointError):
        ask(tape, server.url, purse, timeout_s=0.1)
    assert purse.spent_usd is not None and purse.spent_usd > 3 * 4096e-6


@pytest.mark.parametrize("limit_usd, tries", [(1.0, 3), (0.010, 2), (0.005, 1)])
def test_a_try_after_a_time_out_is_made_only_where_its_price_is_left(
    limit_usd, tries, endpoint, tmp_path
):
    """At these prices a try is 4096 tokens and those of its prompt: some 0.0042 USD."""
    server = endpoint(answering("late"), delay_s=0.4)
    spent = []
    for mode in ("record", "replay"):
        purse = Purse(limit_usd)
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape, pytest.raises(EndpointError):
            ask(tape, server.url, purse, timeout_s=0.1)
        spent.append(purse.spent_usd)
    assert spent[0] == spent[1] and tries * 4096e-6 < spent[0] <= limit_usd
    assert len(list(read(tmp_path / "tape.jsonl"))) == tries and purse.paid_usd == 0.0


@pytest.mark.parametrize("trouble", ["late", "undecodable", "broken off"])
def test_an_answer_after_a_try_in_vain_costs_them_both(trouble, endpoint, tmp_path):
    first: dict[str, Callable[[], Any]] = {
        "late": lambda: time.sleep(0.4),
        "undecodable": lambda: Raw(200, b"this is no gzip", content_encoding="gzip"),
        "broken off": lambda: Raw(200, b"{}", content_length="999"),
    }
    tries = iter([first[trouble], lambda: "fine"])
    server = endpoint(lambda request: next(tries)())
    spent = []
    for mode in ("record", "resume", "replay"):
        purse = Purse(1.0)
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape:
            assert ask(tape, server.url, purse, timeout_s=0.2) == "fine"
        spent.append(purse.spent_usd)
        assert purse.calls == 2 and (purse.paid_usd == 0.0) == (mode != "record")
    assert len(set(spent)) == 1 and spent[0] > 4096e-6 + 110e-6


@pytest.mark.parametrize("limit_usd, booked", [(1.0, 4096e-6), (None, None)])
def test_an_answer_that_is_no_json_may_be_on_the_bill(limit_usd, booked, endpoint, tmp_path):
    server = endpoint(lambda request: Raw(200, b'{"choices": [{"mess'))
    purse = Purse(limit_usd)
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape, pytest.raises(EndpointError):
        ask(tape, server.url, purse)
    if booked is None:
        assert purse.spent_usd is None
    else:
        assert purse.spent_usd is not None and purse.spent_usd > booked


def test_a_call_that_may_be_on_the_bill_is_kept(endpoint, tmp_path):
    server = endpoint(answering("late"), delay_s=0.4)
    with pytest.raises(EndpointError):
        orchestra_min.orchestrate(
            "?", (), pool_at(server.url), Options(timeout_s=0.1), tmp_path / "run"
        )
    assert len(list(read(tmp_path / "run" / "tape.jsonl"))) == 3
