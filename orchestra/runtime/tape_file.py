"""What is on a tape: its exchanges, and the key by which each is found.

    for row in exchanges(path):
        row["call"], row["request"], row["answer"]  # or row["failure"]

The key is the SHA-256 of what the model or the tool sees, so it leaves out the address of a model.
A tape may come from someone else, so each line is checked.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from orchestra.runtime.jsonl import Row, located, row_at
from orchestra.vocabulary import SUMMARY, ConfigError, Place

# An image or a sound in a request
BASE64 = re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{4096,}={0,2}")
NAME_CHARS = 1000  # of a call, or a key
MAX_TIME_S = 1e11  # the year 5138
TYPES = {"call": str, "key": str, "request": dict}  # of the fields of an exchange
OVER_BUDGET = "budget"  # the cause of a failure: the call was not started
# Kinds whose `url` says only where a model is served
ADDRESSED = ("chat", "transcription")


@dataclass(frozen=True, slots=True)
class Entry:
    """An exchange on the tape, without what it holds: a long tape may be larger than memory."""

    offset: int  # of its line
    call: str
    kind: str
    key: str
    answered: bool
    kept: bool  # a fork copied it, or the budget did not cover it


def round_of(call: str) -> int:
    """The round of a logical call; 0 if it belongs to no round."""
    place = Place.parse(call)
    return 0 if place is None else place.round


# ---- the request ---------------------------------------------------------------------------------


def request_text(kind: str, request: Row) -> str:
    """A request and its kind as JSON, with the digest of each image and sound: the data is in
    RUN/media.
    """
    fields = dict(request)
    if "kind" in fields:  # a parameter of a user's tool
        fields["kind_"] = fields.pop("kind")
    fields["kind"] = kind
    text = json.dumps(fields, sort_keys=True, ensure_ascii=False, default=str)
    return BASE64.sub(_digest, text)


def key_of(request: Row) -> str:
    """The SHA-256 of a request, as it is on the tape, without the address of the model."""
    text = json.dumps(without_address(request), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def without_address(request: Row) -> Row:
    """What a model or a tool sees of a request."""
    fields = dict(request)
    if fields["kind"] in ADDRESSED:
        fields.pop("url", None)
    return fields


def _digest(data: re.Match[str]) -> str:
    return f"blob:{hashlib.sha256(data[0].encode()).hexdigest()}"


def is_time(began_s: object) -> TypeGuard[float]:
    """Whether a tape can have this as the time of a call, in seconds since 1970."""
    return isinstance(began_s, int | float) and 0 <= began_s < MAX_TIME_S


# ---- the file ------------------------------------------------------------------------------------


def entries(path: Path, same_budget: bool = True) -> list[Entry]:
    """The exchanges of a tape, without the failures that a resume retried. Under another budget,
    it also retried calls that the budget did not cover. Raises ConfigError.
    """
    found: list[Entry] = []
    newest = 0  # where those of the newest resume begin
    for offset, row in located(path):
        if "resumed" in row:
            found[newest:] = _without_retried(found[newest:])
            newest = len(found)
        elif _is_exchange(row):
            not_covered = same_budget and _is_over_budget(row.get("failure"))
            kept = "kept" in row or not_covered
            request = row["request"]
            entry = Entry(
                offset=offset,
                call=row["call"],
                kind=request["kind"],
                key=key_of(request),
                answered="answer" in row,
                kept=kept,
            )
            found.append(entry)
        else:
            problem = "has a line that is not an exchange; restore a copy"
            raise ConfigError(f"{path} {problem}")
    return found


def exchanges(path: Path) -> Iterator[Row]:
    """The same as rows, read one by one."""
    for entry in entries(path):
        yield row_at(path, entry.offset)


def _is_exchange(row: Row) -> bool:
    is_typed = all(isinstance(row.get(name), kind) for name, kind in TYPES.items())
    if not is_typed or not isinstance(row["request"].get("kind"), str):
        return False
    is_short = max(len(row["call"]), len(row["key"])) <= NAME_CHARS
    return is_short and ("answer" in row or "failure" in row)


def _without_retried(found: list[Entry]) -> list[Entry]:
    """Drop the failures that a resume retries.

    Keep a failure if some later prompt may quote it: a later round, another step of the same
    sub-task, or a repeat of the same call has an answer. Keep what a fork copied, and calls
    that the budget did not cover: it is still the same. The summary that a sub-agent was asked
    for after a failure does not count: with another outcome, it goes on.
    """
    kept: list[Entry] = []
    last_round = 0  # of the answers after the entry
    answered_calls: set[str] = set()
    answered_steps: dict[str, set[str]] = defaultdict(set)  # by sub-task
    for entry in reversed(found):
        call = entry.call
        parts = call.split("/")  # as r1/t2/s3/part4
        subtask = "/".join(parts[:2])
        step = "/".join(parts[:3])
        if entry.answered:
            last_round = max(last_round, round_of(call))
            if parts[2:] != [SUMMARY]:
                answered_steps[subtask].add(step)
            answered_calls.add(call)
            kept.append(entry)
            continue
        quoted_later = last_round > round_of(call)
        quoted_in_subtask = bool(answered_steps[subtask] - {step})
        repeated = call in answered_calls
        if quoted_later or quoted_in_subtask or repeated or entry.kept:
            kept.append(entry)
    return kept[::-1]


def _is_over_budget(failure: Any) -> bool:
    return isinstance(failure, dict) and failure.get("cause") == OVER_BUDGET
