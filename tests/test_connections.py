"""Connections to an endpoint: the answer of one call never becomes that of another, whatever a server
sends. The servers here are scripted byte by byte.
"""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestra.runtime import connections, http
from orchestra.runtime.tape_file import exchanges
from tests.conftest import Price
from tests.program import called, line_of
from tests.scripted import Raw, complete, completion, delegate, finish, is_main

END = b"\r\n\r\n"


def answer(body, head=b"HTTP/1.1 200 OK", *fields):
    rows = [head, *fields, b"content-length: %d" % len(body)]
    return b"\r\n".join(rows) + END + body


def chunked(body, *fields, rest=b"0\r\n\r\n"):
    rows = [b"HTTP/1.1 200 OK", b"transfer-encoding: chunked", *fields]
    return b"\r\n".join(rows) + END + b"%x\r\n%b\r\n" % (len(body), body) + rest


EARLY = b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
PROCESSING = b"HTTP/1.1 102 Processing\r\n\r\n"
A, B = answer(b'"A"'), answer(b'"B"')


class Scripted:
    """The n-th request to arrive, on whatever connection, gets the pieces of `script[n]`: bytes are sent,
    a number is waited for, None closes the connection.
    """

    def __init__(self, *script):
        self.script, self.connections, self.lock = iter(script), 0, threading.Lock()
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}/v1"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with suppress(OSError):
            while True:
                connected, _ = self.listening.accept()
                self.connections += 1
                threading.Thread(target=self.serve, args=(connected,), daemon=True).start()

    def serve(self, connected):
        with closing(connected), connected.makefile("rb") as file, suppress(OSError):
            while read_request(file):
                with self.lock:
                    pieces = next(self.script, [None])
                for piece in pieces:
                    if piece is None:
                        return
                    if isinstance(piece, bytes):
                        connected.sendall(piece)
                    else:
                        time.sleep(piece)

    def close(self):
        self.listening.close()


def read_request(file):
    length = 0
    while (line := file.readline()) not in (b"\r\n", b""):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return bool(line) and (file.read(length) or True)


@pytest.fixture
def scripted():
    servers = []

    def start(*script):
        servers.append(Scripted(*script))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def post(server, timeout_s=5.0, body=None):
    """The content of the answer, or why there is none."""
    try:
        return http.post(server.url, body or {}, {}, timeout_s).content
    except http.NoAnswer as error:
        return error


@pytest.mark.parametrize("first", [
    [EARLY, 0.2, A], [EARLY + A], [PROCESSING, EARLY, 0.2, A], [PROCESSING * 20 + A],  # interim
    [A + B], [A, 0.1, B], [A + b"\r\n"], [A + b'{"x": 1}'], [A + EARLY],  # more than one answer
    [answer(b'"A"', b"HTTP/1.1 200 OK", b"transfer-encoding: identity") + B],
    [chunked(b'"A"') + B], [chunked(b'"A"', rest=b"0\r\n\r\ngarbage")],
    [chunked(b'"A"', b"content-length: 3")],
    [answer(b'"A"', b"HTTP/1.1 200 OK", b"connection: close")], [answer(b'"A"', b"HTTP/1.0 200 OK")],
    [b'HTTP/1.1 200 OK\r\n\r\n"A"', None],
])  # fmt: skip
def test_what_comes_with_an_answer_does_not_become_the_next_one(first, scripted):
    """The connection ends, and the next call gets the second script on a new one."""
    server = scripted(first, [answer(b'"C"')], [answer(b'"D"')])
    contents = [post(server)]
    time.sleep(0.2 if len(first) > 1 else 0)
    contents += [post(server), post(server)]
    assert contents == [b'"A"', b'"C"', b'"D"']
    assert server.connections == 2


@pytest.mark.parametrize("kept", [
    A, CONTINUE + A, chunked(b'"A"'), answer(b'"A"', b"HTTP/1.0 200 OK", b"connection: keep-alive"),
    answer(b'"A"', b"HTTP/1.1 500 Oh"),
])  # fmt: skip
def test_a_connection_is_kept_after_one_clean_answer(kept, scripted):
    server = scripted([kept], [kept], [kept])
    assert [post(server) for _ in range(3)] == [b'"A"'] * 3
    assert server.connections == 1


@pytest.mark.parametrize("head", [b"HTTP/1.1 204 No Content", b"HTTP/1.1 304 Not Modified"])
def test_a_body_that_must_not_be_there_is_not_the_next_answer(head, scripted):
    server = scripted([answer(b'"A"', head) + B, 0.1, B], [answer(b'"C"')])
    assert [post(server), post(server)] == [b"", b'"C"']
    assert server.connections == 2


def test_an_answer_that_switches_the_protocol_is_a_status(scripted):
    server = scripted([b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\n\r\n" + B], [A])
    first = http.post(server.url, {}, {}, 5.0)
    assert (first.status, first.content, post(server)) == (101, b"", b'"A"')


@pytest.mark.parametrize("cut", [
    [answer(b'"A"' + b" " * 90)[:-90], None], [EARLY, None], [None],
    [chunked(b'"A"', rest=b""), None], [chunked(b'"A"', rest=b"-5\r\n" + B), None],
    [b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 9\r\n\r\n" + b"12345", None],
])  # fmt: skip
def test_an_answer_that_breaks_off_may_be_billed(cut, scripted):
    server = scripted(cut, [B])
    first = post(server)
    assert isinstance(first, http.NoAnswer) and first.sent and not first.timed_out
    assert post(server) == b'"B"'


@pytest.mark.parametrize("drip", [
    [CONTINUE, 0.05] * 99, [EARLY, 0.05] * 99, [b"HTTP/1.1 200 OK\r\n", *[b"x: y\r\n", 0.05] * 90],
    [b"H", 0.05] * 99, [b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n", *[b"x", 0.05] * 99],
])  # fmt: skip
def test_an_answer_that_drips_ends_at_its_deadline(drip, scripted):
    """Each piece comes in time; all of them do not."""
    began = time.monotonic()
    first = post(scripted(drip), timeout_s=0.4)
    assert first.timed_out and first.sent and time.monotonic() - began < 3


# ---- what may be billed --------------------------------------------------------------------------

LARGE = {"text": "x" * 30_000_000}


def unread(scripted, reply, monkeypatch):
    """What comes of a large request to a server that reads none of it, sends `reply` and closes."""
    monkeypatch.setattr("tests.test_connections.read_request", lambda file: True)
    return post(scripted([reply, None]), body=LARGE)


def test_a_request_that_never_left_whole_is_not_billed(scripted, monkeypatch):
    first = unread(scripted, b"", monkeypatch)
    assert isinstance(first, http.NoAnswer) and not first.sent


def test_an_answer_to_a_request_that_never_left_whole_is_not_taken(scripted, monkeypatch):
    first = unread(scripted, A, monkeypatch)
    assert isinstance(first, http.NoAnswer) and not first.sent


def test_a_connection_that_was_closed_while_idle_costs_nothing(scripted):
    server = scripted([A, None], [B])
    contents = [post(server), time.sleep(0.1), post(server)]  # no NoAnswer, which could be booked
    assert (contents, server.connections) == ([b'"A"', None, b'"B"'], 2)


def test_a_connection_that_ends_after_the_request_was_read_is_booked(endpoint, run):
    """Whether the endpoint began to work cannot be known."""
    answers = iter(
        [Raw(200, completion(delegate("look"))), OSError(), finish("seen"), complete("42")]
    )
    result = run(respond=lambda request: next(answers), price=Price(10.0, 100.0), budget_usd=2.0)
    assert (result.answer, result.calls) == ("42", 4)  # of 3 answers
    assert result.cost_usd > 0.1


# ---- how many ------------------------------------------------------------------------------------


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_connections_to_many_endpoints_are_bounded(scripted, monkeypatch):
    monkeypatch.setattr(connections, "IDLE", 3)
    servers = [scripted([A], [A]) for _ in range(40)]
    before = open_files()
    for server in [*servers, *servers]:
        assert post(server) == b'"A"'
    assert len(connections.Idle.kept) <= 3
    until = time.monotonic() + 5  # servers close theirs when they notice
    while open_files() > before + 2 * 3 and time.monotonic() < until:
        time.sleep(0.01)
    assert open_files() <= before + 2 * 3


def test_a_connection_that_was_idle_for_long_is_not_used_again(scripted, monkeypatch):
    server = scripted([A], [A], [A])
    post(server)
    monkeypatch.setattr(connections, "IDLE_S", 0.0)
    assert (post(server), server.connections) == (b'"A"', 2)
    assert connections.Idle.kept == {}


def test_parallel_calls_keep_their_connections(endpoint):
    server = endpoint(lambda request: time.sleep(0.05) or request["n"])
    with ThreadPoolExecutor(8) as threads:
        for _ in range(3):
            made = threads.map(lambda n: http.post(server.url, {"n": n}, {}, 5.0), range(8))
            texts = [json.loads(r.content)["choices"][0]["message"]["content"] for r in made]
            assert texts == [str(n) for n in range(8)]
    assert 1 <= len(connections.Idle.kept) <= 8


# ---- what the machine lacks ----------------------------------------------------------------------


@pytest.mark.parametrize("name", connections.CA_BUNDLES)
def test_missing_certificates_are_named_before_the_first_call(name, tmp_path):
    """`http` needs none."""
    missing = {name: f"{tmp_path}/none.pem"}
    ask = "--question", "?", "--model", "m", "--out", tmp_path / "run"
    line = line_of(called(*ask, at="https://127.0.0.1:9/v1", **missing))
    assert f"{name}={tmp_path}/none.pem" in line and not (tmp_path / "run").exists()
    assert name not in line_of(called(*ask, at="http://127.0.0.1:9/v1", **missing), code=4)


@pytest.fixture
def starved(endpoint, tmp_path):
    """An endpoint and what to ask; then the last line of a command whose machine lacks something, and
    the calls on its tape.
    """

    def respond(request):
        if is_main(request):
            return delegate("look", "look again")
        started.working.set()
        return started.work

    def ended(done):
        line = line_of(done, code=4)
        assert f"--resume {tmp_path}/run" in line
        return line, [row["call"] for row in exchanges(tmp_path / "run/tape.jsonl")]

    started = SimpleNamespace(work=finish("seen"), working=threading.Event(), ended=ended)
    started.server = endpoint(respond)
    started.ask = "--question", "?", "--model", "m", "--out", tmp_path / "run", "--parallel", 2
    return started


def test_a_machine_without_threads_is_one_line_and_keeps_what_was_paid(starved, monkeypatch):
    start = threading.Thread.start

    def start_one(thread):
        if thread.name.startswith("sub-agent_1"):
            starved.working.wait(10)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    line, calls = starved.ended(called(*starved.ask, at=starved.server.url))
    assert "--parallel" in line and calls[:2] == ["r1/main/a1", "r1/t1/s1"]
    assert len(calls) == len(starved.server.requests)  # a thread that was started may do both


def test_a_machine_without_memory_is_one_line_and_keeps_what_was_paid(starved, monkeypatch):
    read = http._content

    def read_while_there_is_memory(response):
        if starved.working.is_set():  # the sub-agents were asked
            raise MemoryError
        return read(response)

    monkeypatch.setattr(http, "_content", read_while_there_is_memory)
    line, calls = starved.ended(called(*starved.ask, at=starved.server.url))
    assert "memory" in line and calls == ["r1/main/a1"]
