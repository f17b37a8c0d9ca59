"""A replay is exact: under any threads, in any environment, offline; an error shows a difference."""

import re
import shutil
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from orchestra.kernel.folder import first_difference, read_events
from orchestra.kernel.tape import seen
from orchestra_min import orchestrate
from tests.conftest import Options, Price, pool_at
from tests.program import (
    CLOCK,
    METHODS,
    OWN_TOOLS,
    SPEECH,
    any_method,
    called,
    content,
    files_of,
    line_of,
    replay,
    resume,
    tool_file,
)
from tests.scripted import SAMPLES, Endpoint, act, complete, delegate, finish, is_main, last_text

MODEL = "gpt-5-mini"
TASKS = (
    {"task_instruction": "when is it open?", "tools": ["library_hours"], "model": MODEL},
    {"task_instruction": "what is error?", "tools": ["ParseAudioAction"], "model": MODEL},
    {"task_instruction": "look at it", "tools": ["ImageAnalysisAction"], "model": "small"},
)
MISTAKES = iter(["hm"])


def respond(request):
    """A mistake, three parallel sub-tasks with a tool each, and the answer."""
    text = last_text(request)
    if is_main(request):
        seen = all(f"found {n}" in text for n in (1, 2, 3))
        return complete("42") if seen else next(MISTAKES, delegate(*TASKS))
    if "when is it open?" in text:
        return finish("found 1") if "closed on" in text else act("library_hours", day="Sunday")
    if "what is error?" in text:
        listen = act("ParseAudioAction", query="words?", audio_path="equinox.wav")
        return finish("found 2") if "spoken words" in text else listen
    if "look at it" in text:
        look = act("ImageAnalysisAction", query="time?", image_path="clock.png")
        return finish("found 3") if "12:34" in text else look
    return "12:34" if "image_url" in str(request["messages"]) else "spoken words"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run with two models, three tools and two files; its endpoint is closed."""
    folder = tmp_path_factory.mktemp("recorded")
    with closing(Endpoint(respond)) as server:
        options = Options.of(tools=[tool_file(folder)])
        pool = pool_at(server.url, MODEL, "small", price=Price(10.0, 100.0, 10.0))
        how = {"out": folder / "run", "options": options, "tools": OWN_TOOLS}
        result = orchestrate("What?", [CLOCK, SPEECH], pool, **how)
    assert (result.answer, result.rounds, result.calls) == ("42", 2, 11)
    assert result.cost_usd == pytest.approx(11 * 2000 / 1e6)  # the tools' calls too
    return result


# ---- exact ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 5, 17])
@pytest.mark.parametrize("variables", [
    {"TOKENIZER_NAME": MODEL},
    {"X_TOKENIZER": "ParseAudioAction"},
    {"MY_API_KEY": "a1b2c3d4e5f6", "OPENAI_API_KEY": "sk-abcdefghij0123456789"},
    {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "http_proxy": "http://127.0.0.1:9"},
    {"SERPER_API_KEY": "k", "JINA_API_KEY": "k", "TZ": "Asia/Tokyo", "COLUMNS": "20"},
    {f"{name}_{n}": str(n) * 9 for n in range(9) for name in ("A", "X_KEY", "ORCHESTRA")},
])  # fmt: skip
def test_a_replay_is_the_same_under_any_threads_and_opens_no_socket(
    variables, threads, recorded, no_network, tmp_path, monkeypatch
):
    """In any environment, wherever the folder is; and it writes nothing."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    copy = shutil.copytree(recorded.run, tmp_path / "else where" / "my run")
    before = files_of(copy)
    again = replay(copy, parallel=threads, tools=OWN_TOOLS)
    assert content(again.events) == content(recorded.events)
    assert (again.answer, again.calls, again.paid_usd) == ("42", recorded.calls, 0.0)
    assert files_of(copy) == before


@pytest.mark.parametrize("method", METHODS)
def test_half_a_surrogate_pair_in_every_reply_is_replaced_before_it_is_used(method, run):
    run(
        respond=lambda r: any_method(r) + "\ud800", method=method, price=Price(0, 0), budget_usd=1.0
    )
    tape = (run.folder / "tape.jsonl").read_text()
    assert "\ufffd" in tape and "\\ud800" not in tape
    again = resume(run.folder)  # and the run was replayed
    assert content(again.events) == content(read_events(run.folder))


def test_without_its_trajectory_a_run_is_replayed_from_the_tape_alone(recorded, tmp_path):
    copy = shutil.copytree(recorded.run, tmp_path / "run")
    (copy / "trajectory.jsonl").unlink()
    assert content(replay(copy, tools=OWN_TOOLS).events) == content(recorded.events)


def test_identical_samples_keep_their_own_answers(run):
    numbers = count()

    def answer(request):
        if request["messages"][0]["role"] == "system":
            return SAMPLES
        return f"Answer: {'joined' if 'join' in last_text(request) else next(numbers)}"

    result = run(respond=answer, method="mas-orchestra")  # is replayed with 17 threads
    assert next(numbers) == 10 and result.calls == 12
    assert content(replay(run.folder, parallel=1).events) == content(result.events)


# ---- a difference --------------------------------------------------------------------------------


def tool_of(recorded):
    return "--tools", f"{Path(recorded.run).parent}/mine.py:library_hours"


EDITS = {  # file: old text, new text, error
    "run.json": (b'"What?"', b'"What then?"', r"r1/main.*\n-[^\n]*What\?.*\n\+[^\n]*What then\?"),
    "media/clock.png": (b"IDAT", b"IDAX", r"clock\.png"),
    "trajectory.jsonl": (b'"found 1"', b'"found 9"', "(?=.*found 9).*found 1"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_a_miss_that_names_the_call_and_shows_the_difference(name, recorded, tmp_path):
    old, new, error = EDITS[name]
    run = shutil.copytree(recorded.run, tmp_path / "run")
    (run / name).write_bytes((run / name).read_bytes().replace(old, new))
    done = called("--replay", run, *tool_of(recorded))
    assert (done.returncode, done.stdout) == (2 if "media" in name else 3, "")
    assert re.search(error, done.stderr, re.S)


def test_the_command_line_takes_the_number_of_threads_and_nothing_that_is_stored(recorded):
    named = "--replay", recorded.run, *tool_of(recorded)
    assert called(*named, "--parallel", 3).stdout == "42\n"
    assert "--budget: is stored in" in line_of(called(*named, "--budget", 5))


def test_a_difference_is_told_in_one_line():
    recorded = {"event": "\n# x", "at": [1, 1, 0], "answer": "a\nb"}
    told = first_difference([recorded], [{**recorded, "answer": "c"}])
    assert told == r"# x at [1, 1, 0]: answer: recorded 'a\nb', now 'c'"


def test_what_a_difference_shows_is_what_the_key_holds():
    price = {"url": "http://a/v1", "bill": {"backend": "a"}}
    assert seen({"kind": "chat", "model": "m", **price}) == {"kind": "chat", "model": "m"}
    of_a_tool = {"kind": "pay", "bill": 5}  # a parameter of a user's tool
    assert seen(of_a_tool) == of_a_tool
