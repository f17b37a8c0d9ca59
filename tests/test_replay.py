"""A replay is exact: under any threads, in any environment, without network; a difference says where."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest
import requests
import vcr

from orchestra_min import orchestrate
from tests.conftest import ROOT, ConfigError, Options, TapeMiss, pool_at
from tests.program import (
    CLOCK,
    SPEECH,
    called,
    content,
    files_of,
    line_of,
    replay,
    resume,
    tool_file,
)
from tests.scripted import (
    Endpoint,
    act,
    agent,
    complete,
    delegate,
    edge,
    finish,
    is_main,
    last_text,
    thought,
)

MODEL = "gpt-5-mini"
TASKS = (
    {"task_instruction": "when is it open?", "tools": ["library_hours"], "model": MODEL},
    {"task_instruction": "what is said?", "tools": ["ParseAudioAction"], "model": MODEL},
    {"task_instruction": "look at it", "tools": ["ImageAnalysisAction"], "model": "small"},
)
SAMPLES = thought(
    *(agent(id, "SCAgent", "guess") for id in "AB"),
    agent("C", input="join ${A} and ${B}") + edge("A", "C", "B", "C"),
)
MISTAKES = iter(["hm"])


def respond(request: dict[str, Any]) -> Any:
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


class Recorded(NamedTuple):
    folder: Path
    server: Endpoint
    content: list[dict[str, Any]]
    calls: int


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """A run with two models, three tools and two files; its endpoint is closed."""
    folder, server = tmp_path_factory.mktemp("recorded"), Endpoint(respond)
    options, media = Options(tools=(tool_file(folder),)), [("image", CLOCK), ("audio", SPEECH)]
    pool = pool_at(server.url, MODEL, "small")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
        result = orchestrate("What?", media, pool, options, folder / "run")
    server.close()
    assert (result.answer, result.rounds, result.calls) == ("42", 2, 11)
    yield Recorded(folder / "run", server, content(result.events), result.calls)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError(f"a socket to {arguments[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def same_again(recorded: Recorded, parallel: int | None = None) -> None:
    again = replay(recorded.folder, parallel=parallel)
    assert content(again.events) == recorded.content
    assert (again.answer, again.calls, again.paid_usd) == ("42", recorded.calls, 0.0)


# ---- exact ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 3, 5, 8, 17])
def test_a_replay_is_the_same_under_any_threads_and_opens_no_socket(threads, recorded, no_network):
    same_again(recorded, threads)


@pytest.mark.parametrize(
    "variables",
    [
        {"TOKENIZER_NAME": MODEL},  # fails at d04ee41
        {"X_TOKENIZER": "ParseAudioAction"},  # fails at d04ee41
        {"MY_API_KEY": "a1b2c3d4e5f6", "OPENAI_API_KEY": "sk-abcdefghij0123456789"},
        {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "http_proxy": "http://127.0.0.1:9"},
        {"SERPER_API_KEY": "k", "JINA_API_KEY": "k", "TZ": "Asia/Tokyo", "COLUMNS": "20"},
        {f"{name}_{n}": str(n) * 9 for n in range(9) for name in ("A", "X_KEY", "ORCHESTRA")},
    ],
)
def test_a_replay_is_the_same_in_any_environment(variables, recorded, no_network, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    same_again(recorded)


def test_identical_samples_keep_their_own_answers(endpoint, tmp_path):
    numbers = count()

    def answer(request: dict[str, Any]) -> Any:
        if request["messages"][0]["role"] == "system":
            return SAMPLES
        text = last_text(request)
        return f"so\nAnswer: {text.split(chr(10))[0] if 'join' in text else next(numbers)}"

    server = endpoint(answer)
    options = Options(method="mas-orchestra")
    result = orchestrate("?", (), pool_at(server.url), options, tmp_path / "run")
    server.close()
    assert next(numbers) == 10 and result.calls == 12
    for threads in (1, 4, 17):
        assert content(replay(tmp_path / "run", parallel=threads).events) == content(result.events)


# ---- the folder ----------------------------------------------------------------------------------


def test_a_replay_writes_nothing(recorded):
    before = files_of(recorded.folder)
    same_again(recorded)
    assert files_of(recorded.folder) == before


def test_a_copied_folder_replays_wherever_it_lies(recorded, tmp_path):
    copy = tmp_path / "else where" / "my run"
    shutil.copytree(recorded.folder, copy)
    same_again(recorded._replace(folder=copy))


@pytest.mark.parametrize("torn", ['{"v": 1, "call": "r2/ma', "{", '{"v": 1, "call": "\xff'])
@pytest.mark.parametrize("mode", [replay, resume])
def test_a_torn_last_line_of_the_tape_is_left_out(mode, torn, endpoint, tmp_path):
    server = endpoint(lambda request: complete("42"))
    orchestrate("?", (), pool_at(server.url), None, tmp_path / "run")
    with (tmp_path / "run" / "tape.jsonl").open("ab") as file:
        file.write(torn.encode("latin-1"))
    assert mode(tmp_path / "run").answer == "42"
    assert replay(tmp_path / "run").answer == "42" and len(server.requests) == 1


# ---- a difference --------------------------------------------------------------------------------


def tool_of(recorded: Recorded) -> tuple[str, str]:
    return "--tools", f"{recorded.folder.parent}/mine.py:library_hours"


def changed(recorded: Recorded, folder: Path, name: str, old: bytes, new: bytes) -> Path:
    shutil.copytree(recorded.folder, folder)
    data = (folder / name).read_bytes()
    assert old in data
    (folder / name).write_bytes(data.replace(old, new))
    return folder


def test_an_edited_question_is_a_miss_that_names_the_call_and_shows_the_difference(
    recorded, tmp_path
):
    run = changed(recorded, tmp_path / "run", "run.json", b'"What?"', b'"What then?"')
    done = called("--replay", run, *tool_of(recorded))
    rows = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (3, "") and "r1/main" in done.stderr
    assert any(r.startswith("-") and "What?" in r for r in rows)
    assert any(r.startswith("+") and "What then?" in r for r in rows)


def test_an_edited_file_is_said_with_its_name(recorded, tmp_path):
    run = changed(recorded, tmp_path / "run", "media/clock.png", b"IDAT", b"IDAX")
    with pytest.raises((ConfigError, TapeMiss), match=r"clock\.png"):
        replay(run)


def test_the_command_line_takes_the_number_of_threads_and_no_other_method(recorded):
    named = "--replay", recorded.folder, *tool_of(recorded)
    assert called(*named, "--parallel", 3).stdout == "42\n"
    assert "--method react" in line_of(called(*named, "--method", "react"))


def test_an_edited_prompt_exits_with_3_and_shows_the_difference(recorded, tmp_path):
    program = tmp_path / "program"
    left_out = shutil.ignore_patterns(".*", "fixtures", "tests", "training", "runs", "__pycache__")
    shutil.copytree(ROOT, program, ignore=left_out)
    with (program / "prompts" / "orchestra_o1" / "system.md").open("a") as file:
        file.write("\nBe brief about it.\n")
    call = [sys.executable, "orchestra_min.py", "--replay", recorded.folder, *tool_of(recorded)]
    done = subprocess.run(call, cwd=program, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, "") and "r1/main" in done.stderr
    assert any(r.startswith("+") and "Be brief" in r for r in done.stderr.splitlines())


def test_a_trajectory_that_differs_from_the_replay_is_a_miss(recorded, tmp_path):
    run = changed(recorded, tmp_path / "run", "trajectory.jsonl", b'"found 1"', b'"found 9"')
    done = called("--replay", run, *tool_of(recorded))
    assert done.returncode == 3 and "found 9" in done.stderr and "found 1" in done.stderr


# ---- the host program ----------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["requests", "openai"])
def test_calls_of_the_host_program_are_untouched_before_during_and_after(
    library, endpoint, tmp_path
):
    numbers = count()
    other = endpoint(lambda request: f"mine {next(numbers)}")
    client = openai.OpenAI(base_url=other.url, api_key="none")

    def mine(*_: Any) -> None:
        said: list[str] = []

        def ask() -> None:
            messages: Any = [{"role": "user", "content": "mine"}]
            if library == "openai":
                reply = client.chat.completions.create(model="m", messages=messages).to_dict()
            else:
                url = f"{other.url}/chat/completions"
                reply = requests.post(url, json={"messages": messages}, timeout=5).json()
            said.append(reply["choices"][0]["message"]["content"])

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        assert said == [f"mine {len(other.requests) - 1}"]

    mine()
    pool = pool_at(endpoint(lambda request: complete("42")).url)
    orchestrate("?", (), pool, None, tmp_path / "run", listeners=[mine])
    tape = (tmp_path / "run" / "tape.jsonl").read_text()
    replay(tmp_path / "run", listeners=[mine])
    mine()
    assert len(other.requests) > 4 and "mine" not in tape


# fails at d04ee41
def test_a_run_inside_a_cassette_of_the_host_program_has_its_own_tape(endpoint, tmp_path):
    server = endpoint(lambda request: complete("42"))
    with vcr.use_cassette(str(tmp_path / "mine.yaml")):
        for name in ("first", "second"):
            assert orchestrate("?", (), pool_at(server.url), None, tmp_path / name).answer == "42"
    server.close()
    for name in ("first", "second"):
        assert replay(tmp_path / name).answer == "42"
