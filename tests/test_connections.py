"""Connections to an endpoint: the answer of one call does not become that of another, and what comes
slowly ends. The servers here are scripted byte by byte.
"""

import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from orchestra.kernel import http
from orchestra.kernel.http import NoAnswer, by_requests, retry_after_s
from tests.conftest import ROOT, Price
from tests.scripted import Raw, complete, completion, delegate, finish

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
        return by_requests(server.url, body or {}, "key", timeout_s).content
    except NoAnswer as error:
        return error


@pytest.mark.parametrize("first", [
    [CONTINUE + A], [A + B], [A, 0.1, B], [A + b"\r\n"], [A + b'{"x": 1}'], [A + EARLY],
    [chunked(b'"A"') + B], [chunked(b'"A"', rest=b"0\r\n\r\ngarbage")], [chunked(b'"A"', b"content-length: 3")],
    [answer(b'"A"', b"HTTP/1.1 200 OK", b"connection: close")], [answer(b'"A"', b"HTTP/1.0 200 OK")],
    [b'HTTP/1.1 200 OK\r\n\r\n"A"', None],
])  # fmt: skip
def test_what_comes_with_an_answer_does_not_become_the_next_one(first, scripted):
    server = scripted(first, [answer(b'"C"')], [answer(b'"D"')])
    contents = [post(server)]
    time.sleep(0.2 if len(first) > 1 else 0)
    contents += [post(server), post(server)]
    assert contents == [b'"A"', b'"C"', b'"D"']


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
    first = post(server)
    time.sleep(0.2)
    assert [first, post(server)] == [b"", b'"C"']


@pytest.mark.parametrize("interim", [EARLY, PROCESSING, b"HTTP/1.1 101 Switching\r\n\r\n"])
def test_an_interim_answer_ends_its_connection(interim, scripted):
    """urllib3 takes it for the answer; the real one, which comes later, must not be the next."""
    server = scripted([interim, 0.1, A], [answer(b'"C"')])
    first = post(server)
    time.sleep(0.2)
    assert first.billed and "interim" in str(first) and post(server) == b'"C"'


@pytest.mark.parametrize("cut", [
    [answer(b'"A"' + b" " * 90)[:-90], None], [None],
    [chunked(b'"A"', rest=b""), None], [chunked(b'"A"', rest=b"-5\r\n" + B), None],
])  # fmt: skip
def test_an_answer_that_breaks_off_may_be_billed(cut, scripted):
    server = scripted(cut, [B])
    first = post(server)
    assert isinstance(first, NoAnswer) and first.billed and not first.timed_out
    assert post(server) == b'"B"'


@pytest.mark.parametrize("slow", [
    [5], [b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n", *[b"x", 0.05] * 99],
])  # fmt: skip
def test_an_answer_that_is_slow_ends_at_its_deadline(slow, scripted):
    """Each piece comes in time; all of them do not."""
    began = time.monotonic()
    first = post(scripted(slow), timeout_s=0.4)
    assert first.timed_out and first.billed and time.monotonic() - began < 3


def test_an_answer_that_is_too_long_is_none(scripted, monkeypatch):
    monkeypatch.setattr(http, "MAX_BYTES", 1 << 20)
    assert "longer than 1 MiB" in str(post(scripted([answer(b" " * (2 << 20))])))


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/v1", "http://no-such-host.test/v1"])
def test_a_request_that_found_no_server_is_not_billed(address):
    with pytest.raises(NoAnswer) as error:
        by_requests(address, {}, "key", 5.0)
    assert not error.value.billed and not error.value.timed_out


def test_a_connection_that_was_closed_while_idle_costs_nothing(scripted):
    server = scripted([A, None], [B])
    contents = [post(server), time.sleep(0.1), post(server)]  # no NoAnswer, which could be booked
    assert (contents, server.connections) == ([b'"A"', None, b'"B"'], 2)


def test_a_connection_that_ends_after_the_request_was_read_is_booked(run):
    """Whether the endpoint began to work cannot be known."""
    answers = iter(
        [Raw(200, completion(delegate("look"))), OSError(), finish("seen"), complete("42")]
    )
    result = run(respond=lambda request: next(answers), price=Price(10.0, 100.0), budget_usd=2.0)
    assert (result.answer, result.calls) == ("42", 4)  # of 3 answers
    assert result.cost_usd > 0.1


def test_parallel_calls_keep_their_answers(endpoint):
    server = endpoint(lambda request: time.sleep(0.02) or request["n"])
    with ThreadPoolExecutor(8) as threads:
        for _ in range(3):
            made = threads.map(lambda n: by_requests(server.url, {"n": n}, "", 5.0), range(8))
            texts = [json.loads(r.content)["choices"][0]["message"]["content"] for r in made]
            assert texts == [str(n) for n in range(8)]


def test_a_request_leaves_in_one_write(monkeypatch):
    """Two packets would wake the endpoint twice, and cost a switch between threads more."""
    server = Scripted([A], [B])
    sent, sendall = [], socket.socket.sendall
    monkeypatch.setattr(
        socket.socket, "sendall", lambda s, data: sent.append(data) or sendall(s, data)
    )
    with closing(server):
        assert [by_requests(server.url, {"n": n}, "k", 5).content for n in (1, 2)] == [
            b'"A"',
            b'"B"',
        ]
    heads = [data.partition(END) for data in sent if data.startswith(b"POST")]
    assert [body for _, _, body in heads] == [b'{"n": 1}', b'{"n": 2}']


# ---- what the environment says -------------------------------------------------------------------


def test_a_redirect_is_not_followed_and_the_key_goes_nowhere_else(scripted, endpoint):
    elsewhere = endpoint(lambda request: "no")
    fields = b"HTTP/1.1 307 Temporary Redirect", b"location: " + elsewhere.url.encode()
    server = scripted([answer(b"", *fields)])
    response = by_requests(server.url, {}, "key", 5.0)
    assert (response.status, response.location) == (307, elsewhere.url)
    assert elsewhere.requests == []


@pytest.mark.parametrize(("name", "no_proxy", "goes_by"), [
    ("HTTP_PROXY", "", True), ("ALL_PROXY", "", True), ("HTTP_PROXY", "llm.internal", False), ("ALL_PROXY", "llm.internal", False),
])  # fmt: skip
def test_a_proxy_of_the_environment_is_used_unless_it_is_excepted(
    name, no_proxy, goes_by, endpoint, monkeypatch
):
    proxy = endpoint(lambda request: "42")
    monkeypatch.setenv(name, proxy.url.removesuffix("/v1"))
    monkeypatch.setenv("NO_PROXY", no_proxy)
    url = f"http://{name[:4].lower()}{len(no_proxy)}.llm.internal:9/v1"  # a session of its own
    if goes_by:
        assert by_requests(url, {}, "key", 5.0).status == 200 and proxy.paths == [url]
    else:
        with pytest.raises(NoAnswer):
            by_requests(url, {}, "key", 5.0)
        assert proxy.paths == []


@pytest.mark.parametrize("name", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"])
def test_certificates_of_the_environment_are_used(name, tmp_path, monkeypatch):
    for other in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, str(tmp_path))
    assert http.session(f"https://{name[:4].lower()}.llm.internal/v1").verify == str(tmp_path)


def test_each_endpoint_has_one_session_in_a_process_and_no_private_part_is_touched():
    one, other = "http://127.0.0.1:9/v1", "http://127.0.0.1:10/v1"
    assert http.session(one) is http.session(one) is not http.session(other)
    source = (ROOT / "orchestra/kernel/http.py").read_text()
    assert not re.search(r"(?<!self)\._[a-z]", source)


@pytest.mark.parametrize(("header", "seconds"), [
    ("3", 3.0), ("0.5", 0.5), ("", 0.0), ("soon", 0.0), ("-1", 0.0), ("1e9", 0.0), ("1.2.3", 0.0),
    ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("Wed, 99 Oct 2015", 0.0),
])  # fmt: skip
def test_retry_after_is_seconds_or_a_date(header, seconds):
    assert retry_after_s(header) == seconds


def test_retry_after_as_a_date_is_the_time_until_then():
    then = datetime.now(UTC) + timedelta(seconds=90)
    assert 80 < retry_after_s(format_datetime(then, usegmt=True)) <= 90


def test_a_request_may_take_as_long_as_the_call_to_be_sent(monkeypatch):
    """Not as long as a connection alone."""
    monkeypatch.setattr(http, "CONNECT_S", 0.3)
    listening = socket.create_server(("127.0.0.1", 0))

    def read_slowly():
        connected, _ = listening.accept()
        left = 24 << 20
        with connected:
            while left > 0:
                left -= len(connected.recv(1 << 18))
                time.sleep(0.01)
            connected.sendall(A)

    thread = threading.Thread(target=read_slowly, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    began_s = time.monotonic()
    assert by_requests(url, {"x": "x" * (24 << 20)}, "key", 20).content == b'"A"'
    assert time.monotonic() - began_s > 0.3
    listening.close()
