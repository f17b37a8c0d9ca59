"""One ledger: the terminal, --json, runs, diff, the page, sweeps and the tape read the same totals, to the last digit."""

import json
import math
import random
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from orchestra.command.terminal import figures, row_of
from orchestra.evaluation.sweep_folder import rows_of
from orchestra.kernel.folder import first_difference, read_events, read_manifest
from orchestra.kernel.tape import exchanges
from orchestra.kernel.tool import Environment, tool
from orchestra.methods import METHODS
from orchestra.report.run_data import data_of, read
from orchestra.report.totals import totals_in, totals_of
from orchestra.tools import hearing
from orchestra.variation.diff import difference
from orchestra.variation.fork import run_fork
from orchestra.variation.reuse import answers_of
from orchestra_min import Options, orchestrate, resume
from tests.conftest import EndpointError, Engine, Price, pool_at
from tests.program import called, pool_file, replay
from tests.scripted import Raw, act, complete, completion, delegate, finish, is_main, last_text
from tests.variations import TOOLS, Script, other


@pytest.fixture(autouse=True)
def _here(in_an_empty_folder):
    """Runs are in `run`, `fork` ... of an empty folder."""


def money(totals):
    return totals.cost_usd, totals.paid_usd, totals.saved_usd


def check_views(folder, outcome=None):
    """All views of a run show the totals of its tape, which are returned."""
    folder = Path(folder)
    found = totals_in(folder)
    manifest, tape = read_manifest(folder), exchanges(folder / "tape.jsonl")
    assert totals_of(manifest, tape[::-1]) == found  # in any order
    shown = difference(folder, folder).second
    assert (money(shown), shown.tokens) == (money(found), found.tokens)
    page = data_of(read(folder))["run"]
    assert {name: page[name] for name in vars(found)} == vars(found)
    costs = [call["cost_usd"] for call in page["tape"]]
    total_usd = None if None in costs else pytest.approx(math.fsum(costs))
    assert total_usd == found.cost_usd
    (row,) = json.loads(called("runs", folder, "--json").stdout)
    assert row["cost_usd"] == found.cost_usd
    assert ("unknown" in called("runs", folder).stdout) == (found.cost_usd is None)
    assert all(usd is None or usd >= 0 for usd in money(found))
    if outcome:
        used = found.calls, found.tokens, found.cost_usd
        assert (outcome.calls, outcome.tokens, outcome.cost_usd) == used
        end = read_events(folder)[-1]
        assert (end["calls"], end["tokens"], end["cost_usd"]) == used
        row = row_of(outcome)
        assert (row["cost_usd"], row["saved_usd"]) == (found.cost_usd, found.saved_usd)
        assert ("USD unknown" in figures(row)) == (found.cost_usd is None)
    return found


# ---- random runs ---------------------------------------------------------------------------------


def priced_by(dice, respond):
    """The replies of `respond`, some with a figure of the endpoint, some without usage, some lost."""

    def reply(request):
        if dice.random() < 0.03:
            return dice.choice([Raw(500, {"error": {"message": "lost"}}), OSError()])
        usage = {"prompt_tokens": dice.randint(1, 5000), "completion_tokens": dice.randint(1, 300)}
        cost = {**usage, "cost": dice.random() / 100}
        return completion(respond(request), usage=dice.choice([usage, usage, cost, None]))

    return reply


def random_pool(dice, *urls):
    """One model in three backends, at two addresses and at three prices, of which one may be unknown."""
    pool = pool_at(urls[0], "small", "large", "third")
    backends = [
        replace(
            b,
            model="same",
            base_url=dice.choice(urls),
            price_usd_per_mtok=dice.choice(
                [Price(0.15, 0.6), Price(33.3, 0.1, 0.01), Price(2.5, 10), Price(0, 0), None]
            ),
        )
        for b in pool.backends
    ]
    return replace(pool, backends=tuple(backends), main=dice.choice(pool.names))


@pytest.mark.parametrize("seed", range(10))
def test_all_views_of_random_runs_forks_and_reuses_equal_the_tape(seed, endpoint):
    dice = random.Random(seed)
    here, there = (endpoint(priced_by(dice, Script(seed))).url for _ in range(2))
    pool = random_pool(dice, here, there)
    options = Options(
        method=dice.choice(list(METHODS)),
        steps=3,
        rounds=3,
        parallel=3,
        patience_s=0,
        budget_usd=dice.choice([None, 1.0]),
    )
    how = {"options": options, "tools": TOOLS}
    with suppress(EndpointError):
        orchestrate("?", pool=pool, out="run", **how)
    check_views("run")
    moved = replace(pool, backends=tuple(replace(b, base_url=there) for b in pool.backends))
    with suppress(EndpointError):
        run = resume("run", pool=moved, tools=TOOLS)
        check_views("run", run)
        check_views("run", replay("run", tools=TOOLS))
        sources = {"sources": [answers_of(Path("run"))], "more": {"reuse": ["run"]}}
        changed = replace(random_pool(dice, here, there), main=pool.main)
        check_views("again", orchestrate("?", pool=changed, out="again", **how, **sources))
        round = dice.randint(1, 2) if run.rounds > 1 else 1
        what_if = {f"r{round}": other(dice)}
        fork = run_fork(run.run, Path("fork"), round, what_if, changed, tools=TOOLS)
        found = check_views("fork", fork)
        assert found.paid_usd == fork.paid_usd


# ---- the right value of each case ----------------------------------------------------------------


def look_once(request):
    """A sub-task of large, and the answer. Each call reads 100 tokens and writes 10."""
    if not is_main(request):
        return finish("seen")
    task = {"task_instruction": "look", "context": "", "model": "large", "tools": []}
    return complete("42") if "seen" in last_text(request) else delegate(task)


def two_prices(url):
    """A model in two backends: a call of small costs USD 0.00011, one of large 0.011."""
    pool = pool_at(url, "small", "large")
    small, large = (replace(b, model="same") for b in pool.backends)
    prices = Price(1, 1), Price(100, 100)
    backends = (
        replace(b, price_usd_per_mtok=p) for b, p in zip((small, large), prices, strict=True)
    )
    return replace(pool, backends=tuple(backends))


def test_a_model_in_two_backends_costs_what_the_one_that_was_called_charges(endpoint):
    pool = two_prices(endpoint(look_once).url)
    run = orchestrate("?", pool=pool, out="run")
    cost_usd = pytest.approx(0.01122)
    assert check_views("run", run).cost_usd == cost_usd
    fork = run_fork(Path("run"), Path("fork"), 2, options={"steps": 9})
    totals = check_views("fork", fork)
    assert money(totals) == (cost_usd, 0.0, cost_usd)
    moved = endpoint(look_once)
    pool = replace(pool, backends=tuple(replace(b, base_url=moved.url) for b in pool.backends))
    u = {"id": "mine", "instruction": "look again", "backend": "large"}
    what_if = {"r2": {"action": "delegate", "subtasks": [u]}}
    fork = run_fork(Path("run"), Path("moved"), 2, what_if, pool)
    assert [request["model"] for request in moved.requests] == ["same", "same"]
    assert check_views("moved", fork).paid_usd == pytest.approx(0.01111)


def test_reused_answers_cost_the_present_price_and_are_not_paid(endpoint):
    """Also those without usage, of which a budget assumes the most."""
    usages = iter([None, {"prompt_tokens": 100, "completion_tokens": 10}])
    replies = iter([act("look", name="amber"), finish("42")])
    url = endpoint(lambda request: completion(next(replies), usage=next(usages))).url
    how = {"options": Options(method="react", budget_usd=9.0), "tools": TOOLS}
    run = orchestrate("?", pool=pool_at(url, price=Price(10, 10)), out="run", **how)
    assert run.answer == "42" and run.paid_usd == run.cost_usd > 0.04
    how |= {"sources": [answers_of(run.run)], "more": {"reuse": ["run"]}}
    for name, price, part in (("cheap", Price(5, 5), 0.5), ("free", Price(0, 0), 0.0)):
        again = orchestrate("?", pool=pool_at(url, price=price), out=name, **how)
        cost_usd = pytest.approx(run.cost_usd * part)
        assert money(check_views(name, again)) == (cost_usd, 0.0, cost_usd)


def test_a_reused_transcription_costs_the_present_price_and_is_not_paid(endpoint):
    @tool("hear", "txt")
    def hear(env: Environment) -> str:
        """Hear something."""
        engine = Engine(**env.pool.engines["audio"])
        return hearing._transcription(env, engine, b"sound", minutes=2.0)

    def respond(request):
        if "body" in request:
            return {"text": "a bell"}
        if is_main(request):
            return complete("a bell") if "heard" in last_text(request) else delegate({"task_instruction": "listen", "tools": ["hear"]})  # fmt: skip
        return finish("heard") if "a bell" in last_text(request) else act("hear")

    def pool(price):
        engine = {"engine": "endpoint", "backend": "small", "transcription_model": "whisper-1"}
        return replace(pool_at(url), engines={"audio": {**engine, "usd_per_minute": price}})

    url = endpoint(respond).url
    run = orchestrate("?", pool=pool(0.5), out="run", tools={"hear": hear})
    assert money(check_views("run", run)) == (1.0, 1.0, 0.0)
    how = {"sources": [answers_of(run.run)], "more": {"reuse": ["run"]}, "tools": {"hear": hear}}
    for name, price, cost_usd in (("other", 0.25, 0.5), ("unknown", None, None)):
        again = orchestrate("?", pool=pool(price), out=name, **how)
        assert money(check_views(name, again)) == (cost_usd, 0.0, cost_usd)


def test_the_tapes_of_earlier_versions_have_the_totals_and_replays_of_before(endpoint):
    pool = two_prices(endpoint(look_once).url)
    small, large = pool.backends
    pool = replace(pool, backends=(small, replace(large, model="another")))
    run = orchestrate("?", pool=pool, out="run")
    tape = Path("run/tape.jsonl")
    rows = [json.loads(line) for line in tape.read_text().splitlines()]
    for row in rows:
        row["request"].pop("bill", None)
        if "data" in row["answer"]:
            row["answer"]["most_usd"] = 9.0
    tape.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert check_views("run", replay("run")).cost_usd == run.cost_usd


def test_the_last_digit_of_a_sum_makes_no_difference_between_a_replay_and_its_recording():
    end = {"event": "end", "at": [3], "cost_usd": 0.1 + 0.2}
    assert not first_difference([end], [{**end, "cost_usd": 0.3}])
    assert first_difference([end], [{**end, "cost_usd": 0.300001}])


# ---- sweeps --------------------------------------------------------------------------------------


def test_a_sweep_that_reuses_all_has_paid_nothing(tmp_path, sweep, capsys):
    first = pool_file(tmp_path, sweep.url, m=(1, 1))
    _, before = sweep("--backends", first)
    asked = len(sweep.requests)
    capsys.readouterr()
    cheaper = pool_file(tmp_path, sweep.url, m=(0.5, 0.5))
    code, rows = sweep(
        "--backends", cheaper, "--reuse", tmp_path / "out", "--out", tmp_path / "new"
    )
    assert (code, len(sweep.requests)) == (0, asked)
    for name, row in rows.items():
        half_usd = pytest.approx(before[name]["cost_usd"] / 2)
        assert (row["cost_usd"], row["saved_usd"], row["paid_usd"]) == (half_usd, half_usd, 0)
    assert "6 of 6 done, 4 right, USD 0.0000" in capsys.readouterr().err


def test_a_sweep_with_an_unknown_price_says_so_everywhere(tmp_path, sweep, capsys):
    sweep()
    assert "2 right, USD unknown" in capsys.readouterr().err
    shown = called("evaluate", "report", tmp_path / "out").stdout
    assert re.search(r"react/m .* unknown ", shown)


def test_a_failed_question_has_the_cost_of_its_tape(tmp_path, sweep, capsys):
    sweep.respond = lambda r: complete("7") if is_main(r) and "seen" in last_text(r) else delegate("look") if is_main(r) else finish("seen")  # fmt: skip
    reply, sweep.respond = sweep.respond, lambda r: Raw(401, {}) if "seen" in last_text(r) else reply(r)  # fmt: skip
    pool = pool_file(tmp_path, sweep.url, m=(100, 100))
    _, rows = sweep("--backends", pool, "--method", "orchestra-o1", count=1)
    assert (rows["1"]["status"], rows["1"]["paid_usd"]) == ("failed", 0.022)
    assert "0 right, USD 0.0220" in capsys.readouterr().err


@pytest.mark.parametrize("seed", range(12))
def test_a_sweep_ends_within_any_budget_and_writes_no_row_twice(seed, tmp_path, sweep):
    dice = random.Random(seed)
    pool = pool_file(tmp_path, sweep.url, m=(dice.choice([0, 1, 5]),) * 2)
    budget_usd = 10 ** dice.uniform(-3, -0.5)
    workers = dice.choice([1, 3, 8])
    how = "--backends", pool, "--budget", budget_usd, "--workers", workers
    for _ in range(2):
        code, _ = sweep(*how, count=9)
        assert code in (0, 1)
        rows = rows_of(tmp_path / "out")
        texts = {json.dumps(row) for row in rows}
        done = [row for row in rows if row["status"] == "done"]
        assert len(texts) == len(rows) and len(done) == len({row["id"] for row in done})
        assert (code == 0) == (len(done) == 9)
        by_run = {row["run"]: row["paid_usd"] for row in rows}
        assert 0 <= sum(by_run.values()) <= budget_usd * (1 + 1e-9)
