"""Where a pool comes from: backends.toml, its errors naming file, line and key; or, without a file,
the environment. All before anything is paid.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestra.pool import Engine, Pool, default_engines
from orchestra.secrets import url_problem
from orchestra.vocabulary import SKILLS, Backend, ConfigError, Price
from orchestra.workers import read_experts, read_workers

OPENAI_URL = "https://api.openai.com/v1"
KEYS = {
    "name",
    "model",
    "base_url",
    "api_key_env",
    "skills",
    "price_usd_per_mtok",
    "latency_s",
    "max_output_tokens",
    "options",
    "image_tokens",
}
ENGINE_KEYS = {"engine", "backend", "transcription_model", "usd_per_minute"}
OURS = {  # request fields that are no option: the program sets them itself
    "model", "messages", "stream", "n", "response_format", "logprobs", "top_logprobs",
    "max_tokens", "max_completion_tokens",
}  # fmt: skip


def load(path: Path) -> Pool:
    """Read a pool file. Raises ConfigError with file, line, key and what to write instead."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: can not be read ({error}); name a pool file like backends.toml"
        ) from None
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    return _PoolFile(path, text).parse(table)


class _PoolFile:
    """The checks, with the text at hand so that an error can name its line."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.lines = path, re.sub(r"(?m)^[ \t]*#.*", "", text).split("\n")

    def parse(self, table: dict[str, Any]) -> Pool:
        known = {"main", "backend", "engines", "worker", "expert_model_mapping"}
        if unknown := sorted(set(table) - known):
            tables = "[[backend]], [engines], [[worker]], [expert_model_mapping]"
            raise self.error(unknown[0], f"unknown key; known: main, {tables}")
        entries = table.get("backend")
        if (
            not isinstance(entries, list)
            or not entries
            or not all(isinstance(e, dict) for e in entries)
        ):
            raise self.error("backend", "no [[backend]] table; add one with name and base_url")
        backends = tuple(self.backend(entry, i) for i, entry in enumerate(entries))
        names = [b.name for b in backends]
        for i, name in enumerate(names):
            if name in names[:i]:
                raise self.error(
                    "name", f"{name!r} is there twice; give each backend its own name", i
                )
        main = table.get("main", names[0])
        if main not in names:
            raise self.error(
                "main", f"{main!r} is no backend of this file; one of {', '.join(names)}"
            )
        experts = read_experts(table.get("expert_model_mapping", {}), names, self.error)
        workers, own = read_workers(table.get("worker"), backends, self.price, self.error)
        pool = Pool(backends, main, {}, workers, experts, own)
        return replace(
            pool, engines={**default_engines(pool), **self.engines(table.get("engines", {}), names)}
        )

    def backend(self, entry: dict[str, Any], i: int) -> Backend:
        if unknown := sorted(set(entry) - KEYS):
            raise self.error(unknown[0], f"unknown key; known: {', '.join(sorted(KEYS))}", i)
        name, url = self.text(entry, "name", i), self.text(entry, "base_url", i)
        if problem := url_problem(url):
            raise self.error("base_url", problem, i)
        key = self.text(entry, "api_key_env", i, "")
        if not re.fullmatch(r"(?a:[a-zA-Z_]\w*)?", key):  # a key by mistake: not said again
            raise self.error(
                "api_key_env", "needs the name of an environment variable, not the key itself", i
            )
        skills = {
            k: self.number(entry["skills"], k, i, 1.0)
            for k in self.table(entry, "skills", SKILLS, i)
        }
        for count in ("max_output_tokens", "image_tokens"):
            if count in entry and (type(entry[count]) is not int or entry[count] < 16):
                raise self.error(count, "needs a whole number of at least 16", i)
        return Backend(
            name=name,
            model=entry.get("model", name)
            if isinstance(entry.get("model", name), str)
            else self.text(entry, "model", i),
            base_url=url.rstrip("/"),
            api_key_env=key,
            skills=skills or {"txt": 1.0, "code": 1.0},
            price=self.price(entry, i, "backend"),
            latency_s=self.number(entry, "latency_s", i) if "latency_s" in entry else 0.0,
            max_output_tokens=entry.get("max_output_tokens"),
            options=self.options(entry, i),
            image_tokens=entry.get("image_tokens", Backend.image_tokens),
        )

    def price(self, entry: dict[str, Any], i: int, of: str) -> Price | None:
        key, kinds = "price_usd_per_mtok", ("input", "output", "cached")
        usd = {
            k: self.number(entry[key], k, i, of=of) for k in self.table(entry, key, kinds, i, of)
        }
        if not usd:
            return None
        if not {"input", "output"} <= set(usd):
            raise self.error(key, "needs both input and output", i, of)
        return Price(usd["input"], usd["output"], usd.get("cached", usd["input"]))

    def options(self, entry: dict[str, Any], i: int) -> dict[str, Any]:
        options = {k: entry["options"][k] for k in self.table(entry, "options", None, i)}
        if ours := sorted(OURS & set(options)):
            what = f"can not hold {ours[0]}, the program sets it; known beside options: "
            raise self.error("options", what + "model, max_output_tokens", i)
        try:
            json.dumps(options, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise self.error("options", f"can not be sent as JSON: {error}", i) from None
        return options

    def engines(self, table: Any, names: list[str]) -> dict[str, Engine]:
        if not isinstance(table, dict) or set(table) - {"image", "audio"}:
            raise self.error("engines", "needs the tables image and audio, no other")
        engines = {}
        for tool, entry in table.items():
            if not isinstance(entry, dict) or set(entry) - ENGINE_KEYS:
                raise self.error(tool, f"needs a table with {', '.join(sorted(ENGINE_KEYS))}")
            if entry.get("engine") not in ("endpoint", "local"):
                raise self.error(tool, 'engine needs "endpoint" or "local"')
            if entry["engine"] == "endpoint" and entry.get("backend") not in names:
                raise self.error(tool, f"backend needs one of {', '.join(names)}")
            for key in ("backend", "transcription_model"):
                self.text(entry, key, None, "")
            if "usd_per_minute" in entry:
                self.number(entry, "usd_per_minute", None)
            engines[tool] = Engine(**entry)
        return engines

    def text(
        self, entry: dict[str, Any], key: str, i: int | None, default: str | None = None
    ) -> str:
        value = entry.get(key, default)
        if not isinstance(value, str) or (not value and default is None):
            raise self.error(key, "needs a text in quotes", i)
        return value

    def number(
        self,
        entry: Mapping[str, Any],
        key: str,
        i: int | None,
        most: float = float("inf"),
        of: str = "backend",
    ) -> float:
        value = entry[key]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value <= min(most, sys.float_info.max):
            span = "of at least 0" if math.isinf(most) else f"from 0 to {most:g}"
            raise self.error(key, f"needs a number {span}, not {value!r}", i, of)
        return float(value)

    def table(
        self,
        entry: dict[str, Any],
        key: str,
        known: tuple[str, ...] | None,
        i: int,
        of: str = "backend",
    ) -> list[str]:
        value = entry.get(key, {})
        if not isinstance(value, dict) or (known and set(value) - set(known)):
            fields = ", ".join(known) if known else "request fields"
            raise self.error(key, f"needs a table with {fields}", i, of)
        return list(value)

    def error(
        self, key: str, what: str, i: int | None = None, table: str = "backend"
    ) -> ConfigError:
        """The first line that sets `key`, in the i-th [[backend]] or [[worker]] if one is meant."""
        header = re.compile(rf"\s*\[\[\s*{table}\s*\]\]")
        headers = [n for n, line in enumerate(self.lines) if header.match(line)]
        start = headers[i] if i is not None and i < len(headers) else 0
        end = headers[i + 1] if i is not None and i + 1 < len(headers) else len(self.lines)
        hits = [
            n
            for n in range(start, end)
            if re.search(rf"(?<![\w-]){re.escape(key)}(?![\w-])[\"']?\s*[=\].]", self.lines[n])
        ]
        return ConfigError(f"{self.path}:{(hits[0] if hits else start) + 1}: {key}: {what}")


def from_environment(model: str | None, environment: Mapping[str, str] = os.environ) -> Pool:
    """One endpoint by OPENAI_BASE_URL / OPENAI_API_KEY and --model; with a key alone, the pool file
    of this repository.
    """
    url, key = (environment.get(name, "").strip() for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"))
    if not url and not key:
        raise ConfigError(
            "no endpoint: set OPENAI_API_KEY, or OPENAI_BASE_URL for a local server, or give "
            "--backends FILE; without any: `make demo`, or "
            "`python orchestra_min.py --replay fixtures/runs/equinox`"
        )
    if not url:
        pool = load(Path(__file__).resolve().parent.parent / "backends.toml")
        if model is None:
            return pool
        if model in pool.names:
            return replace(pool, main=model)
    if url and (problem := url_problem(url)):
        raise ConfigError(f"OPENAI_BASE_URL: {problem}")
    skills = {"txt": 1.0, "img": 1.0, "aud": 1.0, "code": 1.0}
    backend = Backend(
        model or "main",
        model or "",
        (url or OPENAI_URL).rstrip("/"),
        "OPENAI_API_KEY" if key else "",
        skills,
    )
    return replace(pool := Pool((backend,), backend.name, {}), engines=default_engines(pool))


def choose(file: Path | None, model: str | None, perception: str | None) -> Pool:
    """The pool that the flags --backends, --model and --perception and the environment ask for."""
    pool = load(file) if file else from_environment(model)
    if file and model:
        if model not in pool.names:
            raise ConfigError(
                f"--model {model}: is no backend of {file}; one of {', '.join(pool.names)}"
            )
        pool = replace(pool, main=model)
    if perception == "local":
        pool = replace(pool, engines={"image": Engine("local"), "audio": Engine("local")})
    elif perception == "endpoint":
        pool = replace(pool, engines=default_engines(pool))
        if any(e.engine == "local" for e in pool.engines.values()):
            raise ConfigError(
                "--perception endpoint: no backend of the pool has the skills img and aud"
            )
    return pool
