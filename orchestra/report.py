"""An HTML page that shows a run, or all runs in a folder.

orchestra-min report RUN    how a run ended and why, its costs, calls, decisions and equations
orchestra-min report DIR    the runs of a folder as a table, each with its page; compares any two
orchestra-min report RUN --live    the page of a run that is in progress follows it
orchestra-min report RUN --perfetto TRACE    the calls as a trace, for ui.perfetto.dev
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from orchestra.evaluation.trace import perfetto
from orchestra.page import live, page
from orchestra.page.folder_data import run_folders, scores_in, short_row, without_run
from orchestra.page.run_data import (
    Recorded,
    RunRow,
    Texts,
    media_rows,
    page_row,
    read,
    run_row,
)
from orchestra.runtime import command_line, console, outside
from orchestra.runtime.run_folder import is_begun
from orchestra.runtime.summary import is_running
from orchestra.vocabulary import ConfigError

FOLLOWED = ("run.json", "tape.jsonl", "trajectory.jsonl", "changes.diff")
POLL_S = 0.5  # how often it is seen whether a run has ended
Data = Mapping[str, Any]


# ---- pages ---------------------------------------------------------------------------------------


def report(folder: Path, media: Path | None = None) -> str:
    """The page of a run folder. `media`: a folder with media that it lacks. Raises ConfigError."""
    return _page_of(read(folder), media)


def _page_of(run: Recorded, media: Path | None) -> str:
    data = _data_of(run, media)
    return page(data, data["texts"])


def run_data(folder: Path) -> dict[str, Any]:
    """What the page of a run shows. Raises ConfigError."""
    return _data_of(read(folder), None)


def _data_of(run: Recorded, media: Path | None) -> dict[str, Any]:
    texts = Texts()
    row = page_row(run, texts)
    return {"run": row, "media": media_rows(run, media), "texts": list(texts)}


def write(
    folder: Path, out: Path | None, trace: Path | None, media: Path | None = None
) -> Path:
    """Write the page, or the trace if it has a name. Returns the file. Raises ConfigError."""
    if trace is not None:
        trace.write_text(
            json.dumps(perfetto(run_row(folder, Texts()))), encoding="utf-8"
        )
        return trace
    file = out or folder / "report.html"
    make = (
        partial(report, folder)
        if is_begun(folder)
        else partial(_write_runs, folder, file)
    )
    _put(file, make(media), within=file if out else folder)
    return file


def _write_runs(folder: Path, file: Path, media: Path | None) -> str:
    """Write the pages of the runs in a folder. Returns the page of the folder, which links to them
    and has the scores of sweeps, and their questions without a run. A run that is damaged is named
    and left out.
    """
    pages = file.with_name(f"{file.stem}-runs")
    scores = scores_in(folder)
    rows: list[RunRow] = []
    for run in run_folders(folder):
        name = run.relative_to(folder).as_posix()
        try:
            recorded = read(run)
            row = short_row(recorded)
            text = _page_of(recorded, media)
        except (ConfigError, OSError) as error:
            console.tell(f"left out: {name}: {error}")
            continue
        place = _place_of_page(name)
        _put(pages / place, text, within=file.parent)
        link = f"{quote(os.fsencode(pages.name))}/{quote(os.fsencode(place))}"
        rows.append({**scores.pop(name, {}), **row, "name": name, "page": link})
    rows += [without_run(name, s) for name, s in scores.items() if s["unfinished"]]
    return page({"runs": rows, "name": folder.resolve().name}, ())


def _place_of_page(name: str) -> str:
    """The file of a run's page in the folder of all pages. A folder of runs may have the name of
    another run's page.

    >>> _place_of_page("a"), _place_of_page("a.html/b")
    ('a.html', 'a.html_/b.html')
    """
    *folders, last = name.split("/")
    escaped = [re.sub(r"\.html_*$", r"\g<0>_", folder) for folder in folders]
    return "/".join([*escaped, f"{last}.html"])


def _put(file: Path, text: str, within: Path) -> None:
    """Write a file. Raises ConfigError for a link: the folder may come from someone else."""
    for path in (file, *file.parents):
        if path == within:
            break
        if path.is_symlink():
            raise ConfigError(f"{path} is a link; remove it, or give another --out")
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.parent == within or within in file.parents:
        with outside.written(file) as page_file:
            page_file.write(text.encode())
    else:
        file.write_text(text, encoding="utf-8")


# ---- live ----------------------------------------------------------------------------------------


@contextmanager
def followed(folder: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """A page that follows the run in a folder until the end of the block."""
    stamp = partial(_stamp, folder)
    with live.served(partial(_growing, folder), stamp) as url:
        tell(f"live page: {url}")
        yield


def _growing(folder: Path) -> Data:
    """The data of a run that may not have begun."""
    try:
        return run_data(folder)
    except ConfigError as error:
        return {"waiting": str(error), "texts": []}


def _stamp(folder: Path) -> str:
    """Another text after each change of the run folder, and after the end of the run."""
    parts = ["running" if is_running(folder) else "ended"]
    for name in FOLLOWED:
        file = folder / name
        parts.append(str(file.stat().st_size) if file.is_file() else "none")
    return "-".join(parts)


def follow(folder: Path) -> int:
    """--live: serve the page until the run ends, or Ctrl-C. Raises ConfigError."""
    if not is_running(folder):
        raise ConfigError(f"{folder} is not a run in progress; leave --live out")
    try:
        with followed(folder, partial(print, flush=True)):
            while is_running(folder):
                time.sleep(POLL_S)
    except KeyboardInterrupt:
        return 0
    print(write(folder, None, None))
    return 0


def _check_live(a: argparse.Namespace) -> None:
    """Raises ConfigError for a flag that --live cannot honour."""
    for name in ("out", "media", "perfetto"):
        if getattr(a, name) is not None:
            advice = "leave it out, and use it in a report after the end of the run"
            raise ConfigError(f"--{name}: does not go with --live; {advice}")


# ---- the command ---------------------------------------------------------------------------------


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
        "--media", type=Path, metavar="DIR", help="where media are that a run lacks"
    )
    p.add_argument("--live", action="store_true", help="follow a run in progress")
    p.add_argument(
        "--perfetto", type=Path, metavar="TRACE", help="write a trace, not a page"
    )
    a = p.parse_args(argv)

    def work() -> int:
        if a.live:
            _check_live(a)
            return follow(a.folder)
        print(write(a.folder, a.out, a.perfetto, a.media))
        return 0

    return command_line.run_program(p.prog, work)
