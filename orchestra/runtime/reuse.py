"""--reuse: an exchange whose request equals one on the tape of another run is taken from there.

    reused = Reused([Path("runs/city")], only="")
    found = reused.find("chat", "r1/t2/s1", key, made=1)  # ("city", its row), or None

The answer comes from the same logical call if that made an equal request, else from the nearest
other call: the one with the most equal names from the end, so r2/t1/s1 takes that of r1/t1/s1. A
call that makes a request for the n-th time takes the n-th nearest. So what an exchange takes
depends on its call and on the tapes, never on the timing of threads. Two calls may take the same
row: nobody can know whether a parallel call is still going to make the request.

Not taken are
- failures;
- the models that an endpoint serves, if it is another endpoint: its address is in this request;
- the list of tools of an MCP server, which shows whether the server has changed;
- another of several parallel samples of one step: copies would count as votes;
- programs that left files, which later programs may read: they run again, and that costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from orchestra.runtime import run_folder
from orchestra.runtime.jsonl import Row, row_at
from orchestra.runtime.run_folder import Only
from orchestra.runtime.tape_file import Entry, entries
from orchestra.vocabulary import SUMMARY, Place

# Kinds of exchanges with a model; within a tool, they are the tool's
MODELS = ("chat", "models")
ANEW = "mcp_tools"  # a kind that costs nothing
PROGRAMS = ("code", "bash", "diff")  # kinds of exchanges that may leave files
SAMPLE = re.compile(r"/p\d+$")  # one of several parallel calls of a step


class Source(NamedTuple):
    """An exchange that may be reused, and the run that has it."""

    run: Path
    entry: Entry


class Reused:
    """The exchanges of some runs, by their requests. The folders may come from someone else: only
    their tapes are read.
    """

    def __init__(self, runs: Iterable[str | Path], only: Only = "") -> None:
        """Raises ConfigError for a folder that is not a run, or damaged."""
        self.only = only
        self._sources: dict[str, list[Source]] = {}
        for run in map(Path, runs):
            run_folder.read_manifest(run)
            for entry in entries(run / "tape.jsonl"):
                is_free = entry.kind == ANEW or _left_files(run, entry)
                if entry.answered and not is_free:
                    source = Source(run, entry)
                    self._sources.setdefault(entry.key, []).append(source)

    def find(self, kind: str, call: str, key: str, made: int) -> tuple[str, Row] | None:
        """The run and the row that the call takes when it makes this request for the `made`-th
        time; None if there is none.
        """
        if self.only and self.only != _part_of(kind, call):
            return None
        sources = [s for s in self._sources.get(key, ()) if _is_usable(s, call)]
        sources.sort(key=lambda s: _nearness(s.entry.call, call), reverse=True)
        if len(sources) < made:
            return None
        run, entry = sources[made - 1]
        return run_folder.name_of(run), row_at(run / "tape.jsonl", entry.offset)


def names_of(runs: Iterable[str | Path]) -> tuple[str, ...]:
    """The names of run folders, as run.json and the tape have them."""
    return tuple(run_folder.name_of(Path(run)) for run in runs)


def _is_usable(source: Source, call: str) -> bool:
    """Whether a call may take a row: not if it is another sample of the same step."""
    other = source.entry.call
    return other == call or SAMPLE.sub("", other) != SAMPLE.sub("", call)


def _nearness(call: str, other: str) -> int:
    """How many names of two calls are equal, from the end.

    >>> _nearness("r1/t1/s2", "r2/t1/s2")
    2
    """
    count = 0
    for a, b in zip(call.split("/")[::-1], other.split("/")[::-1], strict=False):
        if a != b:
            break
        count += 1
    return count


def _part_of(kind: str, call: str) -> Only:
    """Whether an exchange belongs to the tools or to the models of a run. What a tool asks a model
    is the tool's.
    """
    place = Place.parse(call)
    part = "" if place is None else place.part
    in_tool = part not in ("", SUMMARY) and not SAMPLE.search(f"/{part}")
    return "models" if kind in MODELS and not in_tool else "tools"


def _left_files(run: Path, entry: Entry) -> bool:
    """Whether it is a program in a sub-task whose programs left files."""
    place = Place.parse(entry.call)
    if place is None or entry.kind not in PROGRAMS:
        return False
    folder = run / "work" / place.folder
    return folder.is_dir() and any(folder.iterdir())
