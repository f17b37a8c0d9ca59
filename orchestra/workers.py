"""What ToolOrchestra reads of a pool file: [expert_model_mapping] and the [[worker]] entries.

Every error names file, line and key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from orchestra.secrets import url_problem
from orchestra.vocabulary import Backend, ConfigError, Price

WORKER_KEYS = {
    "id", "name", "type", "model", "base_url", "api_key", "description", "price_usd_per_mtok",
}  # fmt: skip
EXPERT_SLOTS = {  # ToolOrchestra's tools, each slot with $/M in, $/M out, latency in s
    "enhance_reasoning": {
        "reasoner-1": (1.25, 10.0, 31.0),
        "reasoner-2": (0.25, 2.0, 25.0),
        "reasoner-3": (0.8, 0.8, 9.0),
    },
    "answer": {
        "answer-1": (1.25, 10.0, 96.0),
        "answer-2": (0.25, 2.0, 27.0),
        "answer-3": (0.9, 0.9, 15.0),
        "answer-4": (0.8, 0.8, 11.0),
        "answer-math-1": (0.9, 0.9, 13.0),
        "answer-math-2": (0.2, 0.2, 9.0),
    },
    "search": {
        "search-1": (1.25, 10.0, 22.0),
        "search-2": (0.25, 2.0, 16.0),
        "search-3": (0.8, 0.8, 8.0),
    },
}
Error = Callable[..., ConfigError]  # (key, what, index of the entry, its table)
ReadPrice = Callable[[dict[str, Any], int, str], Price | None]  # (entry, its index, its table)


@dataclass(frozen=True)
class Worker:
    """An entry of ToolOrchestra's prompted pool; its `backend` is in B, or, with an endpoint of its
    own, beside it.
    """

    id: int
    name: str
    type: Literal["chat", "search"]
    backend: str
    description: str = ""


def read_experts(table: Any, names: list[str], error: Error) -> dict[str, str]:
    """ToolOrchestra's EXPERT_MODEL_MAPPING: slot = "backend"."""
    if not isinstance(table, dict):
        raise error("expert_model_mapping", 'needs a table of slot = "backend"')
    slots = [slot for of_tool in EXPERT_SLOTS.values() for slot in of_tool]
    for slot, name in table.items():
        if slot not in slots:
            raise error(slot, f"unknown slot; one of {', '.join(slots)}")
        if name not in names:
            raise error(slot, f"{name!r} is no backend; one of {', '.join(names)}")
    return dict(table)


def read_workers(
    entries: Any, backends: tuple[Backend, ...], price: ReadPrice, error: Error
) -> tuple[tuple[Worker, ...] | None, tuple[Backend, ...]]:
    """The [[worker]] entries, and the backends of those with an endpoint of their own."""
    if entries is None:
        return None, ()
    if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        raise error("worker", "needs [[worker]] tables")
    workers: list[Worker] = []
    own: list[Backend] = []
    for i, entry in enumerate(entries):
        for key, problem in _problems(entry, [b.name for b in backends]):
            raise error(key, problem, i, "worker")
        if entry["id"] in [w.id for w in workers]:
            raise error("id", f"{entry['id']} is there twice", i, "worker")
        name = _own_name(entry) if "base_url" in entry else entry["model"]
        description = entry.get("description", "")
        workers.append(Worker(entry["id"], entry["name"], entry["type"], name, description))
        if "base_url" in entry:
            url, secret = entry["base_url"].rstrip("/"), entry.get("api_key", "")
            skills, usd = {"txt": 1.0, "code": 1.0}, price(entry, i, "worker")
            own.append(Backend(name, entry["model"], url, secret[1:], skills, usd))
    return tuple(workers), tuple(own)


def _own_name(entry: dict[str, Any]) -> str:
    return f"worker {entry['id']}"


def _problems(entry: dict[str, Any], names: list[str]) -> Iterator[tuple[str, str]]:
    """(key, what is wrong with it), the first one first; those behind it may not hold."""
    if unknown := sorted(set(entry) - WORKER_KEYS):
        yield unknown[0], f"unknown key; known: {', '.join(sorted(WORKER_KEYS))}"
    if type(entry.get("id")) is not int:
        yield "id", f"needs a whole number, not {entry.get('id')!r}"
    for key in ("name", "type", "model"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            yield key, "needs a text in quotes"
    if entry["type"] not in ("chat", "search"):
        yield "type", f'needs "chat" or "search", not {entry["type"]!r}'
    for key in ("base_url", "api_key", "description"):
        if not isinstance(entry.get(key, ""), str):
            yield key, "needs a text in quotes"
    url, secret = "base_url" in entry, entry.get("api_key", "")
    if secret and not re.fullmatch(r"(?a:\$[a-zA-Z_]\w*)", secret):
        yield "api_key", 'needs the name of an environment variable, as in "$MY_KEY"'
    if secret and not url:
        yield "api_key", "belongs to a base_url; a backend of this file has its own api_key_env"
    if not url and entry["model"] not in names:
        yield "model", f"without base_url it needs a backend of this file: {', '.join(names)}"
    if "price_usd_per_mtok" in entry and not url:
        yield "price_usd_per_mtok", "belongs to a base_url; a backend of this file has its own"
    if url and (problem := url_problem(entry["base_url"])):
        yield "base_url", problem
    if url and _own_name(entry) in names:
        yield "id", f"a backend has the name {_own_name(entry)!r}; give one of them another"
