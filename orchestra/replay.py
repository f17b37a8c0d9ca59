"""The tape: every paid call on disk before anything else happens with it; replay, resume and fork
from it.

A tape is a JSONL file, one line an exchange, in one write as soon as the answer is in. An exchange
is found again by (logical call, SHA-256 of the canonical request), so thread timing plays no part:

    with tape.logical_call("r1", "t2", "s1"):    # inside the worker: round 1, sub-task 2, step 1
        client.post(...)                         # openai and requests are recorded or played,
        tape.local("code", arguments, run)       # and so is any function with a JSON value

It is vcrpy's Cassette with what vcrpy lacks: an index instead of pairwise matching, a write per
exchange, transport failures, base64 kept once, and calls that are no HTTP.

    record   a new tape                     a miss asks the endpoint
    resume   plays the answers it has       a miss asks; refusals and failures are asked again
    replay   plays all, opens no socket     a miss raises TapeMiss and shows the difference
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
import re
import textwrap
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import httpx2
import requests
from vcr.cassette import Cassette
from vcr.record_mode import RecordMode
from vcr.request import Request

from orchestra import lines, secrets, transports
from orchestra.blobs import Blobs
from orchestra.call import Call, current_call, entered
from orchestra.clients import PLAYED
from orchestra.outcomes import answered, built_on, in_vain, tried_again
from orchestra.secrets import scrub, scrub_url
from orchestra.vocabulary import EndOfRun

VERSION = 1
Mode = Literal["record", "resume", "replay"]
VCR_MODE = {"record": RecordMode.ONCE, "resume": RecordMode.NEW_EPISODES, "replay": RecordMode.NONE}
FREE_BYTES = 8 << 20  # no call is started with less disk than this: its answer could not be kept
KEPT_HEADERS = {"content-type", "location", "retry-after", "retry-after-ms", "x-should-retry"}

Entry = dict[str, Any]


class TapeMiss(EndOfRun):
    """A replay asked for something the tape does not hold."""


class TapeWriteError(EndOfRun):
    """The tape can not be written (a full disk): no further call is started."""


class Cancelled(EndOfRun):
    """The run was interrupted: no further call is started."""


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

    def __init__(self, path: Path, mode: Mode, cancelled: threading.Event | None = None) -> None:
        super().__init__(str(path), record_mode=VCR_MODE[mode])
        self.file, self.mode = path, mode
        self._blobs = Blobs(path.parent / "blobs", writable=mode != "replay")
        self.facts: dict[str, str] = {}
        self.cancelled = threading.Event()  # by the run itself
        self._stop = cancelled or self.cancelled  # by the host program
        self._unplayed: dict[tuple[str, str], deque[Entry]] = {}
        self._entries: list[Entry] = []  # of calls, as they were kept
        self._stays: set[int] = set()  # ids of entries that no resume asks again
        self._recorded: dict[str, list[Entry]] = defaultdict(list)  # by call, for a miss's words
        self._failed_write = ""
        if mode != "record":
            self._load()
        self._lines = None if mode == "replay" else lines.Appender(path)
        if mode == "resume":
            self._write({"v": VERSION, "resumed": True})
        transports.install()
        secrets.look_up()

    def close(self) -> None:
        if self._lines:
            self._lines.close()

    def logical_call(self, *parts: object) -> AbstractContextManager[None]:
        """Name the calls made inside, as in logical_call("r2", "t5", "s1")."""
        return entered(Call(self, "/".join(map(str, parts))))

    def refuses(self, fact: str, field: str, model: str, uri: str) -> bool:
        """Whether an endpoint is known to refuse `field` of a request. A call that is on the tape
        is asked as it was, whatever was found out after it. A tool may ask another model in it, or
        one of the same name elsewhere.
        """
        call = current_call()
        recorded = self._recorded.get(call.name, ()) if call else ()
        there = [e for e in recorded if e["request"]["uri"] == uri]
        bodies = [(e, _object(e["request"]["body"])) for e in there]
        asked = [(e, body) for e, body in bodies if body.get("model") == model]
        if asked:
            bodies_of = [body for e, body in asked if answered(e)] or [body for _, body in asked]
            return all(field not in body for body in bodies_of)
        return fact in self.facts

    def learn(self, fact: str, value: str) -> None:
        """Keep what was found out about an endpoint. A replay knows it from the start, so it does
        not matter there which thread found it out.
        """
        if fact not in self.facts and self.mode != "replay":
            self._write({"v": VERSION, "fact": fact, "value": value})
        self.facts[fact] = value

    # -- vcrpy's three hooks: is there an answer, play it, keep one

    def can_play_response_for(self, request: Request) -> bool:
        """Take the next answer to this very call off the tape; no other thread gets it then.

        Raises TapeMiss, TapeWriteError or Cancelled where there is none and none may be asked for.
        """
        if not hasattr(request, "entry"):
            request.key, request.clean = self._key(request)
            try:
                request.entry = self._unplayed[request.key].popleft()  # atomic: no other thread's
            except (KeyError, IndexError):
                request.entry = None
        if request.entry is None:
            self._may_ask(request)
        return request.entry is not None

    def play_response(self, request: Request) -> Any:
        """The recorded response, or the recorded failure raised again."""
        if error := request.entry.get("error"):
            library = {"httpx2": httpx2, "requests": requests.exceptions}[error["library"]]
            failure = getattr(library, error["type"])(error["message"])
            failure.add_note(PLAYED)
            raise failure
        response = request.entry["response"]
        headers = {**response["headers"], PLAYED: ["yes"], "x-should-retry": ["false"]}
        body = {"string": self._unpacked(response["body"])}
        return {"status": response["status"], "headers": headers, "body": body}

    def append(self, request: Request, response: Any) -> None:
        """Keep an answer, decoded. Only headers of the allow-list: any other may carry a secret.

        Raises httpx2.DecodingError for a body that is not what its content-encoding says.
        """
        sent = [(k, v) for k, values in response["headers"].items() for v in values]
        answer = httpx2.Response(200, headers=sent, content=response["body"]["string"])
        headers = {
            k: [scrub_url(one) for one in v]
            for k, v in response["headers"].items()
            if k.lower() in KEPT_HEADERS
        }
        body = self._packed(answer.content)
        kept = {"status": response["status"], "headers": headers, "body": body}
        self._keep(request, {"response": kept})

    def append_failure(self, request: Request, failure: Exception) -> None:
        """Keep a timeout or a broken connection: it is an outcome that a replay must meet too."""
        library, name = type(failure).__module__.split(".")[0], type(failure).__name__
        error = {"library": library, "type": name, "message": scrub(str(failure))}
        self._keep(request, {"error": error})

    def local(self, kind: str, arguments: dict[str, Any], function: Callable[[], Any]) -> Any:
        """`function()`, a call that is no HTTP, by the same key. Its value must be JSON."""
        request = Request("LOCAL", f"local:{kind}", json.dumps(arguments, default=str), {})
        if self.can_play_response_for(request):
            return json.loads(self._unpacked(request.entry["result"]))
        value = json.dumps(function(), ensure_ascii=False).encode("utf-8", "backslashreplace")
        packed = self._packed(value)
        self._keep(request, {"result": packed})
        return json.loads(self._unpacked(packed))  # what a replay will see, to the byte

    def refuse_socket(self, address: object) -> None:
        """Raises TapeMiss in a replay: whatever opens this socket went around the tape."""
        call = current_call()
        if self.mode == "replay" and call:
            raise TapeMiss(f"{self.file}: the call {call.name!r} went around the tape to {address}")

    # -- keys

    def _key(self, request: Request) -> tuple[tuple[str, str], Entry]:
        call = current_call()
        assert call is not None, "only requests of a logical call reach the tape"
        body = request.body if isinstance(request.body, bytes) else b"".join(request.body or ())
        kind = request.headers.get("content-type", "")
        kind = kind.decode() if isinstance(kind, bytes) else kind
        if boundary := re.search(r'boundary="?([^";]+)', kind):  # it is random: fix it
            body = body.replace(boundary[1].encode(), b"boundary")
            kind = kind.replace(boundary[1], "boundary")
        clean = {"method": request.method, "uri": scrub_url(request.uri), "content_type": kind}
        clean["body"] = self._packed(body)
        text = canonical(clean["method"], clean["uri"], clean["body"])
        return (call.name, hashlib.sha256(text.encode()).hexdigest()), clean

    def _may_ask(self, request: Request) -> None:
        """Raise unless a call may now be started whose answer will be kept."""
        if self.mode == "replay":
            raise TapeMiss(self._describe_miss(request.key, request.clean))
        if self.cancelled.is_set() or self._stop.is_set():
            raise Cancelled(f"{request.key[0]} was not started: the run was interrupted")
        if self._failed_write:
            raise TapeWriteError(self._failed_write)
        disk = os.statvfs(self.file.parent)
        if disk.f_bavail * disk.f_frsize < FREE_BYTES:
            raise self._fail_write(self.file, f"less than {FREE_BYTES >> 20} MiB left on the disk")

    # -- the file

    def _unpacked(self, text: str) -> bytes:
        try:
            return self._blobs.unpack(text)
        except FileNotFoundError as error:
            raise TapeMiss(f"{error.filename} is missing: copy the whole run folder") from None

    def _packed(self, body: bytes) -> str:
        try:
            return self._blobs.pack(body)
        except OSError as error:
            raise self._fail_write(self.file.parent / "blobs", error.strerror) from None

    def _load(self) -> None:
        for number, entry in enumerate(lines.read(self.file), 1):
            try:
                self._index(entry)
            except (KeyError, TypeError, AttributeError):
                broken = f"{self.file}: entry {number} is not one of a tape"
                raise TapeMiss(f"{broken}; restore the file from a copy") from None
        if self.mode == "resume":
            self._forget_what_was_no_answer()

    def _forget_what_was_no_answer(self) -> None:
        """It is asked again, unless later calls went on from it: else they were to be paid anew.
        What is not asked again, and a try in vain before an answer, which was booked, is met again.
        """
        stays = self._stays | built_on(self._entries)
        for answers in self._unplayed.values():
            while answers and not answered(answers[-1]) and id(answers[-1]) not in stays:
                answers.pop()
            kept = [e for e in answers if answered(e) or in_vain(e) or e is answers[-1]]
            answers.clear()
            answers.extend(kept)

    def _index(self, entry: Entry) -> None:
        if "kept" in entry:  # a fork: what was no answer so far stays as it was
            self._stays = {id(e) for e in self._entries}
            return
        if "resumed" in entry:  # what was no answer was asked again from here on
            self._forget_what_was_no_answer()
            return
        if "fact" in entry:
            self.facts[entry["fact"]] = entry["value"]
            return
        answers = self._unplayed.setdefault((entry["call"], entry["key"]), deque())
        if answers and tried_again(answers[-1]):
            answers.pop()  # the outcome of the client's next try stands for both
        answers.append(entry)
        self._entries.append(entry)
        self._recorded[entry["call"]].append(entry)

    def _keep(self, request: Request, outcome: Entry) -> None:
        call, key = request.key
        self._write({"v": VERSION, "call": call, "key": key, "request": request.clean, **outcome})

    def _write(self, entry: Entry) -> None:
        assert self._lines is not None, "a replay writes nothing"
        try:
            self._lines.append(entry)
        except OSError as error:
            raise self._fail_write(self.file, error.strerror) from None

    def _fail_write(self, path: Path, why: str | None) -> TapeWriteError:
        self._failed_write = f"{path}: {why}; free some space, then resume the run"
        return TapeWriteError(self._failed_write)

    # -- the words of a miss

    def _describe_miss(self, key: tuple[str, str], request: Entry) -> str:
        call, digest = key
        recorded = self._recorded.get(call, [])
        if not recorded:
            asked = f"{request['method']} {request['uri']}"
            return f"{self.file}: nothing recorded for the call {call!r} ({asked})"
        if any(entry["key"] == digest for entry in recorded):
            return f"{self.file}: the call {call!r} asks again for what it recorded once"
        new = _readable_lines(request)
        old = (_readable_lines(entry["request"]) for entry in recorded)
        near = max(old, key=lambda rows: len(set(rows) & set(new)))
        diff = difflib.unified_diff(near, new, "recorded", "this run", n=1, lineterm="")
        headline = f"{self.file}: the call {call!r} differs from its recording"
        return "\n".join([headline, *list(diff)[:40]])


def _readable_lines(request: Entry) -> list[str]:
    text = canonical(request["method"], request["uri"], request["body"], indent=1)
    rows = text.replace("\\n", "\n").splitlines()
    return [w for row in rows for w in textwrap.wrap(row, 100, subsequent_indent="  ") or [""]]


def _object(body: str) -> Entry:
    """The fields of a request; none where it is no JSON object."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}
