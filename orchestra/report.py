"""An HTML page that shows a run, or all runs in a folder.

orchestra-min report RUN    the rounds, sub-tasks and calls of a run, on a timeline
orchestra-min report DIR    the runs of a folder as a table, and any two next to each other
orchestra-min report RUN --perfetto TRACE    the calls as a trace, for ui.perfetto.dev
"""

from __future__ import annotations

import argparse
import base64
import json
import mimetypes
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestra.evaluation.trace import perfetto
from orchestra.runtime import command_line, console, run_folder, tape, trajectory
from orchestra.runtime.completion import tokens_of, url_of
from orchestra.vocabulary import Backend, ConfigError

PAGE = Path(__file__).parent / "evaluation" / "page.html"
INLINE_BYTES = 8 << 20  # the page links to a larger media file in the run folder
OUTCOME = (
    "answer",
    "fallback",
    "why",
    "rounds",
    "calls",
    "tokens",
    "cost_usd",
    "failed_subtasks",
)
SCORES = "judge", "match", "exact"  # of evaluate.py; the first that a row has counts
Row = dict[str, Any]
Texts = dict[str, int]  # each text of a page and its number


def number_of(value: Any, texts: Texts) -> int:
    """The number of a text. A page has each text once and refers to its number: prompts repeat."""
    text = (
        value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, indent=1)
    )
    return texts.setdefault(text, len(texts))


def run_row(folder: Path, texts: Texts, whole: bool = True) -> Row:
    """The data of a run. `whole`: with its media and trajectory. Raises ConfigError."""
    manifest = run_folder.read_manifest(folder)
    events = trajectory.read(folder / "trajectory.jsonl")
    end = trajectory.ended(events) or {"why": "the run has not ended"}
    row: Row = {key: end.get(key) for key in OUTCOME}
    row |= {
        "name": folder.name,
        "question": manifest.question,
        "method": manifest.options.method,
    }
    row |= {
        "model": manifest.pool.main,
        "latency_s": end.get("timing", {}).get("latency_s"),
    }
    prices = {(url_of(b), b.model): b for b in manifest.pool.backends}
    rows = tape.exchanges(folder / "tape.jsonl")
    row["tape"] = [call_row(exchange, texts, prices) for exchange in rows]
    if whole:
        row["media"] = [media_row(folder, m.name, m.modality) for m in manifest.media]
        row["events"] = [e for e in events if e["event"] not in ("run", "end")]
    return row


def call_row(
    exchange: Row, texts: Texts, prices: Mapping[tuple[str, str], Backend]
) -> Row:
    """One exchange: its request, its answer or failure, what it took and cost."""
    request, answer = exchange["request"], exchange.get("answer")
    row: Row = {
        "call": exchange["call"],
        "kind": request["kind"],
        "key": exchange["key"][:16],
    }
    row |= exchange.get("timing", {})
    messages = request.get("messages") if row["kind"] == "chat" else None
    rest = {k: v for k, v in request.items() if k != "kind"}
    asked = (
        [(m["role"], m["content"]) for m in messages]
        if messages
        else [("request", rest)]
    )
    row["asked"] = [[role, number_of(text, texts)] for role, text in asked]
    if messages:
        row["model"] = request.get("model")
    if "failure" in exchange:
        return {**row, "failed": True, "got": number_of(exchange["failure"], texts)}
    data = answer.get("data") if isinstance(answer, dict) else None
    if messages and isinstance(data, dict):
        message = data["choices"][0]["message"]
        read, written, cached = tokens_of(data)
        row |= {"input_tokens": read, "output_tokens": written}
        row["tokens"] = (read or 0) + (written or 0)
        backend = prices.get((str(request.get("url")), row["model"]))
        if backend and read is not None and written is not None:
            row["cost_usd"] = backend.cost_usd(read, written, cached)
        answer = message.get("content") or message
    row["failed"] = isinstance(answer, dict) and "error" in answer
    return {**row, "got": number_of(answer, texts)}


def media_row(folder: Path, name: str, modality: str) -> Row:
    """A media file of the question, as a data URL if it is small enough."""
    file = folder / "media" / name
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    if not file.is_file() or file.stat().st_size > INLINE_BYTES:
        return {"name": name, "modality": modality, "url": file.resolve().as_uri()}
    data = base64.b64encode(file.read_bytes()).decode()
    return {"name": name, "modality": modality, "url": f"data:{kind};base64,{data}"}


def page(data: Row, texts: Texts) -> str:
    """The page with its data, compressed: no text of a model can become markup or script."""
    whole = json.dumps({**data, "texts": list(texts)}, ensure_ascii=False, default=str)
    packed = base64.b64encode(
        zlib.compress(whole.encode("utf-8", "replace"), 9)
    ).decode()
    return PAGE.read_text(encoding="utf-8").replace("{{DATA}}", packed)


def report(folder: Path) -> str:
    """The page of a run folder, or of a folder of runs. Raises ConfigError."""
    texts: Texts = {}
    if (folder / "run.json").is_file():
        return page({"run": run_row(folder, texts)}, texts)
    files = [
        file
        for depth in ("*", "*/*", "*/*/*")
        for file in folder.glob(f"{depth}/run.json")
    ]
    if not files:
        raise ConfigError(
            f"{folder}: is not a run folder and holds none; give RUN or DIR"
        )
    rows, scores = [], scores_in(folder)
    for run in sorted(file.parent for file in files):
        name = run.relative_to(folder).as_posix()
        try:
            rows.append(
                {
                    **run_row(run, texts, whole=False),
                    "name": name,
                    **scores.get(name, {}),
                }
            )
        except (ConfigError, tape.TapeMiss, *console.DAMAGED) as error:
            console.tell(f"left out: {name}: {error}")
    return page({"runs": rows, "name": folder.name}, texts)


def scores_in(folder: Path) -> dict[str, Row]:
    """Category, level and score of each run, from rows.jsonl of evaluate.py."""
    found: dict[str, Row] = {}
    for file in sorted([*folder.glob("rows.jsonl"), *folder.glob("*/rows.jsonl")]):
        for row in {
            row.get("id"): row for row in tape.read(file)
        }.values():  # the newest of each
            kept = {
                "expected": row.get("right"),
                **{k: row.get(k) for k in ("category", "level")},
            }
            kept["right"] = next(
                (row[k] for k in SCORES if row.get(k) is not None), False
            )
            run = file.parent / "runs" / str(row.get("run"))
            found[run.relative_to(folder).as_posix()] = kept
    return found


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
        out = a.perfetto or a.out or a.folder / "report.html"
        if out.is_symlink() and not a.out:  # the folder may come from someone else
            raise ConfigError(f"{out} is a link; remove it, or give another --out")
        trace = a.perfetto and json.dumps(perfetto(run_row(a.folder, {})))
        out.write_text(trace or report(a.folder), encoding="utf-8")
        print(out)

    return command_line.ended(p.prog, work)
