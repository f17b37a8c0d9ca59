"""--compare and the flags of single methods, as a user types them."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from orchestra import comparison
from orchestra.comparison import critical_path_s, table
from orchestra.run_folder import Options, read_manifest
from orchestra.trajectory import LAST, Trajectory
from orchestra.vocabulary import ConfigError, EndpointError, Price
from orchestra_min import compare, replay, resume
from tests.conftest import ROOT, pool_at
from tests.scripted import Raw, act, complete, finish, last_text
from tests.test_mas_xml import agent
from tests.test_toolorchestra import ANSWER, BACKENDS, WORKER, pool_file

METHODS = ("orchestra-o1", "aorchestra", "toolorchestra", "mas-orchestra", "react")


def respond(request):
    """Each method's own format, told apart by its system prompt."""
    system = request["messages"][0]
    if system["role"] == "user":
        return "Answer: 42"
    text = system["content"]
    if "using tools" in text:
        return ANSWER
    if "You design a system of agents" in text:
        return agent()
    if "You are the main agent" in text:
        return complete("42")
    seen = "Observation:" in last_text(request)
    return finish("42") if seen else act("ExecuteCodeAction", code="print(42)")


def command(*arguments, url=""):
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
    env |= {"OPENAI_BASE_URL": url} if url else {}
    call = [sys.executable, "orchestra_min.py", *map(str, arguments)]
    return subprocess.run(call, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_every_method_answers_in_its_own_folder_and_replays(endpoint, tmp_path):
    server = endpoint(respond)
    results = compare(METHODS, "What?", pool=pool_at(server.url), out=tmp_path / "all")
    assert {m: r.answer for m, r in results.items()} == dict.fromkeys(METHODS, "42")
    for method in METHODS:
        assert replay(tmp_path / "all" / method).answer == "42"


def test_side_by_side_is_faster_than_in_turn(endpoint, tmp_path):
    server = endpoint(respond, delay_s=0.2)
    sides = {"side_by_side": True, "out": tmp_path / "all"}
    results = compare(METHODS, "What?", pool=pool_at(server.url), **sides)
    assert sum(r.latency_s for r in results.values()) > 1.2
    assert max(r.latency_s for r in results.values()) < 1.0


def test_the_command_prints_one_table(endpoint, tmp_path):
    server = endpoint(respond)
    done = command("--question", "What?", "--model", "m", "--compare", "all",
                   "--out", tmp_path / "all", url=server.url)  # fmt: skip
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    columns = "method answer rounds calls tokens cost latency / critical path"
    assert head.split() == columns.split()
    assert [row.split()[:2] for row in rows] == [[m, "42"] for m in METHODS]


def test_the_command_prints_json(endpoint, tmp_path):
    server = endpoint(respond)
    done = command("--question", "What?", "--model", "m", "--compare", "react,mas-orchestra",
                   "--json", "--out", tmp_path / "all", url=server.url)  # fmt: skip
    rows = json.loads(done.stdout)
    calls = {r["method"]: r["calls"] for r in rows}
    assert calls == {"react": 2, "mas-orchestra": 2} and {r["answer"] for r in rows} == {"42"}
    assert all(r["tokens"] == 110 * r["calls"] and r["critical_path_s"] > 0 for r in rows)


def test_a_method_whose_endpoint_fails_fails_alone(endpoint, tmp_path):
    refuse = Raw(401, {"error": {"message": "who are you"}})
    server = endpoint(lambda r: refuse if "using tools" in str(r) else respond(r))
    methods = ("toolorchestra", "react")
    results = compare(methods, "What?", pool=pool_at(server.url), out=tmp_path / "all")
    assert isinstance(results["toolorchestra"], EndpointError) and results["react"].answer == "42"


def test_what_one_method_can_not_do_is_said_before_anything_is_paid(tmp_path):
    pool = pool_file(tmp_path, WORKER.replace('"chat"', '"search"'))
    options = Options(mode="prompted")
    with pytest.raises(ConfigError, match="no usable worker"):
        compare(("react", "toolorchestra"), "?", (), pool, options, tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_a_configuration_error_of_a_later_method_keeps_the_rows_that_are_there(endpoint, tmp_path):
    def respond_and_take(request):
        (tmp_path / "all" / "toolorchestra" / "mine").mkdir(parents=True, exist_ok=True)
        return respond(request)

    done = command("--question", "?", "--compare", "orchestra-o1,toolorchestra,react", "--model", "m",
                   "--out", tmp_path / "all", url=endpoint(respond_and_take).url)  # fmt: skip
    assert done.returncode == 2 and "is there already and not empty" in done.stderr
    assert [row.split()[:2] for row in done.stdout.splitlines()[1:]] == [["orchestra-o1", "42"]]


def test_each_method_has_the_whole_budget(endpoint, tmp_path):
    server = endpoint(respond)
    pool, options = pool_at(server.url, price=Price(1.0, 1.0, 1.0)), Options(budget_usd=0.5)
    compare(("toolorchestra", "mas-orchestra"), "?", (), pool, options, tmp_path / "all")
    folders = (tmp_path / "all" / m for m in ("toolorchestra", "mas-orchestra"))
    assert [read_manifest(f).options.budget_usd for f in folders] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--dom low", "--dom: belongs to --method mas-orchestra"),
        ("--method react --mode rl", "--mode: belongs to --method toolorchestra"),
        ("--method toolorchestra --context full", "--context: belongs to --method aorchestra"),
        ("--method react --stop-threshold 0.5", "belongs to --method orchestra-o1"),
        ("--method aorchestra --workdir .", "--workdir: needs --sub-agent mini-swe"),
        ("--method mas-orchestra --rounds 3", "--rounds: mas-orchestra decides once"),
        ("--compare react,aorchestra --dom low", "--dom: belongs to --method mas-orchestra"),
        ("--compare react,nothing", "'nothing' is no method"),
        ("--compare react,react", "names a method twice"),
        ("--compare all --method react", "leave --method out"),
        ("--side-by-side", "--side-by-side: needs --compare"),
        ("--method aorchestra --sub-agent mini-swe --workdir /nowhere", "no such folder"),
    ],
)
def test_flags_that_contradict_are_one_line_before_the_first_call(arguments, told, endpoint):
    server = endpoint(respond)
    done = command("--question", "?", "--model", "m", *arguments.split(), url=server.url)
    assert done.returncode == 2 and told in done.stderr
    assert len(done.stderr.splitlines()) == 1 and server.requests == []


@pytest.mark.parametrize(
    ("pool", "flags", "told"),
    [
        (WORKER.replace('"chat"', '"search"'), "--mode prompted", "no usable worker"),
        (WORKER + WORKER, "--mode rl", "pool.toml:14: id: 3 is there twice"),
        ('[expert_model_mapping]\n"answer-9" = "big"', "--mode rl", "answer-9: unknown slot"),
        ('[expert_model_mapping]\n"answer-1" = "huge"', "--mode rl", "'huge' is no backend"),
    ],
)
def test_a_pool_that_a_method_can_not_use_is_one_line(pool, flags, told, tmp_path):
    (tmp_path / "pool.toml").write_text(BACKENDS + pool)
    done = command("--question", "?", "--backends", tmp_path / "pool.toml", "--method",
                   "toolorchestra", *flags.split(), "--out", tmp_path / "run")  # fmt: skip
    assert done.returncode == 2 and told in done.stderr
    assert len(done.stderr.splitlines()) == 1 and not (tmp_path / "run").exists()


def test_a_work_folder_that_is_no_repository_is_one_line(tmp_path):
    flags = ["--method", "aorchestra", "--sub-agent", "mini-swe", "--workdir"]
    done = command("--question", "?", "--model", "m", *flags, tmp_path, "--out", tmp_path / "run",
                   url="http://127.0.0.1:9/v1")  # fmt: skip
    assert done.returncode == 2 and "is no git repository" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and not (tmp_path / "run").exists()


def test_the_critical_path_is_the_longest_chain_of_each_round():
    def event(kind, at, latency_s=0.0, **content):
        return {"event": kind, "at": at, "timing": {"latency_s": latency_s}, **content}

    events = [event("decision", (1, 0, 1), 1.0)]
    for j, (id, took, needs) in enumerate([("a", 2, []), ("b", 5, []), ("c", 4, ["a", "old"])], 1):
        events.append(event("subtask", (1, j, 0), subtask={"id": id, "needs": needs}))
        events.append(event("result", (1, j, LAST), took, subtask=id))
    assert critical_path_s(events) == 1 + (2 + 4)


def test_a_table_cuts_long_answers_and_shows_what_is_unknown():
    row = {"method": "react", "answer": "x" * 99, "fallback": True, "rounds": 1, "calls": 2,
           "tokens": 3, "cost_usd": None, "latency_s": 2.0, "critical_path_s": 1.0}  # fmt: skip
    shown = table([row, {"method": "aorchestra", "error": "no endpoint"}])
    assert "xxx... (fallback)" in shown and "USD unknown" in shown and "2.00" in shown
    assert "no endpoint" in shown


def test_ctrl_c_keeps_the_rows_that_are_there_and_says_what_was_not_run(endpoint, tmp_path):
    def respond_twice(request):
        if "You design a system of agents" in str(request):
            time.sleep(60)
        return respond(request)

    server = endpoint(respond_twice)
    call = [sys.executable, "orchestra_min.py", "--question", "What?", "--model", "m", "--compare"]
    call += ["orchestra-o1,mas-orchestra,react", "--out", str(tmp_path / "all")]
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
    env["OPENAI_BASE_URL"] = server.url
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(call, cwd=ROOT, env=env, text=True, **pipes)
    while len(server.requests) < 2:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    table, said = process.communicate(timeout=20)
    assert process.returncode == 130 and said.endswith("not run: mas-orchestra, react\n")
    assert [row.split()[:2] for row in table.splitlines()[1:]] == [["orchestra-o1", "42"]]


def test_ctrl_c_side_by_side_ends_soon_and_every_run_goes_on(endpoint, tmp_path):
    """What was answered is on the tapes and not asked again; calls in flight are."""
    held, first = threading.Event(), threading.Barrier(4)
    seen, numbers = [], itertools.count(1)

    def respond_held(request):
        number = next(numbers)
        seen.append(request)
        if number > 4:
            held.wait(120)  # far longer than the slowest start of the code tool
        else:
            first.wait(60)  # of each method: none gets ahead of the others
        return respond(request)

    server = endpoint(respond_held)
    methods = ("aorchestra", "toolorchestra", "mas-orchestra", "react")
    call = [sys.executable, "orchestra_min.py", "--question", "What?", "--model", "m", "--compare"]
    call += [",".join(methods), "--side-by-side", "--out", str(tmp_path / "all")]
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
    env["OPENAI_BASE_URL"] = server.url
    process = subprocess.Popen(call, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True)
    while len(seen) < 7:  # aorchestra is done after its first
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    _, said = process.communicate(timeout=20)
    assert time.monotonic() - started < 2
    assert process.returncode == 130 and "interrupted; go on with" in said
    held.set()
    answers = {m: resume(tmp_path / "all" / m).answer for m in methods}
    assert answers == dict.fromkeys(methods, "42")
    assert len(seen) == 7 + 3  # aorchestra asks nothing again, the others what was in flight


def test_one_mistake_ends_the_methods_beside_it_at_once(tmp_path):
    def one(method: str, cancelled: threading.Event) -> Trajectory:
        if method == "b":
            raise ConfigError("no key")
        cancelled.wait(20)
        raise ConfigError("was cancelled")

    began = time.monotonic()
    with pytest.raises(comparison.Misconfigured, match="no key"):
        comparison.run(["a", "b"], one, side_by_side=True)
    assert time.monotonic() - began < 10
