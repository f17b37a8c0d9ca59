"""The tape's promises, one test each: shared/replay-findings has the figures of stock vcrpy."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import openai
import pytest
import requests

from orchestra import secrets
from orchestra.lines import Appender, read
from orchestra.replay import Cancelled, Tape, TapeMiss, TapeWriteError
from tests.conftest import ROOT
from tests.scripted import Raw, completion

Chat = list[dict[str, str]]


def counting() -> Any:
    """A respond function whose every answer is another one."""
    numbers = iter(range(10**9))
    return lambda request: f"answer {next(numbers)}"


def ask(client: openai.OpenAI, text: str) -> str:
    messages: Any = [{"role": "user", "content": text}]
    return (
        client.chat.completions.create(model="m", messages=messages).choices[0].message.content
        or ""
    )


def openai_at(url: str, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key="none", **options)


def in_threads(tape: Tape, threads: int, names: list[str], work: Any) -> dict[str, str]:
    def one(name: str) -> tuple[str, str]:
        time.sleep(random.random() * 0.003)
        with tape.logical_call(*name.split("/")):
            return name, work(name)

    shuffled = random.sample(names, len(names))
    with ThreadPoolExecutor(threads) as executor:
        return dict(executor.map(one, shuffled))


@pytest.mark.parametrize("library", ["openai", "requests"])
def test_identical_requests_keep_their_own_answers_200_of_200(library, endpoint, tmp_path):
    server = endpoint(counting())
    client = openai_at(server.url)

    def work(name: str) -> str:
        prompt = name.partition("/")[0]  # 25 prompts, 8 samples each
        if library == "openai":
            return ask(client, prompt)
        body = {"messages": [{"role": "user", "content": prompt}]}
        reply = requests.post(f"{server.url}/chat/completions", json=body, timeout=5)
        return str(reply.json()["choices"][0]["message"]["content"])

    names = [f"p{n % 25}/sample{n // 25}" for n in range(200)]
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape:
        recorded = in_threads(tape, 8, names, work)
    assert len(set(recorded.values())) == 200
    for threads in (1, 8, 17):
        with closing(Tape(tmp_path / "tape.jsonl", "replay")) as tape:
            assert in_threads(tape, threads, names, work) == recorded
    assert len(server.requests) == 200


def test_what_was_recorded_once_is_played_once(endpoint, tmp_path):
    server = endpoint(counting())
    client = openai_at(server.url)
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape, tape.logical_call("a"):
        ask(client, "x")
    with closing(Tape(tmp_path / "tape.jsonl", "replay")) as tape, tape.logical_call("a"):
        assert ask(client, "x") == "answer 0"
        with pytest.raises(TapeMiss, match="asks again for what it recorded once"):
            ask(client, "x")


def test_answers_of_this_very_run_are_never_replayed(endpoint, tmp_path):
    server = endpoint(counting())
    client = openai_at(server.url)
    with closing(Tape(tmp_path / "tape.jsonl", "resume")) as tape, tape.logical_call("a"):
        assert [ask(client, "x") for _ in range(3)] == ["answer 0", "answer 1", "answer 2"]


def test_a_miss_names_the_call_and_shows_the_difference(endpoint, tmp_path):
    client = openai_at(endpoint(counting()).url)
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape, tape.logical_call("r2", "t1"):
        ask(client, "the old words\nand more")
    with closing(Tape(tmp_path / "tape.jsonl", "replay")) as tape, tape.logical_call("r2", "t1"):
        with pytest.raises(TapeMiss) as miss:
            ask(client, "the new words\nand more")
    assert "'r2/t1' differs from its recording" in str(miss.value)
    assert "-" in str(miss.value) and "the old words" in str(miss.value)
    assert "the new words" in str(miss.value)


def test_a_miss_is_no_exception_that_a_tool_could_swallow(endpoint, tmp_path):
    client = openai_at(endpoint(counting()).url)
    (tmp_path / "tape.jsonl").write_text("")
    with closing(Tape(tmp_path / "tape.jsonl", "replay")) as tape, tape.logical_call("a"):
        with pytest.raises(TapeMiss, match="nothing recorded for the call 'a'"):
            try:
                ask(client, "x")
            except Exception:  # what careless code does
                pytest.fail("swallowed")


def test_resume_pays_only_for_what_is_missing(endpoint, tmp_path):
    server = endpoint(counting())
    client = openai_at(server.url)
    names = [f"t{n}" for n in range(50)]
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape:
        before = in_threads(tape, 8, names, lambda name: ask(client, name))
    with closing(Tape(tmp_path / "tape.jsonl", "resume")) as tape:
        changed = lambda name: ask(client, "another prompt" if name == "t7" else name)  # noqa: E731
        after = in_threads(tape, 8, names, changed)
    assert len(server.requests) == 51
    assert {n for n in names if before[n] != after[n]} == {"t7"}


@pytest.mark.parametrize("status", [401, 404, 408, 409, 429, 500, 503])
def test_resume_asks_again_for_what_was_refused(status, endpoint, tmp_path):
    answers = iter([Raw(status, {"error": {"message": "no"}}), completion("fine")])
    client = openai_at(endpoint(lambda request: next(answers)).url, max_retries=0)
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape, tape.logical_call("a"):
        with pytest.raises(openai.APIStatusError):
            ask(client, "x")
    with closing(Tape(tmp_path / "tape.jsonl", "resume")) as tape, tape.logical_call("a"):
        assert ask(client, "x") == "fine"


def test_a_completion_without_a_choice_is_asked_again(endpoint, tmp_path):
    answers = iter([Raw(200, "<html>"), Raw(200, {"choices": []}), completion("fine")])
    server = endpoint(lambda request: next(answers))
    url = f"{server.url}/chat/completions"
    for _ in range(2):
        with closing(Tape(tmp_path / "tape.jsonl", "resume")) as tape, tape.logical_call("a"):
            requests.post(url, json={"a": 1}, timeout=5)
    with closing(Tape(tmp_path / "tape.jsonl", "resume")) as tape, tape.logical_call("a"):
        assert requests.post(url, json={"a": 1}, timeout=5).json()["choices"]


def test_a_replay_plays_the_last_outcome_and_does_not_wait(endpoint, tmp_path):
    answers = iter([Raw(429, {}, retry_after_ms="5"), Raw(500, {}), completion("fine")])
    client = openai_at(endpoint(lambda request: next(answers)).url)
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape, tape.logical_call("a"):
        assert ask(client, "x") == "fine"
    started = time.monotonic()
    with closing(Tape(tmp_path / "tape.jsonl", "replay")) as tape, tape.logical_call("a"):
        assert ask(client.with_options(max_retries=0), "x") == "fine"
    assert time.monotonic() - started < 0.3


@pytest.mark.parametrize("library", ["openai", "requests"])
def test_a_timeout_is_replayed_as_the_timeout_it_was(library, endpoint, tmp_path):
    def work(url: str) -> None:
        if library == "openai":
            ask(openai_at(url, max_retries=0, timeout=0.2), "x")
        else:
            requests.post(url, json={}, timeout=0.2)

    url = endpoint(counting(), delay_s=1.0).url
    failure = openai.APITimeoutError if library == "openai" else requests.ReadTimeout
    for mode in ("record", "replay"):
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape, tape.logical_call("a"):
            with pytest.raises(failure):
                work(url)


def test_a_call_that_goes_around_the_tape_opens_no_socket(tmp_path):
    import urllib.request

    (tmp_path / "tape.jsonl").write_text("")
    with closing(Tape(tmp_path / "tape.jsonl", "replay")) as tape, tape.logical_call("r1", "t1"):
        with pytest.raises(TapeMiss, match="'r1/t1' went around the tape"):
            urllib.request.urlopen("http://127.0.0.1:9/", timeout=1)


@pytest.mark.parametrize("library", ["openai", "requests"])
def test_calls_outside_a_logical_call_pass_untouched_and_unrecorded(library, endpoint, tmp_path):
    server = endpoint(counting())
    (tmp_path / "tape.jsonl").write_text("")
    with closing(Tape(tmp_path / "tape.jsonl", "replay")):
        if library == "openai":
            assert ask(openai_at(server.url), "mine") == "answer 0"
        else:
            assert requests.post(f"{server.url}/x", json={}, timeout=5, stream=True).raw.read()
    assert (tmp_path / "tape.jsonl").read_text() == ""


def test_two_tapes_at_once_keep_apart(endpoint, tmp_path):
    client = openai_at(endpoint(counting()).url)
    tapes = [Tape(tmp_path / f"{n}.jsonl", "record") for n in (1, 2)]

    def work(tape: Tape) -> None:
        for n in range(30):
            with tape.logical_call(f"c{n}"):
                ask(client, "x")

    with ThreadPoolExecutor(2) as executor:
        list(executor.map(work, tapes))
    assert [sum(1 for _ in read(t.file)) for t in tapes] == [30, 30]
    assert not {e["response"]["body"] for e in read(tapes[0].file)} & {
        e["response"]["body"] for e in read(tapes[1].file)
    }


def test_a_big_base64_run_is_kept_once(endpoint, tmp_path):
    client = openai_at(endpoint(counting()).url)
    picture = "data:image/png;base64," + "iVBORw0K" * 100_000
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape:
        for n in range(5):
            with tape.logical_call(f"t{n}"):
                ask(client, picture)
    assert (tmp_path / "tape.jsonl").stat().st_size < 10_000
    assert len(list((tmp_path / "blobs").iterdir())) == 1
    with closing(Tape(tmp_path / "tape.jsonl", "replay")) as tape, tape.logical_call("t3"):
        assert ask(client, picture) == "answer 3"


def test_a_binary_body_and_a_random_multipart_boundary_replay(endpoint, tmp_path):
    server = endpoint(lambda request: Raw(200, bytes(range(256)), content_type="application/x"))
    sound = {"file": ("a.wav", bytes(range(256)) * 50)}
    got = []
    for mode in ("record", "replay"):
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape, tape.logical_call("a"):
            got.append(requests.post(f"{server.url}/audio", files=sound, timeout=5).content)
    assert got[0] == got[1] == bytes(range(256))
    assert len(server.requests) == 1


def test_text_that_looks_like_a_blob_is_only_text(tmp_path):
    hostile = f"blob:text:{'0' * 64} blob:raw:bytes:{'1' * 64} blob:bytes:{'a' * 64}"
    for mode in ("record", "replay"):
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape, tape.logical_call("a"):
            assert tape.local("page", {"url": hostile}, lambda: hostile) == hostile


def test_a_call_that_is_no_http_is_on_the_same_tape(tmp_path):
    ran = []
    for mode in ("record", "replay", "resume"):
        with (
            closing(Tape(tmp_path / "tape.jsonl", mode)) as tape,
            tape.logical_call("r1", "t1", "s1"),
        ):
            value = tape.local(
                "code", {"code": "1+1"}, lambda: ran.append(1) or {"out": "2", "n": 3}
            )
            assert value == {"out": "2", "n": 3}
    assert len(ran) == 1


def test_no_secret_reaches_the_tape(endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", 'pa"ss/word-0123456789')
    secrets.look_up()
    echo = endpoint(lambda request: "you said " + request["messages"][0]["content"])
    client = openai.OpenAI(base_url=echo.url, api_key='pa"ss/word-0123456789')
    said = 'pa"ss/word-0123456789 and sk-abcdefghij0123456789 and Bearer abcdef0123456789abcdef'
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape, tape.logical_call("a"):
        ask(client, said)
        requests.get(echo.url.replace("/v1", "/x?api_key=topsecretvalue1"), timeout=5)
    text = (tmp_path / "tape.jsonl").read_text()
    for secret in ("word-0123456789", "sk-abcdefghij", "abcdef0123456789", "topsecretvalue1"):
        assert secret not in text
    assert "authorization" not in text.lower()


@pytest.fixture(autouse=True)
def _secrets_of_this_environment(monkeypatch):
    yield
    monkeypatch.undo()
    secrets.look_up()


def test_ordinary_words_are_not_taken_for_secrets():
    text = "The Bearer of this risk-management-of-everything paper may pass; sk-learn is fine."
    assert secrets.scrub(text) == text


def test_a_torn_last_line_is_left_out_and_the_next_one_is_whole(tmp_path):
    file = tmp_path / "tape.jsonl"
    with closing(Tape(file, "record")) as tape, tape.logical_call("a"):
        tape.local("x", {}, lambda: 1)
    with file.open("a") as f:
        f.write('{"v": 1, "call": "b", "key": "to')
    with closing(Tape(file, "resume")) as tape, tape.logical_call("c"):
        tape.local("y", {}, lambda: 2)
    with closing(Tape(file, "replay")) as tape:
        for call, kind, value in (("a", "x", 1), ("c", "y", 2)):
            with tape.logical_call(call):
                assert tape.local(kind, {}, lambda: None) == value


def test_threads_append_whole_lines(tmp_path):
    lines = Appender(tmp_path / "l.jsonl")
    with ThreadPoolExecutor(16) as executor:
        list(executor.map(lambda n: lines.append({"n": n, "text": "x" * (n % 7000)}), range(800)))
    lines.close()
    assert sorted(row["n"] for row in read(tmp_path / "l.jsonl")) == list(range(800))


def test_no_call_starts_once_the_tape_can_not_be_written(endpoint, tmp_path):
    server = endpoint(counting())
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape, tape.logical_call("a"):
        tape.close()  # as good as a full disk: the next write fails
        for _ in range(3):
            with pytest.raises(TapeWriteError, match="resume the run"):
                ask(openai_at(server.url), "x")
    assert len(server.requests) == 1


def test_a_cancelled_run_starts_no_further_call(endpoint, tmp_path):
    server = endpoint(counting())
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape, tape.logical_call("a"):
        tape.cancelled.set()
        with pytest.raises(Cancelled):
            ask(openai_at(server.url), "x")
    assert server.requests == []


def test_a_fact_about_an_endpoint_is_known_from_the_start_of_a_replay(tmp_path):
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape:
        tape.learn("small refuses decision", "yes")
    with closing(Tape(tmp_path / "tape.jsonl", "replay")) as tape:
        assert tape.facts == {"small refuses decision": "yes"}


def test_a_missing_blob_is_said(endpoint, tmp_path):
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape, tape.logical_call("a"):
        tape.local("x", {}, lambda: "A" * 5000)
    next((tmp_path / "blobs").iterdir()).unlink()
    with closing(Tape(tmp_path / "tape.jsonl", "replay")) as tape, tape.logical_call("a"):
        with pytest.raises(TapeMiss, match="is missing: copy the whole run folder"):
            tape.local("x", {}, lambda: None)


KILLED = """
import sys, threading, openai
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from orchestra.replay import Tape
tape = Tape(Path(sys.argv[1]), "resume")
client = openai.OpenAI(base_url=sys.argv[2], api_key="none")
def one(n):
    with tape.logical_call(f"t{n}"):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": str(n)}])
with ThreadPoolExecutor(8) as executor:
    list(executor.map(one, range(100)))
print("whole")
"""


def test_kill_9_loses_only_what_was_in_flight(endpoint, tmp_path):
    server = endpoint(counting(), delay_s=0.02)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "tape.jsonl"), server.url]
    for n in range(1, 3):
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        while len(server.requests) < 35 * n and process.poll() is None:
            time.sleep(0.001)
        process.kill()
        process.communicate()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "whole\n"
    assert len(server.requests) <= 100 + 2 * 8


def test_the_canonical_request_does_not_depend_on_the_order_of_keys(endpoint, tmp_path):
    server = endpoint(counting())
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape, tape.logical_call("a"):
        requests.post(f"{server.url}/x", data=json.dumps({"a": 1, "b": [2]}), timeout=5)
    with closing(Tape(tmp_path / "tape.jsonl", "replay")) as tape, tape.logical_call("a"):
        assert requests.post(f"{server.url}/x", data='{"b":[2],  "a":1}', timeout=5).ok


def test_pool_threads_start_without_a_name_so_it_is_entered_inside(endpoint, tmp_path):
    server = endpoint(counting())
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape, tape.logical_call("outer"):
        thread = threading.Thread(target=ask, args=(openai_at(server.url), "x"))
        thread.start()
        thread.join()
    assert list(read(tmp_path / "tape.jsonl")) == []  # the thread was in no logical call
