"""Every run ends with one end row, and the terminal, --runs and the page give the same reason."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestra import report
from orchestra.runtime import trajectory
from orchestra.runtime.run_folder import read_manifest
from orchestra.runtime.summary import Totals, summary, totals_in
from orchestra.vocabulary import Price
from orchestra_min import orchestrate
from tests.conftest import ROOT, Options, pool_at
from tests.program import METHODS, any_method, called
from tests.scripted import (
    Raw,
    complete,
    completion,
    delegate,
    finish,
    free_port,
    is_main,
    last_text,
)

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")
FIXTURES = sorted(path.parent for path in (ROOT / "fixtures/runs").glob("*/run.json"))


def status(code):
    return lambda request: Raw(code, {"error": {"message": f"that is a {code}"}})


def finding(request):
    """Delegates, and answers with what the sub-agent found."""
    if is_main(request):
        return complete("42") if "it is 42" in last_text(request) else delegate("look")
    return finish("it is 42")


ENDINGS = {  # the flags, what the endpoint does, how the run ends, and by what
    "401": ("", status(401), "stopped", "endpoint"),
    "404": ("", status(404), "stopped", "endpoint"),
    "500": ("--patience 0", status(500), "stopped", "endpoint"),
    "429": ("--patience 0", status(429), "stopped", "rate limit"),
    "replies": ("", lambda request: "hm", "stopped", "replies"),
    "rounds": ("--rounds 1", finding, "fallback", "rounds"),
    "answered": ("", finding, "answered", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDINGS)
def test_all_views_give_the_same_reason(name, endpoint):
    flags, respond, state, cause = ENDINGS[name]
    done = called("?", "--out", "runs/one", *flags.split(), at=endpoint(respond).url)
    seen = summary(Path("runs/one"))
    assert (seen.ending.state, seen.ending.cause) == (state, cause)
    [listed] = json.loads(called("--runs", "runs", "--json").stdout)
    page = report.run_row(Path("runs/one"), report.Texts())
    assert seen.ending.why == listed["why"] == page["why"] and seen.ending.why in done.stderr
    assert (listed["state"], page["state"]) == (state, state) and bool(seen.ending.why) == (
        state != "answered"
    )


def test_an_endpoint_that_does_not_exist_is_the_reason():
    called("?", "--out", "run", "--patience", "0", at=f"http://127.0.0.1:{free_port()}/v1")
    ending = summary(Path("run")).ending
    assert (ending.state, ending.cause) == ("stopped", "endpoint") and "is it up" in ending.why


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_has_its_cost_and_says_that_it_was_interrupted(number, endpoint):
    def respond(request):
        if not is_main(request):
            time.sleep(30)
        return delegate("look")

    server = endpoint(respond)
    words = [sys.executable, str(ROOT / "orchestra_min.py"), "?", "--model", "m", "--out", "run"]
    process = subprocess.Popen(
        words, env={**os.environ, "OPENAI_BASE_URL": server.url}, stderr=subprocess.DEVNULL
    )
    while len(server.requests) < 2:
        time.sleep(0.05)
    assert summary(Path("run")).ending.why == "it is still running"
    process.send_signal(number)
    process.wait(30)
    seen = summary(Path("run"))
    assert (seen.ending.state, seen.totals.tokens) == (
        "interrupted",
        110,
    ) and seen.totals.calls >= 1


@pytest.mark.parametrize("folder", FIXTURES, ids=lambda path: path.name)
def test_the_totals_of_the_tape_are_those_of_the_purse(folder):
    end = trajectory.ended(trajectory.read(folder / "trajectory.jsonl"))
    totals = totals_in(folder, read_manifest(folder))
    assert totals == Totals(end["calls"], end["tokens"], end["cost_usd"])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("usage", [{}, {"cost": 0.25}, None], ids=["tokens", "cost", "none"])
@pytest.mark.parametrize("budget_usd", [None, 5.0])
def test_tape_and_purse_agree(method, usage, budget_usd, endpoint):
    failed = iter([True])  # the first attempt is lost

    def respond(request):
        if next(failed, False):
            return Raw(500, {"error": {"message": "lost"}})
        reply = completion(any_method(request))
        return {**reply, "usage": None if usage is None else {**reply["usage"], **usage}}

    pool = pool_at(endpoint(respond).url, price=Price(1, 2))
    run = orchestrate(
        "?", pool=pool, options=Options(method=method, budget_usd=budget_usd), out="run"
    )
    expected = Totals(run.calls, run.tokens, run.cost_usd)
    assert totals_in(Path("run"), read_manifest(Path("run"))) == expected
    assert usage != {"cost": 0.25} or run.cost_usd == 0.25 * (run.tokens // 110)
