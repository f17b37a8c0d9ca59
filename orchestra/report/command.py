"""An HTML page that shows a run, or all runs in a folder.

orchestra-min report RUN    how a run ended and why, its costs, calls, decisions and equations
orchestra-min report DIR    the runs of a folder as a table, each with its page; compares any two
orchestra-min report RUN --live    the page of a run that is in progress follows it
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

from orchestra.command.flags import OneLineParser
from orchestra.command.programs import run_program
from orchestra.command.terminal import tell
from orchestra.kernel.vocabulary import ConfigError
from orchestra.report import live, run_data
from orchestra.report.folder_data import run_folders, scores_in, short_row
from orchestra.report.page import page, parts
from orchestra.report.totals import is_running

FOLLOWED = ("run.json", "tape.jsonl", "trajectory.jsonl", "changes.diff")
POLL_S = 0.5  # how often it is seen whether a run has ended


# ---- pages ---------------------------------------------------------------------------------------


def report(folder: Path, media: Path | None = None) -> str:
    """The page of a run folder. `media`: a folder with media that it lacks. Raises ConfigError."""
    return page(run_data.data_of(run_data.read(folder), media))


def write(folder: Path, out: Path | None = None, media: Path | None = None) -> Path:
    """Write the page of a run or of a folder. Returns the file. Raises ConfigError."""
    file = out or folder / "report.html"
    is_run = (folder / "run.json").is_file()
    text = report(folder, media) if is_run else _write_runs(folder, file, media)
    _put(file, text, within=file if out else folder)
    return file


def _write_runs(folder: Path, file: Path, media: Path | None) -> str:
    """Write the pages of the runs in a folder. Returns the page of the folder, which links to them
    and has the scores of sweeps, and their questions without a run. A run that is damaged is named
    and left out.
    """
    pages = file.with_name(f"{file.stem}-runs")
    runs = run_folders(folder)
    scores = scores_in(folder)
    rows = []
    for run in runs:
        name = run.relative_to(folder).as_posix()
        try:
            recorded = run_data.read(run)
            row = short_row(recorded)
            above = "../" * len(Path(name).parts)
            text = page(run_data.data_of(recorded, media), shared=above)
        except (ConfigError, OSError) as error:
            tell(f"left out: {name}: {error}")
            continue
        place = f"{name}/index.html"
        _put(pages / place, text, within=file.parent)
        link = f"{quote(os.fsencode(pages.name))}/{quote(os.fsencode(place))}"
        rows.append({**scores.pop(name, {}), **row, "name": name, "page": link})
    for name, text in parts().items():
        _put(pages / name, text, within=file.parent)
    for name, scored in scores.items():
        if scored["unfinished"]:
            rows.append({**scored, "name": name, "state": "unfinished"})
    return page({"runs": rows, "name": folder.resolve().name})


def _put(file: Path, text: str, within: Path) -> None:
    """Write a file. Raises ConfigError for a link: the folder may come from someone else."""
    for path in (file, *file.parents):
        if path == within:
            break
        if path.is_symlink():
            raise ConfigError(f"{path} is a link; remove it, or give another --out")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8", errors="replace")


# ---- live ----------------------------------------------------------------------------------------


def follow(folder: Path) -> Path:
    """--live: serve the page until the run ends, and write it. Raises ConfigError."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder")
    if not is_running(folder):
        raise ConfigError(f"{folder} is not a run in progress; leave --live out")
    with live.serve(partial(_growing, folder), partial(_stamp, folder)) as url:
        print(f"live page: {url}", flush=True)
        while is_running(folder):
            time.sleep(POLL_S)
    return write(folder)


def _growing(folder: Path) -> run_data.Row:
    """The data of a run that may not have begun."""
    try:
        return run_data.data_of(run_data.read(folder))
    except ConfigError as error:
        return {"waiting": str(error), "texts": []}


def _stamp(folder: Path) -> str:
    """Another text after each change of the run folder, and after the end of the run."""
    parts = ["running" if is_running(folder) else "ended"]
    for name in FOLLOWED:
        file = folder / name
        parts.append(str(file.stat().st_size) if file.is_file() else "none")
    return "-".join(parts)


# ---- the command ---------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    p = OneLineParser(
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

    def work() -> None:
        a = p.parse_args(argv)
        if a.live and (a.out or a.media):
            raise ConfigError(
                "--live: does not go with --out or --media; give them later"
            )
        print(follow(a.folder) if a.live else write(a.folder, a.out, a.media))

    return run_program(p.prog, work)
