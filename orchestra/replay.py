"""The tape: every paid call on disk before anything else happens with it; replay, resume and fork from it.

A tape is a JSONL file, one line an exchange, in one flushed write as soon as the answer is in. An exchange is found
again by (logical call, SHA-256 of the canonical request), so thread timing plays no part:

    with tape.logical_call("r1", "t2", "s1"):           # entered inside the worker: round 1, sub-task t2, step 1
        client.post(...)                                # openai (httpx2) and requests are recorded or played
        tape.local("code", arguments, run)              # so is any JSON-valued function

It is vcrpy's Cassette, driven by vcrpy's own transport stub. What vcrpy lacks and this adds: an index instead of pairwise
matching, a write per exchange, transport failures, base64 kept once, and calls that are no HTTP. Nothing outside a
logical call is touched: the host program's clients work as if this file were not there.

    record   a new tape                       a miss asks the endpoint
    resume   plays the answers it has         a miss asks; refusals and failures are asked again
    replay   plays all, opens no socket       a miss raises TapeMiss and shows the difference
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import hashlib
import io
import json
import os
import re
import sys
import textwrap
import threading
import urllib.parse
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import httpx2
import requests
import urllib3
from vcr.cassette import Cassette
from vcr.filters import decode_response
from vcr.record_mode import RecordMode
from vcr.request import Request
from vcr.stubs.httpx_stubs import vcr_handle_request

from orchestra.vocabulary import EndOfRun

VERSION = 1
Mode = Literal["record", "resume", "replay"]
FREE_BYTES = 8 << 20  # no call is started with less disk than this: its answer could not be kept
PLAYED = "x-orchestra-played"  # on answers that come from the tape: nothing was paid for them now
RETRYABLE = {408, 409, 429, *range(500, 600)}
KEPT_REQUEST_HEADERS = {"content-type"}  # allow-lists: any other header may carry a secret
KEPT_RESPONSE_HEADERS = {"content-type", "content-encoding", "location", "retry-after", "retry-after-ms"}
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.I)
SECRET_QUERY = re.compile(r"([?&][^=&]*(?:key|token|secret|passw|sig)[^=&]*=)[^&#]*", re.I)
SECRET_TEXT = re.compile(  # shaped like a key, with a digit in it: words are none
    r"\b(?:(?:sk|pk|rk|hf|gsk|xai|jina|ghp)[-_]|AIza)(?=[\w-]*\d)[\w-]{16,}|(?<=Bearer )(?=[\w.~+/=-]*\d)[\w.~+/=-]{16,}"
)
BASE64_RUN = re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{4096,}={0,2}")
BLOB = re.compile(r"blob:(text|bytes):([0-9a-f]{64})")


class TapeMiss(EndOfRun):
    """A replay asked for something the tape does not hold."""


class TapeWriteError(EndOfRun):
    """The tape can not be written (a full disk): no further call is started."""


class Cancelled(EndOfRun):
    """The run was interrupted: no further call is started."""


@dataclass(frozen=True)
class Call:
    """The logical call a thread is in: the tape and a name such as r2/t1/s3."""

    tape: Tape
    name: str


_call: ContextVar[Call | None] = ContextVar("logical_call", default=None)


def current_call() -> Call | None:
    return _call.get()


# ---- secrets and the canonical request -----------------------------------------------------------


@lru_cache(maxsize=8)
def _secrets(environment: frozenset[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """(spelling, placeholder) of every secret in the environment, longest first."""
    found = set()
    for name, value in environment:
        if SECRET_NAME.search(name) and len(value) >= 8:
            for spelling in (value, json.dumps(value)[1:-1], urllib.parse.quote(value, safe="")):
                found.add((spelling, f"<{name}>"))
    return tuple(sorted(found, key=lambda s: (-len(s[0]), s)))


def scrub(text: str) -> str:
    """`text` without the environment's secrets and without anything shaped like a key."""
    for secret, placeholder in _secrets(frozenset(os.environ.items())):
        text = text.replace(secret, placeholder)
    return SECRET_TEXT.sub("<SECRET>", text)


def canonical(method: str, uri: str, body: str, indent: int | None = None) -> str:
    """The request as text in which equal requests are equal; with `indent`, for people to read."""
    with contextlib.suppress(ValueError):
        body = json.dumps(json.loads(body), sort_keys=True, ensure_ascii=False, indent=indent)
    return f"{method} {uri}\n{body}"


# ---- the tape ------------------------------------------------------------------------------------


class Tape(Cassette):  # type: ignore[misc]
    """vcrpy's cassette with an index, one write an exchange, and blobs beside it in `blobs/`.

    Raises TapeMiss, TapeWriteError or Cancelled from any thread; all three end the run.
    """

    def __init__(self, path: Path, mode: Mode) -> None:
        vcr_mode = {"record": RecordMode.ONCE, "resume": RecordMode.NEW_EPISODES, "replay": RecordMode.NONE}[mode]
        super().__init__(str(path), record_mode=vcr_mode)
        self.file, self.blobs, self.mode = path, path.parent / "blobs", mode
        self.facts: dict[str, str] = {}
        self.cancelled = threading.Event()
        self.exchanges = 0
        self._lock = threading.Lock()
        self._unplayed: dict[tuple[str, str], deque[dict[str, Any]]] = defaultdict(deque)
        self._recorded: dict[str, list[dict[str, Any]]] = defaultdict(list)  # by call, for the words of a miss
        self._failed_write = ""
        if mode != "record":
            self._load()
        self._fd = -1 if mode == "replay" else os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        _patch_once()
        if mode == "replay":
            _guard_sockets_once()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @contextlib.contextmanager
    def logical_call(self, *parts: object) -> Iterator[None]:
        """Name the calls made inside, e.g. logical_call("r2", "t5", "s1"). Enter it inside the worker thread."""
        token = _call.set(Call(self, "/".join(map(str, parts))))
        try:
            yield
        finally:
            _call.reset(token)

    def learn(self, fact: str, value: str) -> None:
        """Keep what was found out about an endpoint; a replay knows it from the start, so no order of threads matters."""
        with self._lock:
            if fact not in self.facts and self.mode != "replay":
                self._write({"v": VERSION, "fact": fact, "value": value})
            self.facts[fact] = value

    # -- vcrpy's three hooks: is there an answer, play it, keep one

    def can_play_response_for(self, request: Request) -> bool:
        """Take the next recorded answer of this very call off the tape, under the lock: no other thread gets it."""
        if not hasattr(request, "_key"):
            request._key, request._clean = self._key(request)
        if not hasattr(request, "_entry"):
            with self._lock:
                if self._unplayed.get(request._key):
                    request._entry = self._unplayed[request._key].popleft()
                    return True
            self._may_ask(request)
            return False
        return True

    def play_response(self, request: Request) -> Any:
        entry = request._entry
        if "error" in entry:
            raise _failure(entry["error"], request)
        response = entry["response"]
        headers = {PLAYED: ["yes"], **response["headers"]}
        return {"status": response["status"], "headers": headers, "body": {"string": self._unpack(response["body"])}}

    def append(self, request: Request, response: Any) -> None:
        response = decode_response(response) if response["body"]["string"] else response
        kept = {k: v for k, v in response["headers"].items() if k.lower() in KEPT_RESPONSE_HEADERS}
        body = self._pack(response["body"]["string"])
        self._keep(request, {"response": {"status": response["status"], "headers": kept, "body": body}})

    def append_failure(self, request: Request, failure: Exception) -> None:
        """A timeout or a refused connection is an outcome too: without it a replay would miss it."""
        error = {"library": type(failure).__module__.split(".")[0], "type": type(failure).__name__, "message": scrub(str(failure))}
        self._keep(request, {"error": error})

    def local(self, kind: str, arguments: dict[str, Any], function: Callable[[], Any]) -> Any:
        """`function()`, a call that is no HTTP, recorded and played by the same key. Its value must be JSON."""
        request = Request("LOCAL", f"local:{kind}", json.dumps(arguments), {})
        if self.can_play_response_for(request):
            return json.loads(self._unpack(request._entry["result"]))
        packed = self._pack(json.dumps(function(), ensure_ascii=False).encode("utf-8", "backslashreplace"))
        self._keep(request, {"result": packed})
        return json.loads(self._unpack(packed))  # what a replay will see, to the byte

    # -- keys

    def _key(self, request: Request) -> tuple[tuple[str, str], dict[str, Any]]:
        call = _call.get()
        assert call is not None, "only requests of a logical call reach the tape"
        body = request.body if isinstance(request.body, bytes) else b"".join(request.body or ())
        headers = {k.lower(): v.decode() if isinstance(v, bytes) else v for k, v in request.headers.items()}
        headers = {k: v for k, v in headers.items() if k in KEPT_REQUEST_HEADERS}
        if boundary := re.search(r'boundary="?([^";]+)', headers.get("content-type", "")):  # random: fix it
            body = body.replace(boundary[1].encode(), b"boundary")
            headers["content-type"] = headers["content-type"].replace(boundary[1], "boundary")
        uri = SECRET_QUERY.sub(r"\1<SECRET>", scrub(request.uri))
        clean = {"method": request.method, "uri": uri, "headers": headers, "body": self._pack(body)}
        digest = hashlib.sha256(canonical(request.method, uri, clean["body"]).encode()).hexdigest()
        return (call.name, digest), clean

    def _may_ask(self, request: Request) -> None:
        """Raise unless a call may now be started whose answer will be kept."""
        if self.mode == "replay":
            raise TapeMiss(self._describe_miss(request._key, request._clean))
        if self.cancelled.is_set():
            raise Cancelled(f"{request._key[0]} was not started: the run was interrupted")
        if self._failed_write:
            raise TapeWriteError(self._failed_write)
        disk = os.statvfs(self.file.parent)
        if disk.f_bavail * disk.f_frsize < FREE_BYTES:
            raise self._fail_write(self.file, OSError(errno.ENOSPC, f"less than {FREE_BYTES >> 20} MiB left on the disk"))

    # -- the file

    def _load(self) -> None:
        data = self.file.read_bytes() if self.file.exists() else b""
        whole, _, torn = data.rpartition(b"\n")
        if torn and self.mode == "resume":  # cut off what a crash tore
            os.truncate(self.file, len(data) - len(torn))
        for number, line in enumerate(whole.split(b"\n") if whole else (), 1):
            try:
                entry = json.loads(line)
            except ValueError:
                raise TapeMiss(f"{self.file}:{number}: not a line of a tape; restore the file or record again") from None
            if "fact" in entry:
                self.facts[entry["fact"]] = entry["value"]
                continue
            key = (entry["call"], entry["key"])
            if self.mode == "resume" and not _answered(entry):
                continue
            answers = self._unplayed[key]
            if answers and not _answered(answers[-1]) and _worth_another_try(answers[-1]):
                answers.pop()  # the client tried again: the outcome of that try stands for both
            answers.append(entry)
            if self.mode == "replay":
                self._recorded[entry["call"]].append(entry)

    def _keep(self, request: Request, outcome: dict[str, Any]) -> None:
        call, digest = request._key
        with self._lock:
            self._write({"v": VERSION, "call": call, "key": digest, "request": request._clean, **outcome})
            self.exchanges += 1

    def _write(self, entry: dict[str, Any]) -> None:
        line = json.dumps(entry, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        try:
            if (written := os.write(self._fd, line)) < len(line):
                os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)  # a torn line would spoil the next one
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise self._fail_write(self.file, error) from None

    def _fail_write(self, path: Path, error: OSError) -> TapeWriteError:
        self._failed_write = f"{path}: {error.strerror}; free some space, then --resume {self.file.parent}"
        return TapeWriteError(self._failed_write)

    # -- big bodies: once each, by content

    def _store(self, kind: str, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        blob = self.blobs / digest
        if self._fd >= 0 and not blob.exists():
            try:
                self.blobs.mkdir(exist_ok=True)
                part = self.blobs / f"{digest}.{threading.get_ident()}"
                part.write_bytes(data)
                part.rename(blob)
            except OSError as error:
                raise self._fail_write(blob, error) from None
        return f"blob:{kind}:{digest}"

    def _pack(self, body: bytes) -> str:
        try:
            text = body.decode()
        except UnicodeDecodeError:
            return self._store("bytes", body)
        return scrub(BASE64_RUN.sub(lambda m: self._store("text", m[0].encode()), text))

    def _unpack(self, text: str) -> bytes:
        whole = BLOB.fullmatch(text)
        if whole and whole[1] == "bytes":
            return self._blob(whole[2])
        return BLOB.sub(lambda m: self._blob(m[2]).decode() if m[1] == "text" else m[0], text).encode()

    def _blob(self, digest: str) -> bytes:
        try:
            return (self.blobs / digest).read_bytes()
        except FileNotFoundError:
            raise TapeMiss(f"{self.blobs / digest} is missing: copy the whole run folder") from None

    # -- the words of a miss

    def _describe_miss(self, key: tuple[str, str], clean: dict[str, Any]) -> str:
        def lines(request: dict[str, Any]) -> list[str]:
            text = canonical(request["method"], request["uri"], request["body"], indent=1).replace("\\n", "\n")
            return [w for line in text.splitlines() for w in textwrap.wrap(line, 100, subsequent_indent="  ") or [""]]

        same_call = self._recorded.get(key[0], [])
        if not same_call:
            return f"{self.file}: nothing recorded for the call {key[0]!r} ({clean['method']} {clean['uri']})"
        if any(entry["key"] == key[1] for entry in same_call):
            return f"{self.file}: the call {key[0]!r} asks again for what it recorded once"
        new = lines(clean)
        near = max((lines(entry["request"]) for entry in same_call), key=lambda old: len(set(old) & set(new)))
        diff = list(difflib.unified_diff(near, new, "recorded", "this run", n=1, lineterm=""))
        return "\n".join([f"{self.file}: the call {key[0]!r} differs from its recording", *diff[:40]])


def _answered(entry: dict[str, Any]) -> bool:
    """Whether an entry holds an answer. A completion without a choice is none, whatever its status."""
    if "result" in entry:
        return True
    if "error" in entry or not 200 <= entry["response"]["status"]["code"] < 300:
        return False
    if not entry["request"]["uri"].endswith("/chat/completions"):
        return True
    try:
        return bool(json.loads(entry["response"]["body"])["choices"])
    except (ValueError, KeyError, TypeError):
        return False


def _worth_another_try(entry: dict[str, Any]) -> bool:
    """Whether the client itself tries again after this outcome, under the same key."""
    return "error" in entry or entry["response"]["status"]["code"] in RETRYABLE


# ---- the two HTTP clients, and the guard ---------------------------------------------------------

_patching = threading.Lock()
_real_transport_send = httpx2.HTTPTransport.handle_request
_real_adapter_send = requests.adapters.HTTPAdapter.send


def _patch_once() -> None:
    """Let the two transports look whether they are inside a logical call. Outside, they do what they always did."""
    with _patching:
        httpx2.HTTPTransport.handle_request = _transport_send  # type: ignore[method-assign]
        requests.adapters.HTTPAdapter.send = _adapter_send  # type: ignore[method-assign]


class _Watched:
    """What vcrpy's stub talks to: the tape, remembering the request in case the transport fails."""

    write_protected = False

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.request: Request | None = None
        self.sent = False

    def can_play_response_for(self, request: Request) -> bool:
        self.request = request
        self.sent = not self.tape.can_play_response_for(request)
        return not self.sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tape, name)


def _transport_send(self: httpx2.HTTPTransport, request: httpx2.Request) -> httpx2.Response:
    call = _call.get()
    if call is None:
        return _real_transport_send(self, request)
    watched = _Watched(call.tape)
    try:
        return vcr_handle_request(watched, _real_transport_send, httpx2)(self, request)  # type: ignore[no-any-return]
    except httpx2.TransportError as failure:
        if watched.sent and watched.request is not None:
            call.tape.append_failure(watched.request, failure)
        raise


def _adapter_send(self: Any, request: requests.PreparedRequest, **options: Any) -> requests.Response:
    call = _call.get()
    if call is None:
        return _real_adapter_send(self, request, **options)
    asked = Request(request.method, request.url, request.body, dict(request.headers))
    if not call.tape.can_play_response_for(asked):
        try:
            response = _real_adapter_send(self, request, **options)
            body = response.content
        except requests.RequestException as failure:
            call.tape.append_failure(asked, failure)
            raise
        status = {"code": response.status_code, "message": response.reason}
        headers = {k: [v] for k, v in response.headers.items() if k.lower() != "content-encoding"}  # .content is decoded
        call.tape.append(asked, {"status": status, "headers": headers, "body": {"string": body}})
        return response
    played = call.tape.play_response(asked)
    headers = {k: ", ".join(v) for k, v in played["headers"].items()}
    raw = urllib3.HTTPResponse(
        io.BytesIO(played["body"]["string"]), headers, played["status"]["code"],
        reason=played["status"]["message"], preload_content=False,
    )  # fmt: skip
    return self.build_response(request, raw)  # type: ignore[no-any-return]


def _failure(error: dict[str, str], request: Request) -> Exception:
    """The recorded failure again, as the library raised it."""
    library = {"httpx2": httpx2, "requests": requests.exceptions}[error["library"]]
    return getattr(library, error["type"])(error["message"])  # type: ignore[no-any-return]


_guarding = False


def _guard_sockets_once() -> None:
    """An audit hook (it can not be taken off): a logical call of a replaying tape opens no socket."""
    global _guarding
    with _patching:
        if not _guarding:
            sys.addaudithook(_guard)
            _guarding = True


def _guard(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto", "socket.sendmsg"):
        call = _call.get()
        if call is not None and call.tape.mode == "replay":
            raise TapeMiss(f"{call.tape.file}: the call {call.name!r} went around the tape to {arguments[1:2]}")
