"""What an entry of a tape came to: an answer, a failure that is tried again, or one that later
calls went on from.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2

from orchestra import lines
from orchestra.call import round_of
from orchestra.clients import NEVER_SENT, TRIED_BY_CALLER

RETRYABLE = {408, 409, 429, *range(500, 600)}

Entry = dict[str, Any]


def holds_paid(path: Path) -> bool:
    """Whether anything on this tape may have been paid for, and is worth keeping."""
    asked = (e for e in lines.read(path) if round_of(str(e.get("call"))))  # of the run's rounds
    sent = (e for e in asked if e["request"]["method"] != "GET")
    return any("result" in e or _successful(e) or may_be_billed(e) for e in sent)


def built_on(entries: Sequence[Entry]) -> set[int]:
    """The ids of the failures from which the run went on: a later round, or a later step of the
    same task, was answered.
    """
    stays, last_round, later = set(), 0, defaultdict[str, set[str]](set)
    for entry in reversed(entries):
        parts = entry["call"].split("/")  # as r1/t2/s3/part4: parts stand side by side
        task, step = "/".join(parts[:2]), "/".join(parts[:3])
        if answered(entry):
            last_round = max(last_round, round_of(entry["call"]))
            later[task].add(step)
        elif last_round > round_of(entry["call"]) or later[task] - {step}:
            stays.add(id(entry))
    return stays


def answered(entry: Entry) -> bool:
    """Whether an entry is an answer. A completion without a choice is none, whatever its status."""
    if "result" in entry:
        return True
    if not _successful(entry):
        return False
    if not entry["request"]["uri"].endswith("/chat/completions"):
        return True
    try:
        return bool(json.loads(entry["response"]["body"])["choices"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _successful(entry: Entry) -> bool:
    return "response" in entry and 200 <= entry["response"]["status"]["code"] < 300


def in_vain(entry: Entry) -> bool:
    """Whether it is a failure after which it is Chat that tries again, and not the client."""
    return issubclass(_failure(entry), TRIED_BY_CALLER)


def may_be_billed(entry: Entry) -> bool:
    """Whether it is a failure of something that may have reached the endpoint."""
    return in_vain(entry) and not issubclass(_failure(entry), NEVER_SENT)


def _failure(entry: Entry) -> type[Any]:
    """The class of its failure, of httpx2; NoneType where there is none."""
    error = entry.get("error")
    if error is None or error["library"] != "httpx2":
        return type(None)
    return getattr(httpx2, error["type"])  # type: ignore[no-any-return]


def tried_again(entry: Entry) -> bool:
    """Whether the client itself tries again, under the same key, after this outcome."""
    if "error" in entry:
        return not in_vain(entry)
    response = entry.get("response", {"headers": {}, "status": {}})
    said = {k.lower(): v for k, v in response["headers"].items()}.get("x-should-retry")
    return said == ["true"] if said else response["status"].get("code") in RETRYABLE
