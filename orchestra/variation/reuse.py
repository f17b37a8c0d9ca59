"""--reuse: an exchange whose request equals one on the tape of another run is taken from there.

    orchestrate("Which city?", out="runs/again", sources=[answers_of(Path("runs/city"))])

The answer comes from the same logical call if that made an equal request, else from the nearest
other call: the one with the most equal names from the end, so r2/t1/s1 takes that of r1/t1/s1. A
call that makes a request for the n-th time takes the n-th nearest. So what an exchange takes
depends on its call and on the tapes, never on the timing of threads. Two calls may take the same
answer: nobody can know whether a parallel call is still going to make the request.

Not taken are
- failures;
- another of several parallel samples of one step: copies would count as votes;
- what also depends on something that differs now: the files of a program, the source of one's own
  tool or sub-agent, the command and version of an MCP server. A program that left files, or found
  those of another, runs again.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from orchestra.kernel.folder import read_manifest
from orchestra.kernel.tape import Answer, Exchange, Source, exchanges

SAMPLE = re.compile(r"/p\d+$")  # one of several parallel calls of a step


def answers_of(*runs: Path) -> Source:
    """The answers of some runs. Their folders may come from someone else: only their tapes are
    read. Raises ConfigError for a folder that is not a run, or damaged.
    """
    by_key: dict[str, list[Exchange]] = defaultdict(list)
    for run in runs:
        read_manifest(run)
        for exchange in exchanges(run / "tape.jsonl"):
            if isinstance(exchange.outcome, Answer):
                key = exchange.key + exchange.depends_on
                by_key[key].append(replace(exchange, reused=name_of(run)))

    def find(kind: str, call: str, key: str, times: int) -> Exchange | None:
        """What a call takes when it makes this request for the `times`-th time."""
        found = [e for e in by_key.get(key, ()) if _is_no_copy(e.call, call)]
        found.sort(key=lambda e: _nearness(e.call, call), reverse=True)
        if len(found) < times:
            return None
        return replace(found[times - 1], began_s=time.time(), took_s=0.0)

    return find


def name_of(run: Path) -> str:
    """The name of a run folder in files: in UTF-8, which a name need not be."""
    return run.resolve().name.encode("utf-8", "replace").decode()


def _is_no_copy(other: str, call: str) -> bool:
    """Whether a call may take the answer of another: not if that is a sample of the same step."""
    return other == call or SAMPLE.sub("", other) != SAMPLE.sub("", call)


def _nearness(call: str, other: str) -> int:
    """How many names of two calls are equal, from the end; the same call is nearest.

    >>> _nearness("r1/t1/s2", "r2/t1/s2")
    2
    """
    count = 0
    for a, b in zip(call.split("/")[::-1], other.split("/")[::-1], strict=False):
        if a != b:
            return count
        count += 1
    return count + (call == other)
