"""An HTML page that shows a run, or all runs in a folder.

orchestra-min report RUN    the rounds, sub-tasks and calls of a run, on a timeline
orchestra-min report DIR    the runs of a folder as a table, and any two next to each other
orchestra-min report RUN --perfetto TRACE    the calls as a trace, for ui.perfetto.dev
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import mimetypes
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from orchestra.evaluation.questions import QuestionRow
from orchestra.evaluation.sweep_folder import newest, rows_of
from orchestra.evaluation.trace import perfetto
from orchestra.runtime import (
    command_line,
    console,
    outside,
    run_folder,
    tape,
    trajectory,
)
from orchestra.runtime.completion import tokens_of
from orchestra.runtime.summary import Prices, summarized
from orchestra.vocabulary import ConfigError

PAGE = Path(__file__).parent / "evaluation" / "page.html"
INLINE_BYTES = 8 << 20  # the page links to a larger media file in the run folder
SCORES = "judge", "match", "exact"  # of a sweep; the first that a row has counts
MAX_TEXT_CHARS = 64 << 20  # of a page
MAX_TEXT_USES = 1_000_000
TIMES = ("began_s", "took_s")
KEY_CHARS = 16  # of the hash of a request
RunRow = dict[str, Any]  # a run: outcome, settings, calls
CallRow = dict[str, Any]  # an exchange: request, answer or failure, tokens, cost
ScoreRow = dict[str, Any]  # the question of a run: category, level, right answer, score
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


class MediaRow(TypedDict):
    """A media file of the question."""

    name: str
    modality: str
    url: str


def number_of(value: Any, texts: Texts) -> int:
    """The number of a text. A page has each text once and refers to its number: prompts repeat."""
    text = value
    if not isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False, indent=1)
    return texts.number(text)


# ---- a run ---------------------------------------------------------------------------------------


def run_row(folder: Path, texts: Texts, whole: bool = True) -> RunRow:
    """The data of a run. `whole`: with its media and trajectory. Raises ConfigError."""
    manifest = run_folder.read_manifest(folder)
    events = trajectory.read(folder / "trajectory.jsonl")
    seen = summarized(folder, manifest, events)
    row: RunRow = {
        "name": folder.name,
        "question": seen.question,
        "method": seen.method,
        "model": seen.model,
        "answer": seen.answer,
        "state": seen.ending.state,
        "why": seen.ending.why,
        "fallback": seen.ending.state == "fallback",
        "rounds": seen.rounds,
        "failed_subtasks": seen.failed_subtasks,
        "latency_s": seen.latency_s,
        "date_s": seen.date_s,
        **vars(seen.totals),
    }
    row["tape"] = _call_rows(folder / "tape.jsonl", texts, Prices(manifest))
    if whole:
        row["media"] = [media_row(folder, m.name, m.modality) for m in manifest.media]
        row["events"] = [e for e in events if e["event"] not in ("run", "end")]
    return row


def _call_rows(file: Path, texts: Texts, prices: Prices) -> list[CallRow]:
    """The exchanges of a tape. Raises ConfigError."""
    rows: list[CallRow] = []
    for exchange in tape.exchanges(file):
        try:
            rows.append(call_row(exchange, texts, prices))
        except (LookupError, TypeError, AttributeError):
            problem = (
                f"the call {exchange['call']!r} is damaged; restore it from a copy"
            )
            raise ConfigError(f"{file}: {problem}") from None
    return rows


def call_row(exchange: Exchange, texts: Texts, prices: Prices) -> CallRow:
    """One exchange: its request, its answer or failure, what it took and cost."""
    request = exchange["request"]
    row: CallRow = {
        "call": exchange["call"],
        "kind": request["kind"],
        "key": tape.key_of(request)[:KEY_CHARS],
        **_times(exchange.get("timing")),
        "asked": _asked(request, texts),
    }
    if _messages(request):
        row["model"] = request.get("model")
    if "failure" in exchange:
        row["failed"] = True
        row["got"] = number_of(exchange["failure"], texts)
        return row
    answer = exchange.get("answer")
    data = answer.get("data") if isinstance(answer, dict) else None
    if _messages(request) and isinstance(data, dict):
        row |= _tokens(data)
        row["cost_usd"] = prices.of(exchange).cost_usd
        message = data["choices"][0]["message"]
        answer = message.get("content") or message
    row["failed"] = isinstance(answer, dict) and "error" in answer
    row["got"] = number_of(answer, texts)
    return row


def _times(timing: Any) -> dict[str, float]:
    """When a call began and how long it took, if that is known."""
    times = timing if isinstance(timing, dict) else {}
    kinds = (int, float)
    known = {key: times[key] for key in TIMES if type(times.get(key)) in kinds}
    return {key: time for key, time in known.items() if abs(time) < tape.MAX_TIME_S}


def _messages(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a chat request; [] for an exchange of another kind."""
    if request["kind"] != "chat":
        return []
    return request.get("messages") or []


def _asked(request: Mapping[str, Any], texts: Texts) -> list[tuple[str, int]]:
    """Role and text of each message, or the request as one text."""
    messages = _messages(request)
    if messages:
        return [(m["role"], number_of(m["content"], texts)) for m in messages]
    rest = {key: value for key, value in request.items() if key != "kind"}
    return [("request", number_of(rest, texts))]


def _tokens(data: Mapping[str, Any]) -> CallRow:
    """The tokens of a completion."""
    read, written, _ = tokens_of(data)
    return {
        "input_tokens": read,
        "output_tokens": written,
        "tokens": (read or 0) + (written or 0),
    }


def media_row(folder: Path, name: str, modality: str) -> MediaRow:
    """A media file of the question, as a data URL if it is small enough."""
    file = folder / "media" / name
    try:
        with outside.opened(file, INLINE_BYTES) as opened:
            content = opened.read()
    except (ConfigError, OSError):
        return {"name": name, "modality": modality, "url": file.absolute().as_uri()}
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    data = base64.b64encode(content).decode()
    return {"name": name, "modality": modality, "url": f"data:{kind};base64,{data}"}


# ---- a folder of runs ----------------------------------------------------------------------------


def run_rows(folder: Path, texts: Texts) -> list[RunRow]:
    """The runs in a folder, with the scores of a sweep. One that is damaged is listed and left out.
    Raises ConfigError if there is no run.
    """
    runs = outside.runs_in(folder, depth=3)
    if not runs:
        raise ConfigError(
            f"{folder}: is not a run folder and holds none; give RUN or DIR"
        )
    rows: list[RunRow] = []
    scores = scores_in(folder)
    for run in runs:
        name = run.relative_to(folder).as_posix()
        try:
            row = run_row(run, texts, whole=False)
        except (ConfigError, OSError) as error:
            console.tell(f"left out: {name}: {error}")
        else:
            rows.append({**row, "name": name, **scores.get(name, {})})
    return rows


def scores_in(folder: Path) -> dict[str, ScoreRow]:
    """The scores of each run, from the rows.jsonl of sweeps; by the path of the run."""
    found: dict[str, ScoreRow] = {}
    for sweep in [folder, *outside.folders_in(folder)]:
        try:
            rows = newest(rows_of(sweep)).values()
        except (ConfigError, OSError) as error:
            console.tell(f"left out: {error}")
            continue
        for row in rows:
            run = sweep / "runs" / row["run"]
            found[run.relative_to(folder).as_posix()] = _scored(row)
    return found


def _scored(row: QuestionRow) -> ScoreRow:
    scores = [row[key] for key in SCORES if row.get(key) is not None]
    return {
        "expected": row.get("right"),
        "category": row.get("category"),
        "level": row.get("level"),
        "right": scores[0] if scores else False,
    }


# ---- the page ------------------------------------------------------------------------------------


def page(data: Mapping[str, Any], texts: Mapping[str, int]) -> str:
    """The page with its data, compressed: no text of a model can become markup or script. Half a
    surrogate pair becomes a question mark.
    """
    shown = {**data, "texts": list(texts)}
    text = json.dumps(shown, ensure_ascii=False, default=str)
    compressed = zlib.compress(text.encode("utf-8", "replace"), 9)
    packed = base64.b64encode(compressed).decode()
    template = PAGE.read_text(encoding="utf-8")
    template = template.replace("{{POLICY}}", policy(template))
    return template.replace("{{DATA}}", packed)


def policy(template: str) -> str:
    """The Content-Security-Policy of the page: it loads nothing but media, from its data and from
    the run folder, and runs and applies nothing but its own script and style, known by their hash.
    """
    own = {
        tag: " ".join(_hashes(re.findall(rf"(?s)<{tag}>(.*?)</{tag}>", template)))
        for tag in ("script", "style")
    }
    return "; ".join(
        (
            "default-src 'none'",
            "img-src data: file:",
            "media-src data: file:",
            f"script-src {own['script']}",
            f"style-src {own['style']}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _hashes(texts: Sequence[str]) -> list[str]:
    digests = [hashlib.sha256(text.encode()).digest() for text in texts]
    return [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]


def report(folder: Path) -> str:
    """The page of a run folder, or of a folder of runs. Raises ConfigError."""
    texts = Texts()
    if run_folder.is_begun(folder):
        return page({"run": run_row(folder, texts)}, texts)
    return page({"runs": run_rows(folder, texts), "name": folder.name}, texts)


def write(folder: Path, out: Path | None, trace: Path | None) -> Path:
    """Write the page, or the trace if it has a name. Returns the file. Raises ConfigError."""
    named = trace or out
    text = json.dumps(perfetto(run_row(folder, Texts()))) if trace else report(folder)
    if named is not None:
        named.write_text(text, encoding="utf-8")
        return named
    file = folder / "report.html"
    with outside.written(file) as page:  # the folder may come from someone else
        page.write(text.encode())
    return file


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    p = argparse.ArgumentParser(
        prog="orchestra-min report",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    p.add_argument("folder", type=Path, metavar="RUN|DIR")
    p.add_argument(
        "-o", "--out", type=Path, metavar="PAGE", help="(report.html in the folder)"
    )
    p.add_argument(
        "--perfetto", type=Path, metavar="TRACE", help="write a trace, not a page"
    )
    a = p.parse_args(argv)

    def work() -> None:
        print(write(a.folder, a.out, a.perfetto))

    return command_line.run_program(p.prog, work)
