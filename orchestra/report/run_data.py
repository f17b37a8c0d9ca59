"""What the page shows of one run."""

from __future__ import annotations

import base64
import json
import mimetypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestra.command import outside
from orchestra.command.outside import damage_is_one_line
from orchestra.command.way_on import TO_SEE, advice_for, again_as_stored, next_steps
from orchestra.kernel.folder import Event, Manifest, read_manifest, sha256_of
from orchestra.kernel.tape import Exchange, Failure, exchanges
from orchestra.kernel.vocabulary import ConfigError
from orchestra.report.explain import panels
from orchestra.report.explain.panel import Panel, code_of, row_of
from orchestra.report.totals import (
    Summary,
    backend_of,
    newest_events,
    settings_in,
    summarize,
    totals_of,
)

INLINE_BYTES = 8 << 20  # the page links to a larger media file in the run folder
DIFF_CHARS = 1 << 20  # of changes.diff
Row = dict[str, Any]


class Texts(dict[str, int]):
    """Each text of a page and its number. A page has a text once, as prompts repeat."""

    def number(self, value: Any) -> int:
        """The number of a text, or of JSON as text."""
        is_text = isinstance(value, str)
        text = value if is_text else json.dumps(value, ensure_ascii=False, indent=1)
        return self.setdefault(text, len(self))


@dataclass(frozen=True)
class Recorded:
    """A run folder that was read."""

    folder: Path
    manifest: Manifest
    events: Sequence[Event]
    tape: Sequence[Exchange]
    summary: Summary


def read(folder: Path) -> Recorded:
    """Raises ConfigError for a folder that is not a run, or damaged."""
    outside.check_run(folder)
    manifest = read_manifest(folder)
    events = newest_events(folder)
    tape = exchanges(folder / "tape.jsonl")
    return Recorded(
        folder, manifest, events, tape, summarize(folder, manifest, events, tape)
    )


# ---- a run ---------------------------------------------------------------------------------------


def data_of(run: Recorded, media: Path | None = None) -> Row:
    """All that the page of a run shows. `media`: a folder with those that the run lacks."""
    texts = Texts()
    with damage_is_one_line(run.folder):
        row = {
            **outcome_row(run),
            "tape": [call_row(exchange, texts, run.manifest) for exchange in run.tape],
            "events": [e for e in run.events if e["event"] not in ("run", "end")],
            **_began(run.events),
            **_equations(run.folder),
            "diff": _changes(run.folder),
            "next": _next_steps(run),
        }
    shown = [media_row(run.folder, *m, media) for m in run.manifest.media]
    return {"run": row, "media": shown, "texts": list(texts)}


def _began(events: Sequence[Event]) -> Row:
    """When the newest invocation began, and how many sub-tasks it runs at a time."""
    for event in events[:1]:
        if event["event"] == "run":
            began_s = event["timing"].get("at_s")
            return {"began_s": began_s, "parallel": event["options"]["parallel"]}
    return {"began_s": None, "parallel": 1}


def _next_steps(run: Recorded) -> list[tuple[str, str]]:
    """What to do about a run that has ended early, but for looking at this page."""
    how = again_as_stored(run.folder, run.manifest)
    steps = next_steps(how, run.manifest, run.summary.ending, run.summary.rounds)
    return [step for step in steps if step[0] != TO_SEE]


def outcome_row(run: Recorded) -> Row:
    """How a run ended, and what it cost."""
    row = {"name": run.folder.name, **asdict(run.summary)}
    row = {**row.pop("ending"), **row.pop("totals"), **row}
    return {**row, "advice": advice_for(run.summary.ending, run.manifest.pool)}


def asked_of(exchange: Exchange) -> str:
    """The model or the tool that a request went to."""
    return str(exchange.request.get("model") or exchange.request["kind"])


def _equations(folder: Path) -> Row:
    """The panels of a run and the code that computes them; a sentence if it is damaged."""
    try:
        found = panels(folder)
    except ConfigError as error:
        problem = f"The equations cannot be computed again: {error}"
        found = [Panel("", "", problem)]
    sources = {panel.source for panel in found if panel.source}
    code = {source: "\n".join(code_of(source)) for source in sources}
    return {"panels": [row_of(panel) for panel in found], "code": code}


def _changes(folder: Path) -> str:
    """The beginning of changes.diff, if the run has one."""
    file = folder / "changes.diff"
    return file.read_text("utf-8", "replace")[:DIFF_CHARS] if file.is_file() else ""


# ---- its calls -----------------------------------------------------------------------------------


def call_row(exchange: Exchange, texts: Texts, manifest: Manifest) -> Row:
    """One exchange: its request, its answer or failure, what it took and cost. `billed`: its
    attempts that may be billed.
    """
    got = got_from(exchange)
    why = _why_failed(exchange, got)
    cost = totals_of(manifest, [exchange])
    pool = settings_in(manifest, exchange.round).pool
    is_chat = exchange.request["kind"] == "chat"
    backend = backend_of(exchange, pool) if is_chat else None
    row: Row = {
        "call": exchange.call,
        "kind": exchange.request["kind"],
        "asked": [
            (role, texts.number(text)) for role, text in _asked(exchange.request)
        ],
        "got": texts.number(got),
        "who": backend.name if backend else asked_of(exchange),
        "billed": cost.calls,
        "tokens": cost.tokens,
        "cost_usd": cost.cost_usd,
        "failed": why != "",
        "why": why,
    }
    if exchange.began_s:
        row |= {"began_s": exchange.began_s, "took_s": exchange.took_s}
    if is_chat:
        row["model"] = exchange.request.get("model")
    completion = _completion_of(exchange)
    if completion is not None:
        usage = completion.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        row["input_tokens"] = usage.get("prompt_tokens")
        row["output_tokens"] = usage.get("completion_tokens")
    return row


def got_from(exchange: Exchange) -> Any:
    """What a call gave: the message of a completion, what a tool returned, or a failure."""
    if isinstance(exchange.outcome, Failure):
        return exchange.outcome.row()
    completion = _completion_of(exchange)
    if completion is None:
        return exchange.outcome.value
    message = completion["choices"][0]["message"]
    return message.get("content") or message


def _completion_of(exchange: Exchange) -> Row | None:
    if exchange.request["kind"] != "chat" or isinstance(exchange.outcome, Failure):
        return None
    completion: Row = exchange.outcome.value["data"]
    return completion


def _why_failed(exchange: Exchange, got: Any) -> str:
    """The failure or the error of a tool in its own words; "" if the call did not fail."""
    if isinstance(exchange.outcome, Failure):
        return exchange.outcome.why or "no answer"
    if isinstance(got, dict) and "error" in got:
        return str(got["error"]) or "an error without a message"
    return ""


def _asked(request: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Role and text of each message, or the whole request."""
    if request["kind"] != "chat":
        rest = {key: value for key, value in request.items() if key != "kind"}
        return [("request", rest)]
    return [(message["role"], _content(message)) for message in request["messages"]]


def _content(message: Mapping[str, Any]) -> Any:
    """The text of a message. A picture or a sound in it is named by its hash, as on the tape."""
    content = message.get("content")
    if not isinstance(content, list):
        return content or dict(message)
    parts = [part.get("text") or f"[{json.dumps(part)}]" for part in content]
    return "\n\n".join(parts)


# ---- its media -----------------------------------------------------------------------------------


def media_row(
    folder: Path, modality: str, name: str, sha256: str, media: Path | None
) -> Row:
    """A media file of the question, as a data URL if it is small enough. A browser must not open a
    file of another kind.
    """
    row = {"name": name, "modality": modality, "where": f"media/{name}", "url": ""}
    file = folder / "media" / Path(name).name
    if not file.is_file() and media is not None:
        same = (
            f
            for f in sorted(media.rglob("*"))
            if f.name == name and sha256_of(f) == sha256
        )
        file = next(same, file)
    if modality == "file":
        return row
    if not file.is_file():
        row["where"] += ", which is missing"
    elif file.stat().st_size > INLINE_BYTES:
        row["url"] = file.absolute().as_uri()
    else:
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        row["url"] = (
            f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"
        )
    return row
