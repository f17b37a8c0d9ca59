"""Every run ends with one end row, and the terminal, `runs` and the page give the same reason."""

import json
import re
import resource
import shlex
import shutil
import signal
import subprocess
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from orchestra.command.way_on import again_as_stored, next_steps
from orchestra.kernel.folder import Ending, read_events, read_manifest
from orchestra.kernel.vocabulary import Pool, Price
from orchestra.report.run_data import outcome_row, read
from orchestra.report.totals import Totals, summary, totals_in
from orchestra_min import orchestrate
from tests.conftest import ROOT, Options, pool_at
from tests.program import CLOCK, METHODS, any_method, called, pool_file, program, start
from tests.scripted import (
    Raw,
    act,
    complete,
    completion,
    delegate,
    finish,
    free_port,
    is_main,
    last_text,
)

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")
EQUINOX = ROOT / "fixtures/runs/equinox"
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
    "500": ("", status(500), "stopped", "endpoint"),
    "429": ("--option patience_s=0", status(429), "stopped", "rate limit"),
    "replies": ("", lambda request: "hm", "", ""),
    "budget": ("--budget 0.0001 --backends pool.toml", finding, "stopped", "budget"),
    "rounds": ("--rounds 1", finding, "fallback", "rounds"),
    "answered": ("", finding, "answered", ""),
}  # fmt: skip
FOR_MODELS = "Your reply", "Reply with", "You are", "Call exactly", "Delegate one"


def views(done, folder="run"):
    """The ending, after a look at whether every view gives the same reason."""
    ending = summary(Path(folder)).ending
    [listed] = json.loads(called("runs", folder, "--json").stdout)
    page = outcome_row(read(Path(folder)))
    assert ending.why == listed["why"] == page["why"] and ending.why in done.stderr
    assert ending.state == listed["state"] == page["state"]
    if ending.state != "interrupted":  # which may come while nobody can write
        assert ending.state in Path(folder, "log.txt").read_text().splitlines()[-1]
    shown = called("runs", folder).stdout
    assert bool(ending.why) == (ending.state != "answered")
    assert (f"why: {ending.why}" in shown) == (ending.why not in ("", ending.state))
    if ending.cause != "replies":  # it quotes what the model was told
        assert not any(words in ending.why for words in FOR_MODELS)
    return ending


@pytest.mark.parametrize(("method", "name"), [
    (method, name) for method in METHODS for name in ENDINGS
    if name != "rounds" or method not in ("mas-orchestra", "react")  # which have no --rounds
])  # fmt: skip
def test_all_views_give_the_same_reason(method, name, endpoint, tmp_path):
    flags, respond, state, cause = ENDINGS[name]
    server = endpoint(any_method if name == "answered" else respond)
    pool_file(tmp_path, server.url, small=(1, 2))
    done = called("?", "--method", method, "--out", "run", *flags.split(), at=server.url)
    ending = views(done)
    if name == "rounds" and method == "toolorchestra":
        assert ending.cause == "replies"  # it has no sub-tasks of this kind
    elif state:
        assert (ending.state, ending.cause) == (state, cause)
    elif method != "mas-orchestra":  # whose agents answer in any words
        assert ending.cause in ("replies", "steps") and ending.state in ("stopped", "fallback")


def test_the_rounds_of_toolorchestra_are_the_reason_too(endpoint):
    call = '<tool_call>{"name": "search", "arguments": {"model": "search-1"}}</tool_call>'
    server = endpoint(lambda r: call if "tools" in r else "Answer: 42")
    done = called("?", "--method", "toolorchestra", "--rounds", 1, "--out", "run", at=server.url)
    ending = views(done)
    assert (ending.state, ending.cause) == ("fallback", "rounds")


@pytest.mark.parametrize("method", METHODS)
def test_a_budget_that_is_too_small_says_how_much_is_needed(method, endpoint, tmp_path):
    server = endpoint(any_method)
    pool_file(tmp_path, server.url, small=(1, 2))
    flags = "--method", method, "--backends", "pool.toml", "--out", "run"
    why = views(called("?", *flags, "--budget", "0.0001")).why
    needed = re.search(r"needs USD (0\.\d+)", why)
    assert needed and server.requests == []
    flags = *flags[:-1], "enough"
    called("?", *flags, "--budget", float(needed[1]) * 1.001)
    assert server.requests != []


def steps_of(text):
    """The next steps that the terminal or `runs` prints: the command of each purpose."""
    return dict(re.findall(r"^ +(\w.*?): ((?:OPENAI_BASE_URL=\S+ )?\S.* \w+ .*)$", text, re.M))


def pasted(command, at):
    words = shlex.split(command)
    return called(
        *words[next(n for n, w in enumerate(words) if w in ("resume", "report")) :], at=at
    )


def test_a_run_without_a_round_left_goes_on_with_more_and_keeps_what_was_paid(endpoint, tmp_path):
    server = endpoint(lambda r: complete("42") if "2 of 2" in last_text(r) else finding(r))
    pool_file(tmp_path, server.url, small=(1, 2))
    flags = "--backends", "pool.toml", "--rounds", "1", "--out", "run"
    told = steps_of(called("?", *flags).stderr)
    listed = steps_of(called("runs", "run").stdout)
    kept, added = (
        "for more rounds, those so far are kept",
        f"--backends {Path('pool.toml').absolute()}",
    )
    assert told.keys() == {kept, "to see what happened"}
    assert listed.keys() - {"why"} == {f"{kept}, adding {added}", "to see what happened"}
    for command in (told[kept], f"{listed[f'{kept}, adding {added}']} {added}"):
        made = len(server.requests)
        done = pasted(command, "http://127.0.0.1:9")
        assert (done.returncode, done.stdout, len(server.requests)) == (0, "42\n", made + 1)
    assert pasted(told["to see what happened"], "").returncode == 0


@pytest.mark.parametrize("method", ["orchestra-o1", "react"])
def test_the_budget_that_is_printed_covers_the_call_that_the_smaller_one_did_not(
    method, endpoint, tmp_path
):
    server = endpoint(any_method)
    pool_file(tmp_path, server.url, small=(1, 2))
    flags = "--backends", "pool.toml", "--method", method, "--out", "run", "--budget", "0.0001"
    done = called("?", *flags)
    assert server.requests == []
    assert pasted(steps_of(done.stderr)["with a larger budget"], "").returncode == 0


@pytest.mark.parametrize(
    ("url", "file", "told"),
    [
        ("http://127.0.0.1:9/v1", None, "OPENAI_BASE_URL=http://127.0.0.1:9/v1 "),
        ("https://evil.test/v1", None, ""),
        ("https://evil.test/v1", "{run}/pool.toml", ""),
        ("https://evil.test/v1", "pool.toml", ""),
    ],
)
def test_a_run_from_someone_else_does_not_say_where_to_send_a_key(url, file, told, tmp_path):
    shutil.copytree(ROOT / "fixtures/runs/equinox", tmp_path / "run")
    row = json.loads((tmp_path / "run/run.json").read_text())
    row["pool"]["backend"][0]["base_url"] = url
    row |= {"pool_file": file.format(run=tmp_path / "run")} if file else {}
    (tmp_path / "run/run.json").write_text(json.dumps(row))
    run = tmp_path / "run"
    command = again_as_stored(run, read_manifest(run)).command()
    assert command.startswith(told) and command.endswith(f" resume {tmp_path}/run")
    assert ("evil" in command, "pool.toml" in command) == (False, False)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/v1", "https://evil.test/v1"])
def test_the_pool_file_that_is_printed_is_safe_whatever_a_run_names(url, tmp_path):
    name = "x'; touch evil; '%s\\n\""
    stored = read_manifest(EQUINOX)
    b = replace(stored.pool.backends[0], name=name, base_url=url)
    stored = replace(stored, pool=Pool((b,), main=name))
    why = f"{name} at {url}: status 400: this model does not support image input"
    ending = Ending("stopped", "endpoint", why, finished=False)
    again = again_as_stored(tmp_path / "a 'run'", stored)
    _, (purpose, command), *_ = next_steps(again, stored, ending, rounds=1)
    assert "evil.test" not in command and "printf" not in command
    assert "[engines] of a pool file (docs/models.md), adding --backends FILE" in purpose
    own = again._replace(is_own=True, url="http://127.0.0.1:8/v1")
    _, (_, command), *_ = next_steps(own, stored, ending, rounds=1)
    made = re.search("printf .*(?= > pool-local.toml)", command)
    shown = subprocess.check_output(["sh", "-c", made[0]], text=True, cwd=tmp_path)
    (backend,) = tomllib.loads(shown)["backend"]
    assert backend == {"name": name, "model": b.model, "base_url": "http://127.0.0.1:8/v1"}
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("more", [
    {"pool_file": "/proc/self/cwd/pool.toml"}, {"workdir": "/repo: touch x; #"}, {"reuse": ["a'b\n: x"]},
])  # fmt: skip
def test_what_a_run_folder_names_is_in_no_command_but_next_to_it(more):
    stored = read_manifest(EQUINOX)
    stored = replace(stored, more={**stored.more, **more})
    ending = Ending("stopped", "endpoint", "x at y: status 500", finished=False)
    (purpose, command), *_ = next_steps(again_as_stored(Path("-run"), stored), stored, ending, 1)
    assert command.endswith(" resume ./-run")
    assert purpose.startswith("to continue, adding --") and not set(purpose.split()) <= {"to"}


@pytest.mark.parametrize("ending", ["rounds", "budget"])
def test_fallback_and_state_agree_in_json(ending, endpoint, tmp_path):
    server = endpoint(finding)
    pool_file(tmp_path, server.url, small=(1, 2))
    flags = ("--rounds", "1") if ending == "rounds" else ("--budget", "0.0001")
    done = called("?", "--backends", "pool.toml", *flags, "--json")
    row = json.loads(done.stdout)
    state = "fallback" if ending == "rounds" else "stopped"
    assert (done.returncode, row["state"], row["fallback"]) == (1, state, state == "fallback")
    assert bool(row["answer"]) == row["fallback"]


def test_a_batch_that_is_too_dear_says_what_a_sub_task_needs(endpoint, tmp_path):
    task = {"task_instruction": "look", "model": "dear", "tools": []}
    server = endpoint(lambda r: delegate(task) if is_main(r) else finish("42"))
    pool_file(tmp_path, server.url, main=(0, 0), dear=(1000, 1000))
    flags = "--backends", "pool.toml", "--budget", "0.01", "--out", "run"
    ending = views(called("?", *flags))
    assert ending.cause == "budget" and "the cheapest sub-task needs about USD 1.75" in ending.why


@pytest.mark.parametrize(
    ("code", "told"), [(400, "m is no multimodal model"), (500, "CUDA out of memory")]
)
def test_a_picture_that_an_endpoint_refuses_is_the_reason(code, told, endpoint):
    def respond(request):
        if "image_url" in str(request):
            return Raw(code, {"error": {"message": told}})
        return act("ImageAnalysisAction", query="?", image_path=CLOCK.name)

    flags = "--method", "react", "--model", "m", "--out", "run"
    done = called("What is it?", CLOCK, *flags, at=endpoint(respond).url)
    ending = views(done)
    assert (ending.cause, done.returncode) == ("endpoint", 4)
    assert told in ending.why


@pytest.mark.parametrize("method", METHODS)
def test_an_endpoint_that_does_not_exist_is_the_reason(method):
    flags = "--method", method, "--model", "m", "--out", "run", "--option", "patience_s=0"
    ending = views(called("?", *flags, at=f"http://127.0.0.1:{free_port()}/v1"))
    assert (ending.state, ending.cause) == (
        "stopped",
        "endpoint",
    ) and "Connection refused" in ending.why


@pytest.mark.parametrize("method", ["orchestra-o1", "react"])
def test_a_full_disk_is_the_reason(method, endpoint, tmp_path):
    def small_disk():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    server = endpoint(lambda r: delegate("look") if is_main(r) else any_method(r))
    flags = "?", "--model", "m", "--method", method
    called(*flags, "--out", "whole", at=server.url)
    limit = Path("whole/tape.jsonl").stat().st_size - 100
    done = program(tmp_path, *flags, "--out", "run", at=server.url, preexec_fn=small_disk)
    ending = views(done)
    assert (ending.state, ending.cause) == ("stopped", "disk") and "free some space" in ending.why


@pytest.mark.parametrize(("number", "waits_for", "times"), [
    (signal.SIGINT, "main", 1), (signal.SIGTERM, "sub-agent", 2), (signal.SIGKILL, "sub-agent", 1),
])  # fmt: skip
def test_an_interrupted_run_has_its_cost_and_says_that_it_was_interrupted(
    number, waits_for, times, endpoint, tmp_path
):
    """Also while a call takes longer than the program waits for it."""

    def respond(request):
        seen = "it is 42" in last_text(request)
        if seen if waits_for == "main" else not is_main(request):
            time.sleep(20)
        return delegate("look") if is_main(request) else finish("it is 42")

    server = endpoint(respond)
    before = 3 if waits_for == "main" else 2
    with start(tmp_path, "?", "--model", "m", "--out", "run", at=server.url) as process:
        while len(server.requests) < before:
            time.sleep(0.05)
        assert summary(Path("run")).ending.state == "running"
        began_s = time.monotonic()
        for _ in range(times):  # the second one ends the wait
            process.send_signal(number)
            time.sleep(0.02)
        _, told = process.communicate(timeout=30)
    assert time.monotonic() - began_s < 8  # about 3 s, but for a busy machine
    totals = summary(Path("run")).totals
    assert (totals.calls, totals.tokens) == (before - 1, 110 * (before - 1))
    done = subprocess.CompletedProcess("", process.returncode, "", told)
    if number == signal.SIGKILL:
        done.stderr += "the process was killed, or the disk was full"
    ending = views(done)
    assert (ending.state, ending.cause) == ("interrupted", "signal")
    if number != signal.SIGKILL:
        end = read_events(Path("run"))[-1]
        assert (end["why"], end["calls"]) == ("interrupted", before - 1)


def test_the_row_of_a_question_says_how_its_run_failed(endpoint, tmp_path):
    Path("data.jsonl").write_text(json.dumps({"question": "?", "answer": "42"}))
    flags = "--data", "data.jsonl", "--out", "sweep", "--model", "m"
    called("evaluate", "run", *flags, at=endpoint(status(401)).url)
    row = json.loads(Path("sweep/rows.jsonl").read_text().splitlines()[-1])
    assert (row["status"], row["state"], row["cause"]) == ("failed", "stopped", "endpoint")
    assert "status 401" in row["why"]


def test_a_last_decision_that_is_unusable_does_not_hide_that_the_rounds_were_over(endpoint):
    def respond(request):
        return delegate("look") if is_main(request) else finish("it is 42")

    called("?", "--rounds", "1", "--out", "run", at=endpoint(respond).url)
    ending = summary(Path("run")).ending
    assert ending.cause == "rounds" and ending.why.startswith("no round was left")


@pytest.mark.parametrize("folder", FIXTURES, ids=lambda path: path.name)
def test_the_totals_of_the_tape_are_those_of_the_purse(folder):
    end = read_events(folder)[-1]
    totals = totals_in(folder)
    assert totals == Totals(end["calls"], end["tokens"], end["cost_usd"], end["cost_usd"])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("usage", "budget_usd"), [
    ({}, None), ({}, 5.0), ({"cost": 0.25}, 5.0), (None, None), (None, 5.0),
])  # fmt: skip
def test_tape_and_purse_agree(method, usage, budget_usd, endpoint):
    failed = iter([True])  # the first attempt is lost

    def respond(request):
        if next(failed, False):
            return Raw(500, {"error": {"message": "lost"}})
        reply = completion(any_method(request))
        return {**reply, "usage": None if usage is None else {**reply["usage"], **usage}}

    pool = pool_at(endpoint(respond).url, price=Price(1, 2))
    run = orchestrate(
        "?", pool=pool, options=Options.of(method=method, budget_usd=budget_usd), out="run"
    )
    expected = Totals(run.calls, run.tokens, run.cost_usd, run.paid_usd)
    assert totals_in(Path("run")) == expected
    assert usage != {"cost": 0.25} or run.cost_usd == 0.25 * (run.tokens // 110)


@pytest.mark.parametrize("budget_usd", [0.001, 0.004, 0.008, 0.012, 0.016, 0.02])
def test_each_command_for_a_larger_budget_can_be_pasted_until_one_answers(
    budget_usd, endpoint, tmp_path
):
    def respond(request):
        if not is_main(request):
            return finish("seen")
        return (
            complete("42") if last_text(request).count("=> seen") >= 5 else delegate("look again")
        )

    pool_file(tmp_path, endpoint(respond).url, small=(1, 1))
    done = called("?", "--backends", "pool.toml", "--budget", budget_usd, "--rounds", "4")
    for _ in range(8):
        assert done.returncode < 2, done.stderr
        steps = [
            c for purpose, c in steps_of(done.stderr).items() if "what happened" not in purpose
        ]
        if not steps:
            break
        done = pasted(steps[0], "")
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr


def test_a_sub_task_whose_picture_was_refused_prints_the_way_to_read_it_here(endpoint, tmp_path):
    def respond(request):
        if is_main(request):
            done = "image input" in last_text(request)
            return complete("unknown") if done else delegate(task)
        if "image_url" in json.dumps(request["messages"]):
            return Raw(400, {"error": {"message": "this model does not support image input"}})
        return act("ImageAnalysisAction", query="which city?", image_path="clock.png")

    task = {"task_instruction": "look", "tools": ["ImageAnalysisAction"]}
    server = endpoint(respond)
    done = called("Which city?", CLOCK, "--model", "m", "--out", "run", at=server.url)
    for text in (done.stderr, called("runs", "run").stdout):
        assert "[engines]" in text and "--from-round 1" in text, text


def test_a_fork_without_prices_does_not_lose_the_budget_of_its_run(endpoint, tmp_path):
    server = endpoint(finding)
    pool_file(tmp_path, server.url, small=(1, 2))
    called("?", "--backends", "pool.toml", "--budget", "1", "--out", "run")
    made = len(server.requests)
    (tmp_path / "unpriced.toml").write_text(
        f'[[backend]]\nname = "other"\nbase_url = "{server.url}"\n'
    )
    done = called("resume", "run", "--from-round", "1", "--backends", "unpriced.toml")
    assert done.returncode == 2 and "--budget needs prices" in done.stderr
    assert len(server.requests) == made


def test_every_view_of_a_fork_says_what_its_user_replaced():
    decision = {"action": "complete", "answer": "5"}
    told = "fork of equinox from round 2; its user replaced r2"
    flags = "--what-if", f"r2={json.dumps(decision)}", "--out", "run"
    assert called("resume", EQUINOX, *flags, at="http://127.0.0.1:9/v1").stdout == "5\n"
    assert f"    {told}" in called("runs", "run").stdout.splitlines()
    assert f"The run is a {told}." in called("explain", "run").stdout
    assert f"--what-if r2 not set -> {json.dumps(decision)}" in " ".join(
        called("diff", EQUINOX, "run").stdout.split()
    )
    assert outcome_row(read(Path("run")))["origin"] == told
    assert outcome_row(read(EQUINOX))["origin"] == ""
