#!/usr/bin/env python3
"""One word of the sub-agents' prompt is edited, and every recorded run of fixtures/results is made again with --reuse:
which part of its calls and tokens need not be paid? fixtures/stand_in.py replies to what is new.

python benchmarks/one_word.py [METHOD ...]        needs pip install -e '.[local]'
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from common import ROOT

from fixtures import results, stand_in
from fixtures.intranet import PORT
from orchestra.command.programs import run_program
from orchestra.command.runs import table
from orchestra.evaluation.questions import Question, load
from orchestra.kernel import prompts
from orchestra.kernel.folder import read_events, read_manifest
from orchestra.kernel.tape import Answer, Exchange, exchanges
from orchestra.variation.reuse import answers_of
from orchestra_min import orchestrate

EDITS = {  # the prompt that sub-agents read, and the word of it that changes
    "orchestra-o1": ("react/system.md", "your own task only", "your own task alone"),
    "aorchestra": ("react/system.md", "your own task only", "your own task alone"),
    "toolorchestra": ("toolorchestra/experts.md", "Solve the", "Answer the"),
    "mas-orchestra": ("reasoning/messages.md", "# The task", "# The problem"),
    "react": ("react/alone.md", "everything that the", "everything which the"),
}
COLUMNS = "method runs first main sub-agents tools tokens changed"


@contextmanager
def edited(file: str, old: str, new: str) -> Iterator[None]:
    """One word of a prompt is another one, until the end of the block."""
    kept = prompts.ROOT
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(kept, folder, dirs_exist_ok=True)
        text = (Path(folder) / file).read_text()
        assert old in text, (file, old)
        (Path(folder) / file).write_text(text.replace(old, new, 1))
        prompts.ROOT = Path(folder)
        forget()
        try:
            yield
        finally:
            prompts.ROOT = kept
            forget()


def forget() -> None:
    prompts._template.cache_clear()
    prompts._sections.cache_clear()


def made_again(run: Path, q: Question, url: str, out: Path) -> Counter[str]:
    """Make a run again from its tape. Returns what was reused of what."""
    held = read_manifest(run)
    moved = (replace(b, base_url=url) for b in held.pool.backends)
    again = orchestrate(
        held.question,
        q.media,
        pool=replace(held.pool, backends=tuple(moved)),
        options=held.options,
        out=out,
        sources=[answers_of(run)],
    )
    counts: Counter[str] = Counter(runs=1)
    rows = list(exchanges(out / "tape.jsonl"))
    first = min((row.round for row in rows if is_main(row)), default=0)
    for row in rows:
        share = int(bool(row.reused))
        for name, amount in amounts(row, first):
            counts[name] += amount
            counts[f"{name} reused"] += amount * share
    old = read_events(run)[-1]
    counts["changed"] = int(again.answer != old["answer"])
    return counts


def is_main(row: Exchange) -> bool:
    return row.request["kind"] == "chat" and "/main/" in row.call


def amounts(row: Exchange, first_round: int) -> Iterator[tuple[str, int]]:
    """The columns in which an exchange counts, and how much."""
    if row.request["kind"] != "chat":
        yield "tools", 1
        return
    yield "main" if is_main(row) else "sub-agents", 1
    if is_main(row) and row.round == first_round:
        yield "first", 1
    if isinstance(row.outcome, Answer):
        yield "tokens", row.outcome.value["data"]["usage"]["total_tokens"]


def row_of(method: str, counts: Counter[str]) -> dict[str, object]:
    row: dict[str, object] = {"method": method, "runs": counts["runs"]}
    for name in ("first", "main", "sub-agents", "tools"):
        row[name] = f"{counts[f'{name} reused']} of {counts[name]}"
    row["tokens"] = f"{counts['tokens reused'] / max(counts['tokens'], 1):.0%}"
    row["changed"] = counts["changed"]
    return row


def sweep(method: str, asked: dict[str, Question], folder: Path) -> Counter[str]:
    """All runs of a recorded sweep, made again with the edited prompt."""
    runs = sorted((folder / "recorded" / method / "runs").iterdir())
    server = stand_in.server(0, runs)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    total: Counter[str] = Counter()
    with edited(*EDITS[method]):
        for run in runs:
            url = f"http://127.0.0.1:{server.server_port}/v1"
            total += made_again(
                run, asked[run.name.partition("@")[0]], url, folder / method / run.name
            )
    server.shutdown()
    return total


def main(methods: list[str]) -> None:
    asked = {q.name: q for q in load(results.MINIGAIA / "questions.json")}
    search = f"http://127.0.0.1:{PORT}/search"
    os.environ |= {"SERPER_API_KEY": "local", "SERPER_URL": search}
    intranet = ROOT / "fixtures" / "intranet.py", PORT, results.MINIGAIA / "site"
    command = [sys.executable, *map(str, intranet)]
    began_s = time.monotonic()
    rows = []
    all_runs: Counter[str] = Counter()
    with (
        results.serving(command, f"http://127.0.0.1:{PORT}"),
        tempfile.TemporaryDirectory() as folder,
    ):
        results.unpack(results.PACKED, Path(folder) / "recorded")
        for method in methods or EDITS:
            counts = sweep(method, asked, Path(folder))
            all_runs += counts
            rows.append(row_of(method, counts))
    print(table(COLUMNS, [*rows, row_of("all", all_runs)]))
    print(f"reused of all calls; {time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    sys.exit(run_program("one_word.py", lambda: main(sys.argv[1:])))
