"""What the page shows of one run."""

from __future__ import annotations

import base64
import contextlib
import json
import mimetypes
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from orchestra.page import costs, equations
from orchestra.runtime import jsonl, outside, run_folder, tape_file, trajectory
from orchestra.runtime import texts as user_texts
from orchestra.runtime.completion import tokens_of
from orchestra.runtime.run_folder import Manifest, MediaRow
from orchestra.runtime.summary import Prices, Summary, summarized
from orchestra.vocabulary import ConfigError

INLINE_BYTES = 8 << 20  # the page links to a larger media file in the run folder
DIFF_CHARS = 1 << 20  # of changes.diff
KEY_CHARS = 16  # of the hash of a request
MAX_TEXT_CHARS = 64 << 20  # of a page
MAX_TEXT_USES = 1_000_000
TIMES = ("began_s", "took_s")
RunRow = dict[str, Any]  # a run: outcome, settings, calls
CallRow = dict[str, Any]  # an exchange: request, answer or failure, tokens, cost
Exchange = Mapping[str, Any]  # a line of the tape


class Texts(dict[str, int]):
    """Each text of a page and its number. They have a limit, as a page is made in memory."""

    def __init__(self) -> None:
        self.left_chars = MAX_TEXT_CHARS
        self.left_uses = MAX_TEXT_USES

    def number(self, text: str) -> int:
        """Raises ConfigError if it is one text too many."""
        if text not in self:
            self.left_chars -= len(text)
            self[text] = len(self)
        self.left_uses -= 1
        if self.left_chars < 0 or self.left_uses < 0:
            raise ConfigError("it has more text than fits into a page")
        return self[text]


class ShownMedia(TypedDict):
    """A media file of the question. `url`: "" if the file is missing."""

    name: str
    modality: str
    where: str
    url: str


@dataclass(frozen=True)
class Recorded:
    """A run folder, read."""

    folder: Path
    manifest: Manifest
    events: Sequence[trajectory.Event]
    exchanges: Sequence[Exchange]
    seen: Summary


def read(folder: Path) -> Recorded:
    """Raises ConfigError for a folder that is not a run, or damaged, or too large for a page."""
    manifest = run_folder.read_manifest(folder)
    events = trajectory.read(folder / "trajectory.jsonl")
    file = folder / "tape.jsonl"
    if file.is_file() and file.stat().st_size > jsonl.HELD_BYTES:
        most = f"{jsonl.HELD_BYTES >> 20} MiB"
        raise ConfigError(f"{file} has over {most} of calls: too many for a page")
    exchanges = list(tape_file.exchanges(file))
    seen = summarized(folder, manifest, events, exchanges)
    return Recorded(folder, manifest, events, exchanges, seen)


@contextlib.contextmanager
def damaged_is_one_line(folder: Path) -> Iterator[None]:
    """Inside, a call that has another shape than ours is a ConfigError."""
    try:
        yield
    except (LookupError, TypeError, AttributeError) as error:
        problem = f"a call is damaged ({type(error).__name__}); restore a copy"
        raise ConfigError(f"{folder}/tape.jsonl: {problem}") from None


def number_of(value: Any, texts: Texts) -> int:
    """The number of a text. A page has each text once and refers to its number: prompts repeat."""
    text = value
    if not isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False, indent=1)
    return texts.number(text)


# ---- a run ---------------------------------------------------------------------------------------


def outcome_row(run: Recorded) -> RunRow:
    """How a run ended, and what it cost."""
    seen = run.seen
    return {
        "name": run.folder.name,
        "question": seen.question,
        "method": seen.method,
        "model": seen.model,
        "answer": seen.answer,
        "state": seen.ending.state,
        "cause": seen.ending.cause,
        "why": seen.ending.why,
        "finished": seen.ending.finished,
        "rounds": seen.rounds,
        "failed_subtasks": seen.failed_subtasks,
        "latency_s": seen.latency_s,
        "date_s": seen.date_s,
        **vars(seen.totals),
    }


def _of_user(manifest: Manifest) -> str:
    """The texts of --texts in few words; "" without."""
    files = manifest.options.texts
    return user_texts.described(files) if files else ""


def run_row(folder: Path, texts: Texts) -> RunRow:
    """A run with its events and calls. Raises ConfigError."""
    return _with_calls(read(folder), texts)


def _with_calls(run: Recorded, texts: Texts) -> RunRow:
    prices = Prices(run.manifest)
    with damaged_is_one_line(run.folder):
        calls = [call_row(exchange, texts, prices) for exchange in run.exchanges]
    return {
        **outcome_row(run),
        "other_texts": _of_user(run.manifest),
        "tape": calls,
        "events": [e for e in run.events if e["event"] not in ("run", "end")],
    }


def page_row(run: Recorded, texts: Texts) -> RunRow:
    """All that the page of a run shows but its media. Raises ConfigError."""
    prices = Prices(run.manifest)
    panels = equations.panel_rows(run.folder)
    for panel in panels:
        panel["html"] = number_of(panel["html"], texts)
    sources = {panel["source"] for panel in panels if panel["source"]}
    return {
        **_with_calls(run, texts),
        "by_model": costs.by_model(run.exchanges, prices),
        "by_place": costs.by_place(run.exchanges, prices),
        "panels": panels,
        "code": equations.code_of(sources),
        "diff": _changes(run.folder),
    }


def _changes(folder: Path) -> str:
    """The beginning of changes.diff, if the run has one."""
    try:
        opened = outside.descriptor(folder / "changes.diff", os.O_RDONLY)
    except FileNotFoundError:
        return ""
    with os.fdopen(opened, encoding="utf-8", errors="replace") as text:
        return text.read(DIFF_CHARS)


# ---- its calls -----------------------------------------------------------------------------------


def call_row(exchange: Exchange, texts: Texts, prices: Prices) -> CallRow:
    """One exchange: its request, its answer or failure, what it took and cost."""
    request = exchange["request"]
    cost = prices.of(exchange)
    row: CallRow = {
        "call": exchange["call"],
        "kind": request["kind"],
        "key": tape_file.key_of(request)[:KEY_CHARS],
        **_times(exchange.get("timing")),
        "asked": _asked(request, texts),
        "cost_usd": cost.cost_usd,
    }
    if _messages(request):
        row["model"] = request.get("model")
    data = _completion_of(exchange)
    if data is not None:
        row |= _tokens(data)
    got = got_from(exchange)
    why = _why_failed(exchange, got)
    row["failed"] = why != ""
    if why:
        row["why"] = why
    row["got"] = number_of(got, texts)
    return row


def _times(timing: Any) -> dict[str, float]:
    """When a call began and how long it took, if that is known."""
    times = timing if isinstance(timing, dict) else {}
    kinds = (int, float)
    known = {key: times[key] for key in TIMES if type(times.get(key)) in kinds}
    return {
        key: time for key, time in known.items() if abs(time) < tape_file.MAX_TIME_S
    }


def got_from(exchange: Exchange) -> Any:
    """What a call gave: the message of a completion, what a tool returned, or a failure."""
    if "failure" in exchange:
        return exchange["failure"]
    data = _completion_of(exchange)
    if data is None:
        return exchange.get("answer")
    message = data["choices"][0]["message"]
    return message.get("content") or message


def _completion_of(exchange: Exchange) -> dict[str, Any] | None:
    answer = exchange.get("answer")
    data = answer.get("data") if isinstance(answer, dict) else None
    is_completion = _messages(exchange["request"]) and isinstance(data, dict)
    return data if is_completion else None


def _why_failed(exchange: Exchange, got: Any) -> str:
    """The failure or the error of a tool in its own words; "" if the call did not fail."""
    if "failure" in exchange:
        return str(got.get("why") or "no answer")
    if isinstance(got, dict) and "error" in got:
        return str(got["error"]) or "an error without a message"
    return ""


def _messages(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a chat request; [] for an exchange of another kind."""
    if request["kind"] != "chat":
        return []
    return request.get("messages") or []


def _asked(request: Mapping[str, Any], texts: Texts) -> list[tuple[str, int]]:
    """Role and text of each message, or the request as one text."""
    messages = _messages(request)
    if messages:
        return [(m["role"], number_of(_content(m), texts)) for m in messages]
    rest = {key: value for key, value in request.items() if key != "kind"}
    return [("request", number_of(rest, texts))]


def _content(message: Mapping[str, Any]) -> Any:
    """The text of a message. A picture or a sound in it is named by its hash, as on the tape."""
    content = message.get("content")
    if not isinstance(content, list):
        return content or dict(message)
    parts = []
    for part in content:
        is_text = isinstance(part, dict) and isinstance(part.get("text"), str)
        parts.append(part["text"] if is_text else f"[{json.dumps(part)}]")
    return "\n\n".join(parts)


def _tokens(data: Mapping[str, Any]) -> CallRow:
    """The tokens of a completion."""
    count_in, count_out, _ = tokens_of(data)
    return {
        "input_tokens": count_in,
        "output_tokens": count_out,
        "tokens": (count_in or 0) + (count_out or 0),
    }


# ---- its media -----------------------------------------------------------------------------------


def media_rows(run: Recorded, elsewhere: Path | None) -> list[ShownMedia]:
    """The media of a run. `elsewhere`: a folder with those that the run folder lacks."""
    return [media_row(run.folder, m, elsewhere) for m in run.manifest.media]


def media_row(folder: Path, m: MediaRow, elsewhere: Path | None) -> ShownMedia:
    """A media file of the question, as a data URL if it is small enough."""
    file = folder / "media" / m.name
    row: ShownMedia = {
        "name": m.name,
        "modality": m.modality,
        "where": f"media/{m.name}",
        "url": "",
    }
    if m.modality == "file":
        return row  # a browser must not open it
    if not file.is_file() and elsewhere is not None:
        file = _found(elsewhere, m) or file
    try:
        with outside.opened(file, INLINE_BYTES) as opened:
            content = opened.read()
    except FileNotFoundError:
        row["where"] += ", which is missing"
        return row
    except (ConfigError, OSError):  # too large, or not a plain file
        row["url"] = file.absolute().as_uri()
        return row
    kind = mimetypes.guess_type(m.name)[0] or "application/octet-stream"
    row["url"] = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    return row


def _found(elsewhere: Path, m: MediaRow) -> Path | None:
    """The file with this name and content."""
    for file in sorted(elsewhere.rglob("*")):
        if file.name == m.name and run_folder.sha256_of(file) == m.sha256:
            return file
    return None
