"""The pool B: which models there are, where they are served, and what they can do and cost.

It comes from a pool file (`load`) or from the environment (`from_environment`); `choose` also
applies --model. All of it is checked before the first paid call, and an error is one line that
names file, line and key.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import requests
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestra.command.redact import Redact
from orchestra.kernel.attempts import Problem, attempt
from orchestra.kernel.folder import pool_of
from orchestra.kernel.http import NoAnswer, deliver
from orchestra.kernel.vocabulary import Backend, ConfigError, EndpointError, Pool

OPENAI_URL = "https://api.openai.com/v1"
SHIPPED = Path(__file__).with_name("backends.toml")
RESERVED = {  # request fields that the program sets itself
    "model",
    "messages",
    "stream",
    "n",
    "response_format",
    "logprobs",
    "top_logprobs",
    "max_tokens",
    "max_completion_tokens",
}
URL = re.compile(r"https?://(\[[\da-fA-F:.]+\]|[\w.-]+)(:\d{1,5})?(/[^\s?#@]*)?")
BAD_URL = "needs http(s)://host/v1, without user, key or ?query"
BAD_KEY = "needs the name of an environment variable, not the key itself"
LIST_S = 30.0  # for the list of models
LISTED = 10  # models in an error
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Skill = Annotated[float, Field(ge=0, le=1)]
Loc = tuple[int | str, ...]  # where a value is, such as ("backend", 1, "price")


# ---- a pool file ---------------------------------------------------------------------------------


class Invalid(Exception):
    """What is wrong with a pool, and where each of these problems is."""

    def __init__(self, *problems: tuple[Loc, str]) -> None:
        super().__init__("; ".join(problem for _, problem in problems))
        self.problems = problems


class Table(BaseModel):
    """A table of a pool file."""

    model_config = ConfigDict(extra="forbid")


class PriceTable(Table):
    input: Amount
    output: Amount
    cached: Amount | None = None


class BackendTable(Table):
    """`model`: by default the name."""

    name: Annotated[str, Field(min_length=1)]
    model: str = ""
    base_url: str
    api_key_env: str = ""
    skills: dict[Literal["txt", "img", "aud", "vid", "code"], Skill] = {
        "txt": 1.0,
        "code": 1.0,
    }
    price_usd_per_mtok: PriceTable | None = None
    latency_s: Amount = 0.0
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    options: dict[str, Any] = {}
    image_tokens: Annotated[int, Field(ge=0)] = 6000


class EngineTable(Table):
    """Who analyses images or sound. `transcription_model`: this one of the transcription endpoint,
    not a chat with sound.
    """

    engine: Literal["endpoint", "local"]
    backend: str = ""
    transcription_model: str = ""
    usd_per_minute: Amount | None = None


class PoolTable(Table):
    main: str = ""
    backend: Annotated[list[BackendTable], Field(min_length=1)]
    engines: dict[Literal["image", "audio"], EngineTable] = {}
    expert_model_mapping: dict[str, str] = {}


KEYS = sorted(
    {*PoolTable.model_fields, *BackendTable.model_fields, *PriceTable.model_fields}
)


def load(path: Path) -> Pool:
    """Read a pool file. Raises ConfigError with file, line and key."""
    text = ""
    try:
        text = path.read_text(encoding="utf-8-sig")
        return pool_from(tomllib.loads(text))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{path}: cannot be read ({why}); an example: {SHIPPED}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    except Invalid as error:
        found = sorted((_line(text, loc), problem) for loc, problem in error.problems)
        lines = [f"{line}: {problem}" for line, problem in found]
        told = Redact(["OPENAI_API_KEY"]).text("; line ".join(lines))
        raise ConfigError(f"{path}:{told}") from None


def pool_from(row: Mapping[str, Any]) -> Pool:
    """The pool in the tables of a file. Raises Invalid."""
    try:
        table = PoolTable(**row)
    except ValidationError as error:
        raise Invalid(*_problems(error)) from None
    except TypeError:  # a key that is no name of a parameter
        raise Invalid((("self",), "self is not a known key")) from None
    names = [backend.name for backend in table.backend]
    table.main = table.main or names[0]
    for i, backend in enumerate(table.backend):
        _check_backend(i, backend, names[:i])
        backend.model = backend.model or backend.name
    _check_name(("main",), table.main, names)
    for slot, name in table.expert_model_mapping.items():
        _check_name(("expert_model_mapping", slot), name, names)
    for kind, engine in table.engines.items():
        if engine.engine == "endpoint":
            _check_name(("engines", kind, "backend"), engine.backend, names)
    return pool_of(table.model_dump())


def _problems(error: ValidationError) -> Iterator[tuple[Loc, str]]:
    """Where each problem is and what it is. A misspelled key is not missing, too."""
    found = error.errors()
    meant = {}
    for problem in found:
        if problem["type"] == "extra_forbidden":
            key = str(problem["loc"][-1])
            near = difflib.get_close_matches(key, KEYS, n=1)
            meant[key] = f"; did you mean {near[0]}?" if near else ""
    for problem in found:
        loc = tuple(part for part in problem["loc"] if part != "[key]")
        key = str(loc[-1])
        names = [str(part) for part in loc if not isinstance(part, int)]
        path = ".".join(names[names[0] == "backend" and len(names) > 1 :])
        if problem["type"] == "missing":
            if not any(f" {key}?" in text for text in meant.values()):
                yield loc, f"{path} is missing"
        elif problem["type"] == "extra_forbidden":
            yield loc, f"{path} is not a known key{meant[key]}"
        else:
            told, _, _ = problem["msg"].partition(", unable")
            yield loc, f"{path} {told.removeprefix('Input ')}"


def _check_backend(i: int, backend: BackendTable, before: Sequence[str]) -> None:
    reserved = ", ".join(sorted(RESERVED & backend.options.keys()))
    options = f"cannot set {reserved}: the program sets it" if reserved else ""
    problems = {
        "name": f"{backend.name!r} is defined twice" if backend.name in before else "",
        "base_url": "" if URL.fullmatch(backend.base_url) else BAD_URL,
        "api_key_env": "" if f"{backend.api_key_env}_".isidentifier() else BAD_KEY,
        "options": options if _is_json(backend.options) else "has a date, not JSON",
    }
    for key, problem in problems.items():
        if problem:
            raise Invalid((("backend", i, key), f"{key}: {problem}"))


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _check_name(loc: Loc, name: str, names: Sequence[str]) -> None:
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        meant = f"did you mean {near[0]}?" if near else f"one of {', '.join(names)}"
        raise Invalid((loc, f"{loc[-1]}: {name!r} is not a backend; {meant}"))


def _line(text: str, loc: Loc) -> int:
    """The line that sets the key in the i-th [[table]], or else the line of the table."""
    rows = text.splitlines()
    start, end = 0, len(rows)
    keys = loc
    if len(loc) > 1 and isinstance(loc[1], int):
        starts = [
            n for n, row in enumerate(rows) if re.match(rf"\s*\[\[\s*{loc[0]}\b", row)
        ]
        starts.append(len(rows))
        if loc[1] + 1 < len(starts):  # else it is an array in one line
            start, end = starts[loc[1] : loc[1] + 2]
        keys = loc[2:]
    for key in keys:
        setting = re.compile(rf"\s*\[*\s*[\w.]*\b{re.escape(str(key))}\b")
        start = next((n for n in range(start, end) if setting.match(rows[n])), start)
    return start + 1


# ---- the environment and the command line --------------------------------------------------------


def choose(file: Path | None, model: str | None = None) -> Pool:
    """As the command line does: `named`, then `with_models`. Raises ConfigError, EndpointError."""
    return with_models(named(file, model))


def named(file: Path | None, model: str | None = None) -> Pool:
    """The pool of a file or of the environment, with --model applied. Raises ConfigError."""
    if file is None:
        return from_environment(model)
    pool = load(file)
    if model and model not in pool.names:
        raise ConfigError(
            f"--model {model}: not in {file}; one of {', '.join(pool.names)}"
        )
    return replace(pool, main=model or pool.main)


def from_environment(model: str | None = None) -> Pool:
    """The endpoint of OPENAI_BASE_URL and OPENAI_API_KEY; with a key alone, the shipped pool.
    Raises ConfigError.
    """
    url = os.environ.get("OPENAI_BASE_URL", "").strip()
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    if not url and not key:
        names = "OPENAI_API_KEY, OPENAI_BASE_URL or --backends FILE"
        raise ConfigError(f"no endpoint: set {names}; docs/models.md")
    if url and not URL.fullmatch(url):
        raise ConfigError(f"OPENAI_BASE_URL: {BAD_URL}")
    if not url:
        shipped = load(SHIPPED)
        if model is None or model in shipped.names:
            return replace(shipped, main=model or shipped.main)
    backend = Backend(
        name=model or "main",
        model=model or "",
        base_url=(url or OPENAI_URL).rstrip("/"),
        api_key_env="OPENAI_API_KEY" if key else "",
        skills={"txt": 1.0, "img": 1.0, "aud": 1.0, "code": 1.0},
    )
    return Pool((backend,), backend.name)


def check(pool: Pool, budget_usd: float | None, redact: Redact) -> None:
    """Raises ConfigError if a key is missing, unusable or in the pool, or if --budget needs a price
    that is not there.
    """
    _check_certificates(pool)
    for b in pool.backends:
        key = os.environ.get(b.api_key_env, "").strip()
        where = f"backend {b.name}: the environment variable {b.api_key_env}"
        if b.api_key_env and not key:
            raise ConfigError(redact.text(f"{where} is not set; set it to your key"))
        if not (key.isascii() and key.isprintable()):
            problem = "holds a line break or a non-ASCII character; set it again"
            raise ConfigError(f"{where} {problem}")
        if budget_usd is not None and b.price_usd_per_mtok is None:
            price = f"price_usd_per_mtok of backend {b.name} in a file of --backends"
            raise ConfigError(f"--budget needs prices: set {price} (docs/models.md)")
    audio = pool.engines.get("audio", {})
    lacks_price = (
        audio.get("transcription_model") and audio.get("usd_per_minute") is None
    )
    if budget_usd is not None and lacks_price:
        raise ConfigError(
            "--budget needs prices: set usd_per_minute of [engines] audio"
        )
    if redact.finds(repr(pool)):
        advice = "put it into an environment variable and its name into api_key_env"
        raise ConfigError(f"the pool contains a key; {advice}")


def _check_certificates(pool: Pool) -> None:
    if not any(b.base_url.startswith("https:") for b in pool.backends):
        return
    for name in (
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
    ):
        path = os.environ.get(name)
        if path and not Path(path).exists():
            raise ConfigError(
                f"{name}: {path} does not exist; set it to your certificates"
            )


def keys_of(pools: Iterable[Pool]) -> list[str]:
    """The environment variables of their keys."""
    return [b.api_key_env for pool in pools for b in pool.backends if b.api_key_env]


# ---- which model an endpoint serves --------------------------------------------------------------


def with_models(pool: Pool, timeout_s: float = LIST_S) -> Pool:
    """The pool with the model of each backend: if none is named, the only one that its endpoint
    serves within a time limit, which also becomes its name. Raises ConfigError, EndpointError.
    """
    backends = tuple(_with_model(backend, timeout_s) for backend in pool.backends)
    main = backends[list(pool.names).index(pool.main)]
    return replace(pool, backends=backends, main=main.name)


def _with_model(backend: Backend, timeout_s: float) -> Backend:
    if backend.model:
        return backend
    served = served_models(backend, timeout_s)
    if len(served) != 1:
        none = "no list of models (most URLs end in /v1)"
        listed = ", ".join(served[:LISTED]) or none
        raise ConfigError(f"{backend.base_url} serves {listed}: name one with --model")
    return replace(backend, name=served[0], model=served[0])


def served_models(backend: Backend, timeout_s: float = LIST_S) -> list[str]:
    """The models of an endpoint; [] if it has no list of them. Raises EndpointError."""
    url = f"{backend.base_url}/models"
    key = os.environ.get(backend.api_key_env, "").strip() or "none"
    headers = {"authorization": f"Bearer {key}"}
    request = requests.Request("GET", url, headers=headers)
    try:
        answer = deliver(url, request.prepare, timeout_s)
    except NoAnswer as error:
        more = "; --model names a model" * error.timed_out
        raise EndpointError(f"{url}: {error}{more}") from None
    status = answer.status
    if status in (401, 403, 429) or status >= 500:  # it says nothing about a list
        found = attempt(lambda: answer)
        why = found.why if isinstance(found, Problem) else ""
        raise EndpointError(f"{url}: status {status}: {why}", status)
    try:
        names = [model["id"] for model in json.loads(answer.content)["data"]]
        return [n for n in names if isinstance(n, str) and n.isprintable()]
    except (ValueError, LookupError, TypeError):
        return []
