"""A fork with changed settings or --what-if: rounds before it are kept, and what is equal later is reused."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

import orchestra_min
from orchestra.kernel.folder import read_events, read_manifest
from orchestra.kernel.tool import Environment, tool
from orchestra.report.totals import summary, totals_in
from orchestra.variation import what_if
from orchestra.variation.fork import change_of, each_settings, run_fork
from orchestra.variation.reuse import answers_of
from tests.conftest import ConfigError, Price, TapeMiss, pool_at
from tests.program import called, line_of, start
from tests.scripted import act, complete, completion, delegate, finish, is_main, last_text
from tests.variations import named_again, recorded, rows, unchanged, varied

TOOL = "tests.test_variations:open_hours"
CITY = {"action": "delegate", "subtasks": [{"id": "mine", "instruction": "look at B"}]}


@pytest.mark.parametrize("seed", range(20))
def test_a_variation_takes_exactly_the_exchanges_whose_requests_are_equal(seed, tmp_path):
    run, server = recorded(seed, tmp_path / "run")
    unchanged(run, server, tmp_path / "again", threads=1 + seed % 8)
    named_again(seed, run, server, tmp_path / "same")
    server.close()
    varied(seed, run, tmp_path / "fork")


def respond(request):
    """Look at A, then at B, then answer with what was found."""
    text = last_text(request)
    if not is_main(request):
        place = "B" if "look at B" in text else "A"
        if "Observation:" not in text:
            return act("hours", "m", day="Monday")
        return finish(f"{request['model']} saw {place}" + " closed" * ("closed" in text))
    if "saw B" in text:
        return complete("B is closed" if "B closed" in text else "B is open")
    task = {"task_instruction": f"look at {'B' if 'saw A' in text else 'A'}", "tools": ["hours"]}
    return delegate(task)


@tool("hours", "txt")
def hours(env: Environment, day: str) -> str:
    """When it is open.

    day: a day
    """
    return env.local("tool:hours", {"day": day}, lambda: f"open at 9 on {day}")


TOOLS = {"hours": hours}


def replay(folder, tools=TOOLS, **how):
    change = change_of(Path(folder), given={"tools": tools})
    return orchestra_min.replay(folder, change=change, tools=tools, **how)


def resume(folder, *reuse):
    """A resume of a fork that names again what it uses."""
    folder = Path(folder)
    how = {"pool": read_manifest(folder).pool, "tools": TOOLS}
    sources = [answers_of(*reuse)]
    change = change_of(folder, given=how)
    return orchestra_min.resume(folder, change=change, sources=sources, **how)


@pytest.fixture
def first(run):
    """A run of three rounds with two models, small and large."""
    run(respond=respond, names=("small", "large"), tools=TOOLS)
    run.requests.clear()
    return run


@pytest.fixture
def fork(first, tmp_path):
    """`fork(from_round, name, folder=..., main=..., what_if=..., **options)` of the first run."""

    def fork(
        from_round=None, name="fork", folder=None, main="small", what_if=None, pool=None, **options
    ):
        pool = pool or pool_at(first.server.url, "small", "large")
        pool = replace(pool, main=main)
        how = {"pool": pool, "options": options, "tools": TOOLS}
        return run_fork(folder or first.folder, tmp_path / name, from_round, what_if, **how)

    return fork


def settings_of(run):
    return [settings for _, settings in each_settings(read_manifest(run.run))]


ROUND_1 = ["r1/main/a1", "r1/t1/s1", "r1/t1/s1/hours", "r1/t1/s2"]


def calls(folder):
    """The logical calls of a tape, by whether they were kept, reused or made."""
    found = {"kept": [], "reused": [], "made": []}
    for row in rows(folder):
        found["kept" if row.kept else "reused" if row.reused else "made"].append(row.call)
    return found


# ---- changed settings ----------------------------------------------------------------------------


def test_a_fork_keeps_the_rounds_before_it_under_their_own_settings(first, fork):
    forked = fork(2, main="large", steps=9)
    made = calls(forked.run)
    assert made["kept"] == ROUND_1
    kept = [row.request for row in rows(forked.run) if row.kept]
    assert kept == [row.request for row in rows(first.folder)][: len(ROUND_1)]
    assert first.requests[0]["model"] == "large" and len(first.requests) == 4
    assert [s.options.steps for s in settings_of(forked)] == [30, 9]
    assert replay(forked.run).answer == forked.answer == "B is open"
    assert made["reused"] == ["r2/t1/s1/hours"]  # the tool is free
    assert totals_in(forked.run).reused_calls == 3


def test_a_fork_of_a_fork_keeps_the_settings_of_each_part(fork):
    second = fork(2, "second", steps=9)
    third = fork(3, "third", second.run, steps=7, rounds=4)
    starts = each_settings(read_manifest(third.run))
    assert [(t, held.options.steps) for t, held in starts] == [(1, 30), (2, 9), (3, 7)]
    assert replay(third.run).answer == third.answer
    again = fork(2, "again", third.run, steps=30)
    assert [t for t, _ in each_settings(read_manifest(again.run))] == [1, 2]


def test_a_fork_can_change_the_method_and_get_a_budget(first, fork):
    pool = pool_at(first.server.url, "small", "large", price=Price(10, 10))
    forked = fork(2, pool=pool, method="react", budget_usd=0.5)
    assert forked.answer == "small saw A" and 0 < forked.paid_usd < 0.5
    assert [held.options.method for held in settings_of(forked)] == ["orchestra-o1", "react"]
    assert forked.cost_usd == pytest.approx(forked.paid_usd)  # the round before was free
    assert replay(forked.run).answer == forked.answer
    assert summary(forked.run).totals.cost_usd == pytest.approx(forked.cost_usd)


def test_a_fork_without_a_change_makes_the_later_rounds_anew(fork):
    forked = fork(2, timeout_s=60.0)
    made = calls(forked.run)
    assert (made["reused"], len(made["made"])) == ([], 5)
    more = read_manifest(forked.run).more
    assert (more["reuse"], more["earlier"]) == ([], [])


@pytest.mark.parametrize("same", [
    {"steps": 30}, {"rounds": 10}, {"parallel": 8}, {"method": "orchestra-o1"},
])  # fmt: skip
def test_a_fork_that_names_the_value_of_its_run_reuses_all_and_pays_nothing(same, run, tmp_path):
    run(respond=respond, names=("small", "large"), tools=TOOLS, rounds=10)
    asked = len(run.requests)
    forked = run_fork(run.folder, tmp_path / "fork", 2, options=same, tools=TOOLS)
    assert (calls(forked.run)["made"], len(run.requests)) == ([], asked)
    assert forked.answer == replay(forked.run).answer == "B is open"


def test_the_command_reuses_all_for_a_model_that_the_run_had(endpoint, tmp_path):
    server = endpoint(respond)
    named = "--model", "small", "--tools", TOOL
    called("--question", "?", *named, "--out", tmp_path / "run", at=server.url)
    asked = len(server.requests)
    flags = "--from-round", 1, *named, "--out", tmp_path / "fork"
    done = called("resume", tmp_path / "run", *flags, at=server.url)
    assert (done.stdout, len(server.requests)) == ("B is open\n", asked)


def test_a_round_that_is_kept_is_never_paid_again(first, fork):
    tape = first.folder / "tape.jsonl"
    tape.write_text(tape.read_text().replace("look at A", "look at C", 1))
    with pytest.raises(TapeMiss, match="r1/main/a1|r1/t1/s1"):
        fork(2, steps=9)
    assert first.requests == []


def test_kept_rounds_have_their_own_tools(first, tmp_path):
    @tool("look", "txt")
    def look(env: Environment, name: str) -> str:
        """Look.

        name: a name
        """
        return name

    def resolve(settings):
        is_earlier = settings.options.steps == 30
        return {"tools": TOOLS if is_earlier else {**TOOLS, "look": look}}

    out, more = tmp_path / "fork", {"tools": {**TOOLS, "look": look}}
    forked = run_fork(first.folder, out, 2, options={"steps": 9}, resolve=resolve, **more)
    assert forked.answer == "B is open"
    seen = [json.dumps(row.request) for row in rows(out) if "/main/" in row.call]
    assert ["look(name" in request for request in seen] == [False, True, True]
    change = change_of(out, resolve)
    assert orchestra_min.replay(out, change=change, **more).answer == "B is open"


# ---- --what-if -----------------------------------------------------------------------------------


def test_another_decision_is_carried_out_and_the_run_goes_on_from_there(fork):
    forked = fork(what_if={"r1": CITY})
    (event,) = [e for e in read_events(forked.run) if e["at"] == [1, 0, 1]]
    assert event["decision"]["subtasks"][0]["id"] == "mine" and event["reply"] == ""
    assert calls(forked.run)["kept"] == [] and "r1/main/a1" not in sum(
        calls(forked.run).values(), []
    )
    assert forked.answer == "B is open" and replay(forked.run, parallel=1).answer == forked.answer
    assert read_manifest(forked.run).more["what_if"] == {"r1": CITY}


def test_what_if_the_tool_had_failed(first, fork):
    seen = {"observation": "it is closed", "failed": False}
    forked = fork(what_if={"r2/t1/s1": seen})
    assert forked.answer == "B is closed" and len(first.requests) == 2  # one step, one decision
    assert calls(forked.run)["kept"] == ROUND_1
    assert calls(forked.run)["reused"] == ["r2/main/a1", "r2/t1/s1"]
    assert replay(forked.run).answer == "B is closed"
    failed = fork(what_if={"r2/t1/s1": {**seen, "failed": True}}, name="failed")
    assert [e["failed"] for e in failed.events if e["event"] == "step"][2:] == [True, False]


def test_what_if_a_sub_task_had_another_result(first, fork):
    forked = fork(what_if={"r2/t1": {"status": "done", "answer": "large saw B closed"}})
    assert (forked.answer, len(first.requests)) == ("B is closed", 1)
    (result,) = [e for e in forked.events if e["event"] == "result" and e["at"][0] == 2]
    assert (result["answer"], result["cost_usd"]) == ("large saw B closed", 0.0)


def test_a_fork_keeps_what_an_earlier_one_replaced(fork):
    second = fork(name="second", what_if={"r1": CITY})
    third = fork(2, "third", second.run, steps=9)
    assert list(read_manifest(third.run).more["what_if"]) == ["r1"]
    again = fork(1, "fourth", second.run, steps=9)
    assert read_manifest(again.run).more["what_if"] == {}


def test_all_that_a_method_has_beyond_decide_is_that_of_the_inner_one(first):
    class Own:
        rounds = 7
        own_word = "mine"

    method = what_if.UserDecides(Own(), {})
    assert (method.rounds, method.own_word) == (7, "mine")


@pytest.mark.parametrize("what_if, from_round, problem", [
    ({"r9": CITY}, None, "no such place; it has r1, r1/t1, r1/t1/s1, r2"),
    ({"r2/t7": {"status": "done"}}, None, "no such place"),
    ({"r2/t1/s2": "x"}, None, "no such place"),  # it finishes there
    ({"t1": CITY}, None, "write r2, r1/t2 or r1/t2/s3"),
    ({"r1": CITY}, 2, "round 1 is kept; use --from-round 1"),
    ({"r1": {"action": "wait"}}, None, "--what-if r1: action: Input should be 'complete' or 'delegate'; a decision is {\"action\": "),
    ({"r1/t1": {"status": "good"}}, None, "--what-if r1/t1: status: Input should be 'done', 'partial', 'blocked' or 'failed'; a result is {"),
    ({"r1": {"action": "delegate"}}, None, "--what-if r1: subtasks: "),
    ({"r1": {"action": "delegate", "subtasks": [{"id": "m"}]}}, None, "--what-if r1: subtasks.0.instruction: "),
    ({"r1": [1]}, None, "--what-if r1: the value: "),
    ({"r1/t1": {"status": "done", "answr": "4"}}, None, "--what-if r1/t1: answr: "),
    ({"r1/t1/s1": {"observation": "x", "failed": "yes"}}, None, "--what-if r1/t1/s1: failed: "),
    ({"r1": {**CITY, "subtasks": [{"id": "m", "instruction": "i", "agent": "gone.py:run"}]}}, None,
     "--what-if r1, m: 'gone.py:run' is not a sub-agent of this run; one of react"),
    ({"r1": {**CITY, "subtasks": [{"id": "m", "instruction": "i", "backend": "lrge"}]}}, None,
     "--what-if r1, m: 'lrge' is not a backend of this run; one of small, large"),
    ({"r2": {**CITY, "subtasks": [{"id": "m", "instruction": "i", "needs": ["gone"]}]}}, None, "--what-if r2: "),
])  # fmt: skip
def test_a_replacement_that_does_not_fit_costs_nothing(
    what_if, from_round, problem, first, fork, tmp_path
):
    with pytest.raises(ConfigError) as error:
        fork(from_round, what_if=what_if)
    assert problem in str(error.value) and first.requests == []
    assert not (tmp_path / "fork").exists()


# ---- the command ---------------------------------------------------------------------------------


def open_hours(day: str) -> str:
    """When it is open.

    day: a day
    """
    return f"open at 9 on {day}"


open_hours.__name__ = "hours"


@pytest.fixture
def by_command(endpoint, tmp_path):
    """The first run, made by the command, and its server."""
    server = endpoint(respond)
    flags = "--model", "small", "--tools", TOOL, "--out", tmp_path / "run"
    called("--question", "?", *flags, at=server.url)
    server.requests.clear()
    return server


def test_the_command_changes_flags_and_decisions(by_command, tmp_path):
    file = tmp_path / "decision.json"
    file.write_text(json.dumps({"action": "complete", "answer": "mine"}))
    resumed = "resume", tmp_path / "run", "--tools", TOOL, "--out"
    done = called(*resumed, tmp_path / "a", "--what-if", f"r3=@{file}", at=by_command.url)
    assert (done.stdout, by_command.requests) == ("mine\n", [])
    closed = "--what-if", "r2/t1/s1=it is closed"
    assert called(*resumed, tmp_path / "b", *closed, at=by_command.url).returncode == 0
    assert called("--replay", tmp_path / "b", "--tools", TOOL).stdout == "B is closed\n"
    changed = "--from-round", 2, "--steps", 9
    assert called(*resumed, tmp_path / "c", *changed, at=by_command.url).returncode == 0
    assert read_manifest(tmp_path / "c").options.steps == 9


@pytest.mark.parametrize("flags, problem", [
    ("--question ? --model m --what-if r1=x", "--what-if"),
    ("resume run --what-if r1", "--what-if r1: needs PLACE=VALUE"),
    ("resume run --what-if r1={", "--what-if r1: the value is not JSON; a decision is {"),
    ("resume run --what-if r1=@gone", "--what-if r1: cannot be read"),
    ("resume run --steps 3", "--steps"),
    ("resume run --from-round 1 --prompts big", "--prompts"),
    ("replay run --from-round 1", "--from-round"),
])  # fmt: skip
@pytest.mark.usefixtures("in_an_empty_folder")
def test_a_wrong_variation_is_one_line(flags, problem, run):
    run(complete("42"))
    assert problem in line_of(called(*flags.split(), at=run.server.url))


# ---- a kill in the middle ------------------------------------------------------------------------


def test_a_variation_that_is_killed_goes_on_and_pays_nothing_twice(by_command, endpoint, tmp_path):
    def killing(request):
        if "saw B" in last_text(request):
            os.kill(child.pid, signal.SIGKILL)
        return respond(request)

    other = endpoint(killing)
    flags = "--what-if", "r2/t1/s1=it is closed", "--tools", TOOL, "--out", tmp_path / "fork"
    child = start(tmp_path, "resume", tmp_path / "run", *flags, at=other.url)
    child.communicate()
    asked = len(other.requests)
    again = "resume", tmp_path / "fork", "--tools", TOOL
    assert "--reuse" in line_of(called(*again, at=by_command.url))
    done = called(*again, "--reuse", tmp_path / "run", at=by_command.url)
    assert (done.stdout, asked, len(by_command.requests)) == ("B is closed\n", 2, 1)
    made = [(row.call, row.key) for row in rows(tmp_path / "fork")]
    assert len(made) == len(set(made))
    assert called("--replay", tmp_path / "fork", "--tools", TOOL).stdout == "B is closed\n"


# ---- what an outside tester found ----------------------------------------------------------------


def test_a_fork_from_the_last_chance_of_a_run_makes_it_anew(run, tmp_path):
    def priced(pool):
        usd = {"small": Price(1, 1), "large": Price(1000, 1000)}
        backends = (replace(b, price_usd_per_mtok=usd[b.name]) for b in pool.backends)
        return replace(pool, backends=tuple(backends))

    def reply(request):
        usage = {"prompt_tokens": 2000, "completion_tokens": 200}
        if not is_main(request):
            return completion(finish("seen"), usage=usage)
        task = f"look {last_text(request).count('=> seen')}"
        return delegate({"task_instruction": task, "model": "large", "context": "", "tools": []})

    how = {"names": ("small", "large"), "change": priced, "budget_usd": 3.0, "k_max": 8}
    run(respond=reply, **how)
    assert [row.call for row in rows(run.folder)][-3:] == [f"r3/main/a{n}" for n in (1, 2, 3)]
    pool = priced(pool_at(run.server.url, "small", "large"))
    for name, change in (("same", {}), ("richer", {"budget_usd": 9.0})):
        forked = run_fork(run.folder, tmp_path / name, 3, pool=pool, options=change)
        assert replay(forked.run, tools={}).answer == forked.answer == "seen"
        works = "r3/t1/s1" in calls(forked.run)["made"]
        assert works == (name == "richer")  # what nobody could pay for is done now


def test_a_fork_with_more_rounds_has_no_last_chance_where_its_run_had_one(run, tmp_path):
    run(respond=respond, tools=TOOLS, rounds=1)
    assert "This is the last chance" in run.mains[-1]
    forked = run_fork(run.folder, tmp_path / "fork", 2, options={"rounds": 3}, tools=TOOLS)
    assert "Round 2 of 3" in run.mains[-2]
    assert (forked.answer, forked.state) == ("B is open", "answered")


@pytest.mark.parametrize("from_round", [0, 1, 50])
def test_earlier_settings_reach_no_endpoint_that_nobody_named(from_round, first, endpoint):
    theirs = endpoint(respond)
    row = json.loads((first.folder / "run.json").read_text())
    pool = json.loads(json.dumps(row["pool"]).replace(first.server.url, theirs.url))
    earlier = {"before": 50, "pool": pool, "options": row["options"], "code": False}
    row |= {"earlier": [earlier], "from_round": from_round}
    (first.folder / "run.json").write_text(json.dumps(row))
    (first.folder / "tape.jsonl").write_text("")
    (first.folder / "trajectory.jsonl").write_text("")
    with pytest.raises((ConfigError, TapeMiss)):
        resume(first.folder)
    assert theirs.requests == first.requests == []


def test_a_replaced_decision_of_a_folder_from_outside_loads_no_python(first, fork, tmp_path):
    fork(what_if={"r1": CITY})
    evil = tmp_path / "fork" / "evil.py"
    evil.write_text("from pathlib import Path\nPath(__file__).with_name('loaded').touch()")
    row = json.loads((tmp_path / "fork" / "run.json").read_text())
    row["what_if"]["r1"]["subtasks"][0]["agent"] = f"{evil}:run"
    (tmp_path / "fork" / "run.json").write_text(json.dumps(row))
    for again in (replay, resume):
        with pytest.raises(ConfigError, match="is not a sub-agent of this run"):
            again(tmp_path / "fork")
    assert not evil.with_name("loaded").exists()


@pytest.mark.parametrize(
    "value", ["\udcff", '{"status": "done", "answer": "\\ud800"}', "[" * 10**5]
)
def test_a_replacement_that_no_file_can_hold_is_one_line(value):
    with pytest.raises(ConfigError, match="--what-if r1/t1: "):
        what_if.given([f"r1/t1={value}"])


def test_a_run_whose_name_is_not_utf_8_is_reused_and_forked(first, fork, tmp_path):
    odd = first.folder.rename(tmp_path / "\udcffrun")
    forked = fork(folder=odd, what_if={"r3": {"action": "complete", "answer": "x"}})
    assert replay(forked.run).answer == resume(forked.run, odd).answer == "x"


def test_a_fork_has_the_date_of_its_own_calls(first, fork):
    tape = first.folder / "tape.jsonl"
    old = [replace(row, began_s=1000.0, took_s=1.0) for row in rows(first.folder)]
    tape.write_text("".join(row.line() + "\n" for row in old))
    forked = fork(2, what_if={"r2": {"action": "complete", "answer": "x"}})
    year_s = 365 * 86400
    assert summary(first.folder).date_s == 1000.0
    assert summary(forked.run).date_s > 50 * year_s


def test_a_fork_from_a_round_that_the_run_did_not_have_is_refused(first, fork, tmp_path):
    for from_round in (0, 4):
        with pytest.raises(ConfigError, match=f"--from-round {from_round}: the run in .* 1 to 3"):
            fork(from_round)
    (tmp_path / "fork").mkdir()
    (tmp_path / "fork/mine").touch()
    with pytest.raises(ConfigError, match="not an empty folder"):
        fork(2)
    assert (tmp_path / "fork/mine").exists() and first.requests == []
