"""A replay is exact: under any threads, in any environment, without network; a difference says where."""

import shutil
import subprocess
import sys
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from orchestra_min import orchestrate
from tests.conftest import ROOT, ConfigError, Options, Price, TapeMiss, pool_at
from tests.program import CLOCK, SPEECH, called, content, files_of, line_of, replay, tool_file
from tests.scripted import SAMPLES, Endpoint, act, complete, delegate, finish, is_main, last_text

MODEL = "gpt-5-mini"
TASKS = (
    {"task_instruction": "when is it open?", "tools": ["library_hours"], "model": MODEL},
    {"task_instruction": "what is said?", "tools": ["ParseAudioAction"], "model": MODEL},
    {"task_instruction": "look at it", "tools": ["ImageAnalysisAction"], "model": "small"},
)
MISTAKES = iter(["hm"])


def respond(request):
    """A mistake, three sub-tasks side by side with a tool each, and the answer."""
    text = last_text(request)
    if is_main(request):
        seen = all(f"found {n}" in text for n in (1, 2, 3))
        return complete("42") if seen else next(MISTAKES, delegate(*TASKS))
    if "when is it open?" in text:
        return finish("found 1") if "closed on" in text else act("library_hours", day="Sunday")
    if "what is said?" in text:
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
        options = Options(tools=tool_file(folder))
        pool = pool_at(server.url, MODEL, "small", price=Price(10.0, 100.0, 10.0))
        result = orchestrate("What?", [CLOCK, SPEECH], pool, options, folder / "run")
    assert (result.answer, result.rounds, result.calls) == ("42", 2, 11)
    assert result.cost_usd == pytest.approx(11 * 2000 / 1e6)  # the tools' calls too
    return result


def same_again(recorded, folder=None, parallel=None):
    again = replay(folder or recorded.run, parallel=parallel)
    assert content(again.events) == content(recorded.events)
    assert (again.answer, again.calls, again.paid_usd) == ("42", recorded.calls, 0.0)


# ---- exact ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 5, 17])
def test_a_replay_is_the_same_under_any_threads_and_opens_no_socket(threads, recorded, no_network):
    same_again(recorded, parallel=threads)


@pytest.mark.parametrize("variables", [
    {"TOKENIZER_NAME": MODEL},
    {"X_TOKENIZER": "ParseAudioAction"},
    {"MY_API_KEY": "a1b2c3d4e5f6", "OPENAI_API_KEY": "sk-abcdefghij0123456789"},
    {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "http_proxy": "http://127.0.0.1:9"},
    {"SERPER_API_KEY": "k", "JINA_API_KEY": "k", "TZ": "Asia/Tokyo", "COLUMNS": "20"},
    {f"{name}_{n}": str(n) * 9 for n in range(9) for name in ("A", "X_KEY", "ORCHESTRA")},
])  # fmt: skip
def test_a_replay_is_the_same_in_any_environment(variables, recorded, no_network, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    same_again(recorded)


def test_identical_samples_keep_their_own_answers(run):
    numbers = count()

    def answer(request):
        if request["messages"][0]["role"] == "system":
            return SAMPLES
        return f"Answer: {'joined' if 'join' in last_text(request) else next(numbers)}"

    result = run(respond=answer, method="mas-orchestra")
    assert next(numbers) == 10 and result.calls == 12
    for threads in (1, 4, 17):
        assert content(replay(run.folder, parallel=threads).events) == content(result.events)


# ---- the folder ----------------------------------------------------------------------------------


def test_a_copied_folder_replays_wherever_it_lies_and_nothing_is_written(recorded, tmp_path):
    copy = tmp_path / "else where" / "my run"
    shutil.copytree(recorded.run, copy)
    before = files_of(copy)
    same_again(recorded, copy)
    assert files_of(copy) == before


# ---- a difference --------------------------------------------------------------------------------


def tool_of(recorded):
    return "--tools", f"{Path(recorded.run).parent}/mine.py:library_hours"


def changed(recorded, folder, name, old, new):
    shutil.copytree(recorded.run, folder)
    data = (folder / name).read_bytes()
    assert old in data
    (folder / name).write_bytes(data.replace(old, new))
    return folder


@pytest.mark.parametrize("edited", ["question", "prompt"])
def test_an_edit_is_a_miss_that_names_the_call_and_shows_the_difference(edited, recorded, tmp_path):
    """Of a copy of the program, whose prompt may be the one that was edited."""
    left_out = shutil.ignore_patterns(".*", "fixtures", "tests", "training", "runs", "__pycache__")
    shutil.copytree(ROOT, tmp_path / "program", ignore=left_out)
    run, system = recorded.run, tmp_path / "program" / "prompts" / "orchestra_o1" / "system.md"
    if edited == "question":
        run = changed(recorded, tmp_path / "run", "run.json", b'"What?"', b'"What then?"')
    else:
        system.write_text(system.read_text() + "\nWhat then?\n")
    call = [sys.executable, "orchestra_min.py", "--replay", run, *tool_of(recorded)]
    done = subprocess.run(call, cwd=tmp_path / "program", capture_output=True, text=True)
    rows = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (3, "") and "r1/main" in done.stderr
    assert any(r.startswith("+") and "What then?" in r for r in rows)
    assert edited == "prompt" or any(r.startswith("-") and "What?" in r for r in rows)


def test_an_edited_file_is_said_with_its_name(recorded, tmp_path):
    run = changed(recorded, tmp_path / "run", "media/clock.png", b"IDAT", b"IDAX")
    with pytest.raises((ConfigError, TapeMiss), match=r"clock\.png"):
        replay(run)


def test_the_command_line_takes_the_number_of_threads_and_no_other_method(recorded):
    named = "--replay", recorded.run, *tool_of(recorded)
    assert called(*named, "--parallel", 3).stdout == "42\n"
    assert "--method react" in line_of(called(*named, "--method", "react"))


def test_a_trajectory_that_differs_from_the_replay_is_a_miss(recorded, tmp_path):
    run = changed(recorded, tmp_path / "run", "trajectory.jsonl", b'"found 1"', b'"found 9"')
    done = called("--replay", run, *tool_of(recorded))
    assert done.returncode == 3 and "found 9" in done.stderr and "found 1" in done.stderr
