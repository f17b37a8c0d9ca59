"""The pool B, from a pool file or the environment. An error names file, line and key."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from orchestra.vocabulary import SKILL_OF, Amount, Backend, ConfigError, Skill

OPENAI_URL = "https://api.openai.com/v1"
SHIPPED = Path(__file__).with_name("backends.toml")
RESERVED = {  # request fields that the program sets itself
    "model", "messages", "stream", "n", "response_format", "logprobs", "top_logprobs",
    "max_tokens", "max_completion_tokens",
}  # fmt: skip
URL = re.compile(r"https?://(\[[\da-fA-F:.]+\]|[\w.-]+)(:\d{1,5})?(/[^\s?#@]*)?")
BAD_URL = "needs http(s)://host/v1, without user, key or ?query"
BAD_KEY = "needs the name of an environment variable, not the key itself"
Loc = tuple[int | str, ...]
Analysis = Literal["image", "audio"]


class Invalid(ConfigError):
    """An invalid value and its place, such as ("backend", 1, "price")."""

    def __init__(self, loc: Loc, problem: str) -> None:
        super().__init__(loc, problem)
        self.loc, self.problem = loc, problem

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.loc))}: {self.problem}"


class Checked(BaseModel):
    """A model whose ValidationError is one line."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, revalidate_instances="always",
        arbitrary_types_allowed=True,
    )  # fmt: skip

    def __init__(self, /, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            first = error.errors()[0]
            loc = tuple(key for key in first["loc"] if "[" not in str(key))
            problem = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
            raise Invalid(loc, problem) from None

    def with_(self, **fields: Any) -> Self:
        """A copy with other fields, checked."""
        return type(self)(**{**dict(self), **fields})


@dataclass(frozen=True)
class Engine:
    """Who analyses images or sound: a model of the pool, or a library on this machine."""

    engine: Literal["endpoint", "local"]
    backend: str = ""
    transcription_model: str = (
        ""  # audio: the transcription endpoint, not a chat with sound
    )
    usd_per_minute: Amount | None = None  # of that endpoint


def _with_model(entry: Any) -> Any:
    """Without `model`, a backend's name is the model's."""
    return (
        {"model": entry.get("name", ""), **entry} if isinstance(entry, dict) else entry
    )


class Pool(Checked):
    """B, the main agent's backend among them, and the engines of perception."""

    backends: tuple[Annotated[Backend, BeforeValidator(_with_model)], ...] = Field(
        alias="backend", min_length=1
    )
    main: str = ""  # the first backend
    engines: dict[Analysis, Engine] = {}
    experts: dict[str, str] = Field({}, alias="expert_model_mapping")  # slot -> backend

    def model_post_init(self, _: Any) -> None:
        names = self.names
        for i, b in enumerate(self.backends):
            reserved = ", ".join(sorted(RESERVED & set(b.options)))
            for key, wrong, problem in (
                ("name", b.name in names[:i], f"{b.name!r} is defined twice"),
                ("base_url", not URL.fullmatch(b.base_url), BAD_URL),
                (
                    "api_key_env",
                    b.api_key_env and not b.api_key_env.isidentifier(),
                    BAD_KEY,
                ),
                ("options", reserved, f"cannot set {reserved}: the program sets it"),
            ):
                if wrong:
                    raise Invalid(("backend", i, key), problem)
        if not self.main:
            object.__setattr__(self, "main", names[0])
        endpoints = {
            kind: e for kind, e in self.engines.items() if e.engine == "endpoint"
        }
        for loc, name in (
            (("main",), self.main),
            *(
                (("expert_model_mapping", slot), name)
                for slot, name in self.experts.items()
            ),
            *(
                (("engines", kind, "backend"), e.backend)
                for kind, e in endpoints.items()
            ),
        ):
            if name not in names:
                raise Invalid(
                    loc, f"{name!r} is not a backend; one of {', '.join(names)}"
                )

    def __getitem__(self, name: str) -> Backend:
        return next(b for b in self.backends if b.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(b.name for b in self.backends)

    def engine(self, kind: Analysis) -> Engine:
        """Without an [engines] entry: the first backend that sees or hears, else the library."""
        if kind in self.engines:
            return self.engines[kind]
        able = [b for b in self.backends if b.skills.get(SKILL_OF[kind], 0.0) > 0]
        return Engine("endpoint", able[0].name) if able else Engine("local")


def load(path: Path) -> Pool:
    """Read a pool file. Raises ConfigError with file, line and key."""
    text = ""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        return Pool(**tomllib.loads(text))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({error}); see orchestra/runtime/backends.toml"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    except Invalid as error:
        raise ConfigError(f"{path}:{_line(text, error.loc)}: {error}") from None


def _line(text: str, loc: Loc) -> int:
    """The line that sets the key in the i-th [[table]], or else the line of the table."""
    rows, at, keys = text.splitlines(), 0, loc
    if len(loc) > 1 and isinstance(loc[1], int):
        headers = [
            n for n, row in enumerate(rows) if re.match(rf"\s*\[\[\s*{loc[0]}\b", row)
        ]
        at, end = (*headers, len(rows), len(rows))[loc[1] : loc[1] + 2]
        rows, keys = rows[:end], loc[2:]
    for key in keys:
        setting = re.compile(rf"\s*\[*\s*[\w.]*\b{re.escape(str(key))}\b")
        at = next(
            (n for n, row in enumerate(rows) if n >= at and setting.match(row)), at
        )
    return at + 1


def from_environment(model: str | None = None) -> Pool:
    """The endpoint of OPENAI_BASE_URL and OPENAI_API_KEY; with a key alone, the shipped pool.
    Raises ConfigError.
    """
    url, key = (
        os.environ.get(f"OPENAI_{n}", "").strip() for n in ("BASE_URL", "API_KEY")
    )
    if not url and not key:
        names = "OPENAI_API_KEY, OPENAI_BASE_URL or --backends FILE"
        raise ConfigError(f"no endpoint: set {names}; to try it without one: make demo")
    if not url:
        pool = load(SHIPPED)
        if model is None or model in pool.names:
            return pool.with_(main=model or pool.main)
    elif not URL.fullmatch(url):
        raise ConfigError(f"OPENAI_BASE_URL: {BAD_URL}")
    url, env = (url or OPENAI_URL).rstrip("/"), "OPENAI_API_KEY" if key else ""
    skills: dict[Skill, float] = {"txt": 1.0, "img": 1.0, "aud": 1.0, "code": 1.0}
    return Pool(backends=(Backend(model or "main", model or "", url, env, skills),))


def analysed(media: Iterable[str]) -> set[Analysis]:
    """The engines that these media need; a video, or a file of unknown kind, may need both."""
    kinds: tuple[Analysis, ...] = get_args(Analysis)
    return {kind for m in media for kind in kinds if m == kind or m not in kinds}


def choose(
    pool: Pool | Path | str | None,
    model: str | None = None,
    perception: str | None = None,
    media: Iterable[str] = (),
) -> Pool:
    """A pool, given or from a file or the environment, with --model and --perception applied.
    `media`: the modalities of the files. Raises ConfigError.
    """
    file = pool
    if not isinstance(pool, Pool):
        pool = load(Path(pool)) if pool else from_environment(model)
    if file and model:
        if model not in pool.names:
            raise ConfigError(
                f"--model {model}: not in {file}; one of {', '.join(pool.names)}"
            )
        pool = pool.with_(main=model)
    if perception == "local":
        return pool.with_(engines={"image": Engine("local"), "audio": Engine("local")})
    if perception == "endpoint":
        pool = pool.with_(engines={})
        if lost := [
            SKILL_OF[k] for k in analysed(media) if pool.engine(k).engine == "local"
        ]:
            raise ConfigError(
                f"--perception endpoint: no backend has the skill {min(lost)}"
            )
    return pool


def check(pool: Pool, budget_usd: float | None) -> None:
    """Raises ConfigError if a key is missing or unusable, or a price that --budget needs."""
    for b in pool.backends:
        key = os.environ.get(b.api_key_env, "").strip()
        where = f"backend {b.name}: the environment variable {b.api_key_env}"
        if b.api_key_env and not key:
            raise ConfigError(f"{where} is not set; set it to your key")
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(
                f"{where} holds a line break or a non-ASCII character; set it again"
            )
        if budget_usd is not None and b.price_usd_per_mtok is None:
            price = f"price_usd_per_mtok of backend {b.name} in a file of --backends"
            raise ConfigError(f"--budget needs prices: set {price} (docs/models.md)")
    audio = pool.engine("audio")
    if (
        budget_usd is not None
        and audio.transcription_model
        and audio.usd_per_minute is None
    ):
        raise ConfigError(
            "--budget needs prices: set usd_per_minute of [engines] audio"
        )
