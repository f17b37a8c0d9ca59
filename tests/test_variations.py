"""A fork with changed flags or --what-if: rounds before it are kept, and what is equal later is reused."""

import json
import os
import shlex
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from orchestra.explain import panels
from orchestra.runtime.retrace import decisions
from orchestra.runtime.run_folder import read_manifest
from orchestra.runtime.summary import summary
from orchestra.runtime.trajectory import read
from tests.conftest import ConfigError, Price, TapeMiss, pool_at
from tests.program import called, line_of, replay, resume, start
from tests.scripted import Raw, act, complete, completion, delegate, finish, is_main, last_text
from tests.variations import named_again, recorded, rows, unchanged, varied

TOOL = "tests.test_variations:hours"
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


def hours(day: str) -> str:
    """When it is open.

    day: a day
    """
    return f"open at 9 on {day}"


@pytest.fixture
def first(run):
    """A run of three rounds with two models, small and large."""
    run(respond=respond, names=("small", "large"), tools=[hours])
    run.requests.clear()
    return run


def manifest_of(run):
    return read_manifest(Path(run.run))


ROUND_1 = ["r1/main/a1", "r1/t1/s1", "r1/t1/s1/hours", "r1/t1/s2"]


def calls(folder):
    """The logical calls of a tape, by whether they were kept, reused or made."""
    found = {"kept": [], "reused": [], "made": []}
    for row in rows(folder):
        mark = "kept" if "kept" in row else "reused" if "reused" in row else "made"
        found[mark].append(row["call"])
    return found


# ---- changed flags -------------------------------------------------------------------------------


def test_a_fork_keeps_the_rounds_before_it_under_their_own_settings(first, tmp_path):
    fork = resume(first.folder, from_round=2, out=tmp_path / "fork", model="large", steps=9)
    made = calls(fork.run)
    assert made["kept"] == ROUND_1
    kept = [row["request"] for row in rows(fork.run) if "kept" in row]
    assert kept == [row["request"] for row in rows(first.folder)][: len(ROUND_1)]
    assert first.requests[0]["model"] == "large" and len(first.requests) == 4
    assert manifest_of(fork).in_round(1).options.steps == 30
    assert replay(fork.run).answer == fork.answer == "B is open"
    assert fork.reused_calls == 3 and made["reused"] == ["r2/t1/s1/hours"]  # the tool is free


def test_a_fork_of_a_fork_keeps_the_settings_of_each_part(first, tmp_path):
    second = resume(first.folder, from_round=2, out=tmp_path / "second", steps=9)
    third = resume(second.run, from_round=3, out=tmp_path / "third", steps=7, rounds=4)
    held = manifest_of(third)
    assert [held.in_round(t).options.steps for t in (1, 2, 3, 4)] == [30, 9, 7, 7]
    assert [e.before for e in held.earlier] == [2, 3] and replay(third.run).answer == third.answer
    again = resume(third.run, from_round=2, out=tmp_path / "again", steps=30)
    assert [e.before for e in manifest_of(again).earlier] == [2]


def test_a_fork_can_change_the_method_and_get_a_budget(first, tmp_path):
    pool = pool_at(first.server.url, "small", "large", price=Price(10, 10))
    how = {"pool": pool, "method": "react", "budget_usd": 0.5}
    fork = resume(first.folder, from_round=2, out=tmp_path / "fork", **how)
    assert fork.answer == "small saw A" and 0 < fork.paid_usd < 0.5
    assert [m.options.method for m in manifest_of(fork).all_settings] == ["orchestra-o1", "react"]
    assert fork.cost_usd == pytest.approx(fork.paid_usd)  # the round before was free
    assert replay(fork.run).answer == fork.answer
    assert summary(Path(fork.run)).totals.cost_usd == pytest.approx(fork.cost_usd)
    explained = {(panel.place, panel.equation) for panel in panels(Path(fork.run))}
    assert {("r1/t1", "5"), ("r2", "21")} <= explained and ("r1", "21") not in explained


def test_a_fork_without_a_change_makes_the_later_rounds_anew(first, tmp_path):
    fork = resume(first.folder, from_round=2, out=tmp_path / "fork", timeout_s=60.0)
    made = calls(fork.run)
    assert (made["reused"], len(made["made"])) == ([], 5)
    assert manifest_of(fork).reuse == () == manifest_of(fork).earlier


@pytest.mark.parametrize("same", [
    {"model": "small"}, {"steps": 30}, {"rounds": 10}, {"parallel": 8}, {"method": "orchestra-o1"},
])  # fmt: skip
def test_a_fork_that_names_the_value_of_its_run_reuses_all_and_pays_nothing(same, run, tmp_path):
    run(respond=respond, names=("small", "large"), tools=[hours], rounds=10)
    asked = len(run.requests)
    fork = resume(run.folder, from_round=2, out=tmp_path / "fork", **same)
    assert (calls(fork.run)["made"], len(run.requests)) == ([], asked)
    assert fork.answer == replay(fork.run).answer == "B is open"


def test_the_command_reuses_all_for_a_model_that_the_run_had(endpoint, tmp_path):
    server = endpoint(respond)
    named = "--model", "small", "--tools", TOOL
    called("--question", "?", *named, "--out", tmp_path / "run", at=server.url)
    asked = len(server.requests)
    flags = "--from-round", 1, *named, "--out", tmp_path / "fork"
    done = called("--resume", tmp_path / "run", *flags, at=server.url)
    assert (done.stdout, len(server.requests)) == ("B is open\n", asked)


def test_a_round_that_is_kept_is_never_paid_again(first, tmp_path, monkeypatch):
    tape = first.folder / "tape.jsonl"
    tape.write_text(tape.read_text().replace("look at A", "look at C", 1))
    with pytest.raises(TapeMiss, match="r1/main/a1|r1/t1/s1"):
        resume(first.folder, from_round=2, out=tmp_path / "fork", steps=9)
    assert first.requests == []


def test_tools_of_kept_rounds_must_be_named_again(first, tmp_path):
    with pytest.raises(ConfigError, match="needs your permission again: add --tools"):
        resume(first.folder, from_round=2, out=tmp_path / "fork", steps=9, tools=())
    fork = resume(first.folder, from_round=2, out=tmp_path / "fork", tools=(hours, look))
    assert replay(fork.run).answer == "B is open"


def look(name: str) -> str:
    """Look.

    name: a name
    """
    return name


# ---- --what-if -----------------------------------------------------------------------------------


def test_another_decision_is_carried_out_and_the_run_goes_on_from_there(first, tmp_path):
    fork = resume(first.folder, out=tmp_path / "fork", what_if={"r1": CITY})
    (event,) = [e for e in read(Path(fork.run) / "trajectory.jsonl") if e["at"] == [1, 0, 1]]
    assert event["what_if"] and event["decision"]["subtasks"][0]["id"] == "mine"
    assert calls(fork.run)["kept"] == [] and "r1/main/a1" not in sum(calls(fork.run).values(), [])
    assert fork.answer == "B is open" and replay(fork.run, parallel=1).answer == fork.answer
    held = manifest_of(fork)
    decided = decisions(Path(fork.run), held, held.task(Path(fork.run)), ("hours",))
    assert [d.place.round for d in decided] == [2]  # no example for training is made of r1


def test_what_if_the_tool_had_failed(first, tmp_path):
    seen = {"observation": "it is closed", "failed": False}
    fork = resume(first.folder, out=tmp_path / "fork", what_if={"r2/t1/s1": seen})
    assert fork.answer == "B is closed" and len(first.requests) == 2  # one step, one decision
    assert calls(fork.run)["kept"] == ROUND_1
    assert calls(fork.run)["reused"] == ["r2/main/a1", "r2/t1/s1"]
    assert replay(fork.run).answer == "B is closed"


def test_what_if_a_sub_task_had_another_result(first, tmp_path):
    z = {"status": "done", "answer": "large saw B closed"}
    fork = resume(first.folder, out=tmp_path / "fork", what_if={"r2/t1": z})
    assert (fork.answer, len(first.requests)) == ("B is closed", 1)
    (result,) = [e for e in fork.events if e["event"] == "result" and e["at"][0] == 2]
    assert result["what_if"] and result["answer"] == "large saw B closed"


def test_a_fork_keeps_what_an_earlier_one_replaced(first, tmp_path):
    second = resume(first.folder, out=tmp_path / "second", what_if={"r1": CITY})
    third = resume(second.run, from_round=2, out=tmp_path / "third", steps=9)
    assert list(manifest_of(third).what_if) == ["r1"]
    again = resume(second.run, from_round=1, out=tmp_path / "fourth", steps=9)
    assert manifest_of(again).what_if == {}


@pytest.mark.parametrize("what_if, from_round, problem", [
    ({"r9": CITY}, None, "no such place; it has r1, r1/t1, r1/t1/s1, r2"),
    ({"r2/t7": {"status": "done"}}, None, "no such place; did you mean r2/t1"),
    ({"r2/t1/s2": "x"}, None, "no such place"),  # it finishes there
    ({"t1": CITY}, None, "write r2, r1/t2 or r1/t2/s3"),
    ({"r1": CITY}, 2, "round 1 is kept; use --from-round 1"),
    ({"r1": {"action": "wait"}}, None, "--what-if r1: action is not 'complete' or 'delegate'; a decision is {\"action\": "),
    ({"r1/t1": {"status": "good"}}, None, "--what-if r1/t1: status is not 'done', 'partial', 'blocked' or 'failed'; a result is {"),
    ({"r1": {"action": "delegate"}}, None, "--what-if r1: subtasks is missing; a decision is {"),
    ({"r1": {"action": "delegate", "subtasks": [{"id": "m"}]}}, None, "--what-if r1: subtasks.0.instruction is missing; "),
    ({"r1": [1]}, None, "--what-if r1: the value does not fit; a decision is {"),
    ({"r1/t1": {"status": "done", "answr": "4"}}, None, "--what-if r1/t1: answr is not one of its fields; "),
    ({"r1/t1/s1": {"observation": "x", "failed": "yes"}}, None, "--what-if r1/t1/s1: failed "),
    ({"r1": {**CITY, "subtasks": [{"id": "m", "instruction": "i", "agent": "gone.py:run"}]}}, None,
     "--what-if r1, m: 'gone.py:run' is not a sub-agent of this run; one of react, single"),
    ({"r1": {**CITY, "subtasks": [{"id": "m", "instruction": "i", "backend": "lrge"}]}}, None,
     "--what-if r1, m: 'lrge' is not a backend of this run; did you mean large"),
    ({"r2": {**CITY, "subtasks": [{"id": "m", "instruction": "i", "needs": ["gone"]}]}}, None, "--what-if r2: "),
])  # fmt: skip
def test_a_replacement_that_does_not_fit_costs_nothing(
    what_if, from_round, problem, first, tmp_path
):
    with pytest.raises(ConfigError) as error:
        resume(first.folder, from_round=from_round, out=tmp_path / "fork", what_if=what_if)
    assert problem in str(error.value) and first.requests == []
    assert not (tmp_path / "fork").exists()


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_changes_flags_and_decisions(first, tmp_path):
    file = tmp_path / "decision.json"
    file.write_text(json.dumps({"action": "complete", "answer": "mine"}))
    toml = f'[[backend]]\nname = "small"\nbase_url = "{first.server.url}"\n'
    toml += f'[[backend]]\nname = "large"\nbase_url = "{first.server.url}"\n'
    (tmp_path / "pool.toml").write_text(toml)
    again = "--backends", tmp_path / "pool.toml", "--tools", TOOL
    resumed = "--resume", first.folder, *again, "--out"
    done = called(*resumed, tmp_path / "a", "--what-if", f"r3=@{file}")
    assert (done.stdout, first.requests) == ("mine\n", [])
    assert called(*resumed, tmp_path / "b", "--what-if", "r2/t1/s1=it is closed").returncode == 0
    assert called("--replay", tmp_path / "b", "--tools", TOOL).stdout == "B is closed\n"
    done = called(*resumed, tmp_path / "c", "--from-round", 2, "--model", "large", "--steps", 9)
    assert (done.returncode, read_manifest(tmp_path / "c").pool.main) == (0, "large")


@pytest.mark.parametrize("flags, problem", [
    ("? --model m --what-if r1=x", "--what-if: needs --resume RUN"),
    ("--resume run --what-if r1", "--what-if r1: needs PLACE=VALUE"),
    ("--resume run --what-if r1={", "--what-if r1: the value is not JSON (character 2); a decision is {"),
    ("--resume run --what-if r1=@gone", "--what-if r1=@gone: cannot be read"),
    ("--resume run --model m", "--model: is stored in run"),
    ("--resume run --steps 3", "--steps: is stored in run"),
    ("--resume run --from-round 1 --dom low", "--dom: belongs to --method mas-orchestra"),
    ("--resume run --from-round 1 --prompts big", "--prompts: should be 'full' or 'small'"),
    ("--resume run --from-round 1 --model m --replay run", "give one of them"),
])  # fmt: skip
@pytest.mark.usefixtures("in_an_empty_folder")
def test_a_wrong_variation_is_one_line(flags, problem, run):
    run(complete("42"))
    assert problem in line_of(called(*flags.split(), at=run.server.url))


# ---- a kill in the middle ------------------------------------------------------------------------


def test_a_variation_that_is_killed_goes_on_and_pays_nothing_twice(endpoint, tmp_path):
    server = endpoint(respond)
    named = "--model", "small", "--tools", TOOL
    called("--question", "?", *named, "--out", tmp_path / "run", at=server.url)
    server.requests.clear()

    def killing(request):
        if "saw B" in last_text(request):
            os.kill(child.pid, signal.SIGKILL)
        return respond(request)

    other = endpoint(killing)
    changed = "--what-if", "r2/t1/s1=it is closed"
    flags = *changed, *named[2:], "--out", tmp_path / "fork"
    child = start(tmp_path, "--resume", tmp_path / "run", *flags, at=other.url)
    child.communicate()
    asked = len(other.requests)
    again = "--resume", tmp_path / "fork", *named[2:]
    missing = line_of(called(*again, at=server.url))
    assert f"needs your permission again: add --reuse {tmp_path / 'run'}" in missing
    done = called(*again, "--reuse", tmp_path / "run", at=server.url)
    assert (done.stdout, asked, len(server.requests)) == ("B is closed\n", 2, 1)
    made = [(row["call"], json.dumps(row["request"])) for row in rows(tmp_path / "fork")]
    assert len(made) == len(set(made))
    assert called("--replay", tmp_path / "fork", *named[2:]).stdout == "B is closed\n"


def test_the_line_that_goes_on_with_a_variation_names_the_run_that_it_reuses(endpoint, tmp_path):
    up = endpoint(respond)
    down = endpoint(lambda request: Raw(401, {}) if is_main(request) else respond(request))
    named = "--model", "small", "--tools", TOOL
    called("--question", "?", *named, "--out", tmp_path / "run", at=up.url)
    flags = "--what-if", "r2/t1/s1=it is closed", *named[2:], "--out", tmp_path / "fork"
    failed = called("--resume", tmp_path / "run", *flags, at=down.url)
    _, _, command = line_of(failed, code=4).partition("continue with: ")
    words = shlex.split(command)
    assert words[words.index("--reuse") + 1] == str(tmp_path / "run")
    assert called(*words[2:], at=up.url).stdout == "B is closed\n"


# ---- what an outside tester found ----------------------------------------------------------------


def test_a_fork_from_the_last_chance_of_a_run_makes_it_anew(run, tmp_path):
    def priced(pool):
        usd = {"small": Price(1, 1), "large": Price(1000, 1000)}
        rows = (replace(b, price_usd_per_mtok=usd[b.name]) for b in pool.backends)
        return pool.with_(backends=tuple(rows))

    def reply(request):
        usage = {"prompt_tokens": 2000, "completion_tokens": 200}
        if not is_main(request):
            return completion(finish("seen"), usage=usage)
        task = f"look {last_text(request).count('=> seen')}"
        return delegate({"task_instruction": task, "model": "large", "context": "", "tools": []})

    how = {"names": ("small", "large"), "change": priced, "budget_usd": 3.0}
    run(respond=reply, **how)
    assert [row["call"] for row in rows(run.folder)][-3:] == [f"r3/main/a{n}" for n in (1, 2, 3)]
    pool = priced(pool_at(run.server.url, "small", "large"))
    for name, change in (("same", {}), ("richer", {"budget_usd": 9.0})):
        fork = resume(run.folder, from_round=3, out=tmp_path / name, pool=pool, **change)
        assert replay(fork.run).answer == fork.answer == "seen"
        works = "r3/t1/s1" in calls(fork.run)["made"]
        assert works == (name == "richer")  # what nobody could pay for is done now


def test_a_fork_with_more_rounds_has_no_last_chance_where_its_run_had_one(run, tmp_path):
    run(respond=respond, tools=[hours], rounds=1)
    assert "This is the last chance" in run.mains[-1]
    fork = resume(run.folder, from_round=2, out=tmp_path / "fork", rounds=3)
    assert "Round 2 of 3" in run.mains[-2] and (fork.answer, fork.state) == (
        "B is open",
        "answered",
    )


@pytest.mark.parametrize("from_round", [0, 1, 50])
def test_earlier_settings_reach_no_endpoint_that_nobody_named(from_round, first, endpoint):
    theirs = endpoint(respond)
    row = json.loads((first.folder / "run.json").read_text())
    pool = json.loads(json.dumps(row["pool"]).replace(first.server.url, theirs.url))
    earlier = {"before": 50, "pool": pool, "options": row["options"]}
    row |= {"earlier": [earlier], "from_round": from_round}
    (first.folder / "run.json").write_text(json.dumps(row))
    (first.folder / "tape.jsonl").write_text("")
    (first.folder / "trajectory.jsonl").write_text("")
    with pytest.raises((ConfigError, TapeMiss)):
        resume(first.folder)
    assert theirs.requests == first.requests == []


def test_a_replaced_decision_of_a_folder_from_outside_loads_no_python(first, tmp_path):
    fork = resume(first.folder, out=tmp_path / "fork", what_if={"r1": CITY})
    evil = tmp_path / "fork" / "evil.py"
    evil.write_text("from pathlib import Path\nPath(__file__).with_name('loaded').touch()")
    row = json.loads((tmp_path / "fork" / "run.json").read_text())
    row["what_if"]["r1"]["subtasks"][0]["agent"] = f"{evil}:run"
    (tmp_path / "fork" / "run.json").write_text(json.dumps(row))
    for again, named in ((replay, {}), (resume, {"reuse": [first.folder]})):
        with pytest.raises(ConfigError, match="is not a sub-agent of this run"):
            again(fork.run, **named)
    assert not evil.with_name("loaded").exists()


@pytest.mark.parametrize(
    "value", ["\udcff", '{"status": "done", "answer": "\\ud800"}', "[" * 10**5]
)
def test_a_replacement_that_no_file_can_hold_is_one_line(value, first, tmp_path):
    flags = "--tools", TOOL, "--out", tmp_path / "fork", "--what-if", f"r1/t1={value}"
    assert "--what-if r1/t1: " in line_of(called("--resume", first.folder, *flags))


def test_a_run_whose_name_is_not_utf_8_is_reused_and_forked(first, tmp_path):
    odd = first.folder.rename(tmp_path / "\udcffrun")
    fork = resume(odd, out=tmp_path / "fork", what_if={"r3": {"action": "complete", "answer": "x"}})
    assert replay(fork.run).answer == resume(fork.run, reuse=[odd]).answer == "x"
    assert called("report", tmp_path).returncode == 0


def test_a_fork_has_the_date_of_its_own_calls(first, tmp_path):
    tape = first.folder / "tape.jsonl"
    old = [{**row, "timing": {"began_s": 1000.0, "took_s": 1.0}} for row in rows(first.folder)]
    tape.write_text("".join(json.dumps(row) + "\n" for row in old))
    fork = resume(
        first.folder,
        from_round=2,
        out=tmp_path / "fork",
        what_if={"r2": {"action": "complete", "answer": "x"}},
    )
    year_s = 365 * 86400
    assert summary(first.folder).date_s == 1000.0
    assert summary(Path(fork.run)).date_s > 50 * year_s
