"""Calls, tokens and cost of a run are those of its tape: also after failures, a stop and a resume."""

import contextlib
import itertools
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestra.kernel.vocabulary import EndpointError, Price
from orchestra.report.totals import Totals, newest_events, summary, totals_in
from orchestra_min import orchestrate
from tests.conftest import Options, pool_at
from tests.program import METHODS, any_method, replay, resume
from tests.scripted import Raw, completion, delegate, is_main

LOST, REFUSED = Raw(500, {"error": {"message": "lost"}}), Raw(401, {"error": {}})
USAGES = {"plain": {}, "cost": {"cost": 0.25}, "none": None}
replies = st.lists(st.sampled_from([*USAGES, "lost", "refused", "delegate"]), max_size=8)


def totals_of(run):
    """Of a run that reused nothing: all was paid, by this process or an earlier one."""
    return Totals(run.calls, run.tokens, run.cost_usd, run.cost_usd)


def respond_by(script):
    """Answers by the script, then in full. The endpoint of a resume goes on with it."""
    kinds = itertools.chain(script, itertools.repeat("plain"))

    def respond(request):
        kind = next(kinds)
        if kind == "lost":
            return LOST
        if kind == "refused":
            return REFUSED
        again = kind == "delegate" and is_main(request)
        reply = completion(delegate("look") if again else any_method(request))
        usage = USAGES.get(kind, {})
        return {**reply, "usage": None if usage is None else {**reply["usage"], **usage}}

    return respond


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=replies, budget_usd=st.sampled_from([None, 0.02, 5.0]), price=st.sampled_from([0, 2]))
def test_the_totals_of_a_run_are_those_of_its_tape(method, script, budget_usd, price, endpoint):
    top = Path(tempfile.mkdtemp())
    server = endpoint(respond_by(script))
    pool = pool_at(server.url, price=Price(price, price))
    options = Options.of(method=method, budget_usd=budget_usd, parallel=1, patience_s=0)
    try:
        run = orchestrate("?", pool=pool, options=options, out=top / "run")
        assert run.paid_usd == run.cost_usd
    except EndpointError:
        run = None
    if (top / "run").exists():
        stopped = summary(top / "run").totals
        end = newest_events(top / "run")[-1]
        cost_usd = end["cost_usd"]
        assert stopped == Totals(end["calls"], end["tokens"], cost_usd, cost_usd)
        with contextlib.suppress(EndpointError):
            again = resume(top / "run")
            assert totals_in(top / "run") == totals_of(again) == totals_of(replay(top / "run"))
            if run is None and None not in (again.cost_usd, stopped.cost_usd):
                assert again.paid_usd <= again.cost_usd
    server.close()
    shutil.rmtree(top)
