"""The pool B: which models there are, where they are served, and what they can do and cost.

It comes from a pool file (`load`) or from the environment (`from_environment`); `choose` also
applies the command line. All of it is checked before the first paid call. An error is one line that
names file, line and key.

    >>> small = Backend(name="small", model="", base_url="http://127.0.0.1:8000/v1")
    >>> pool = Pool(backends=(small,))
    >>> pool.main, pool.engine("image").engine
    ('small', 'local')
    >>> Pool(backends=(small, small))
    Traceback (most recent call last):
    orchestra.runtime.pool.Invalid: backend.1.name: 'small' is defined twice
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from operator import not_
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from orchestra.runtime.connections import missing_bundle
from orchestra.runtime.spelling import did_you_mean
from orchestra.vocabulary import SKILL_OF, Amount, Backend, ConfigError, Price, SubTask

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
# Types of errors of pydantic
UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
Loc = tuple[int | str, ...]  # where a value is, such as ("backend", 1, "price")
Analysis = Literal["image", "audio"]


# ---- checked data --------------------------------------------------------------------------------


class Invalid(ConfigError):
    """An invalid value, and where it is."""

    def __init__(self, loc: Loc, problem: str) -> None:
        super().__init__(loc, problem)
        self.loc = loc
        self.problem = problem

    def __str__(self) -> str:
        where = ".".join(str(key) for key in self.loc)
        return f"{where}: {self.problem}"


class Checked(BaseModel):
    """A model whose ValidationError is one line."""

    parts: ClassVar[tuple[Any, ...]] = ()  # the dataclasses in it
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        revalidate_instances="always",
        arbitrary_types_allowed=True,
    )

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            first = error.errors()[0]
            loc = tuple(key for key in first["loc"] if "[" not in str(key))
            problem = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
            if first["type"] in UNKNOWN_KEY:
                hint = did_you_mean(str(loc[-1]), self._known_keys())
                problem = f"is not a known key{hint}"
            raise Invalid(loc, problem) from None

    @classmethod
    def _known_keys(cls) -> set[str]:
        """The keys of this model and of the dataclasses in it."""
        known = {field.alias or name for name, field in cls.model_fields.items()}
        for part in cls.parts:
            known.update(field.name for field in fields(part))
        return known

    def with_(self, **changed: Any) -> Self:
        """A copy with other fields, checked."""
        return type(self)(**{**dict(self), **changed})


# ---- the pool ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Engine:
    """Who analyses images or sound: a model of the pool, or a library on this machine."""

    engine: Literal["endpoint", "local"]
    backend: str = ""
    # For audio: this model of the transcription endpoint, not a chat with sound
    transcription_model: str = ""
    usd_per_minute: Amount | None = None  # of that endpoint


def _with_model(entry: Any) -> Any:
    """Without `model`, a backend's name is the model's."""
    if not isinstance(entry, dict):
        return entry
    return {"model": entry.get("name", ""), **entry}


class Pool(Checked):
    """B, the main agent's backend among them, and the engines of perception."""

    parts = (Backend, Price, Engine)
    backends: tuple[Annotated[Backend, BeforeValidator(_with_model)], ...] = Field(
        alias="backend", min_length=1
    )
    main: str = ""  # the first backend
    # No sub-task goes to the main agent's backend. Not stored if false, as older runs lack it.
    main_only: bool = Field(False, exclude_if=not_)
    engines: dict[Analysis, Engine] = {}
    experts: dict[str, str] = Field({}, alias="expert_model_mapping")  # slot -> backend

    def model_post_init(self, _: Any) -> None:
        for i in range(len(self.backends)):
            self._check_backend(i)
        if not self.main:
            object.__setattr__(self, "main", self.names[0])
        self._check_name(("main",), self.main)
        if self.main_only and len(self.backends) == 1:
            problem = "needs a second [[backend]], which does the sub-tasks"
            raise Invalid(("main_only",), problem)
        for slot, name in self.experts.items():
            self._check_name(("expert_model_mapping", slot), name)
        for kind, engine in self.engines.items():
            if engine.engine == "endpoint":
                self._check_name(("engines", kind, "backend"), engine.backend)

    def _check_backend(self, i: int) -> None:
        b = self.backends[i]
        if b.name in self.names[:i]:
            raise Invalid(("backend", i, "name"), f"{b.name!r} is defined twice")
        if not URL.fullmatch(b.base_url):
            raise Invalid(("backend", i, "base_url"), BAD_URL)
        if b.api_key_env and not b.api_key_env.isidentifier():
            raise Invalid(("backend", i, "api_key_env"), BAD_KEY)
        reserved = ", ".join(sorted(RESERVED & set(b.options)))
        if reserved:
            problem = f"cannot set {reserved}: the program sets it"
            raise Invalid(("backend", i, "options"), problem)

    def _check_name(self, loc: Loc, name: str) -> None:
        if name not in self.names:
            known = ", ".join(self.names)
            hint = did_you_mean(name, self.names)
            raise Invalid(loc, f"{name!r} is not a backend; one of {known}{hint}")

    def __getitem__(self, name: str) -> Backend:
        return next(b for b in self.backends if b.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(b.name for b in self.backends)

    def for_subtasks(self, candidates: Iterable[SubTask] = ()) -> tuple[Backend, ...]:
        """The backends that may do these sub-tasks. With `main_only`, the main agent's is one only
        if a method names it, as react does.
        """
        if not self.main_only or any(u.backend == self.main for u in candidates):
            return self.backends
        return tuple(b for b in self.backends if b.name != self.main)

    @property
    def sub_models(self) -> tuple[str, ...]:
        """What the main agent may name as the model of a sub-task."""
        return tuple(b.name for b in self.for_subtasks())

    def engine(self, kind: Analysis) -> Engine:
        """Without an [engines] entry: the first backend that sees or hears, else the library."""
        if kind in self.engines:
            return self.engines[kind]
        skill = SKILL_OF[kind]
        able = [b for b in self.backends if b.skills.get(skill, 0.0) > 0]
        if not able:
            return Engine("local")
        return Engine("endpoint", backend=able[0].name)


# ---- a pool file ---------------------------------------------------------------------------------


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
    rows = text.splitlines()
    start = 0
    end = len(rows)
    keys = loc
    if len(loc) > 1 and isinstance(loc[1], int):
        start, end = _lines_of_table(rows, str(loc[0]), loc[1])
        keys = loc[2:]
    for key in keys:
        setting = re.compile(rf"\s*\[*\s*[\w.]*\b{re.escape(str(key))}\b")
        settings = (n for n in range(start, end) if setting.match(rows[n]))
        start = next(settings, start)
    return start + 1


def _lines_of_table(rows: Sequence[str], name: str, i: int) -> tuple[int, int]:
    """The first line of the i-th [[name]], and the line after its last."""
    header = re.compile(rf"\s*\[\[\s*{name}\b")
    starts = [n for n, row in enumerate(rows) if header.match(row)]
    if i >= len(starts):  # it is an array in one line
        return 0, len(rows)
    ends = [*starts[1:], len(rows)]
    return starts[i], ends[i]


# ---- the environment and the command line --------------------------------------------------------


def from_environment(model: str | None = None) -> Pool:
    """The endpoint of OPENAI_BASE_URL and OPENAI_API_KEY; with a key alone, the shipped pool.
    Raises ConfigError.
    """
    url = os.environ.get("OPENAI_BASE_URL", "").strip()
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    if not url and not key:
        names = "OPENAI_API_KEY, OPENAI_BASE_URL or --backends FILE"
        raise ConfigError(f"no endpoint: set {names}; to try it without one: make demo")
    if url and not URL.fullmatch(url):
        raise ConfigError(f"OPENAI_BASE_URL: {BAD_URL}")
    if not url:
        shipped = load(SHIPPED)
        if model is None or model in shipped.names:
            return shipped.with_(main=model or shipped.main)
    backend = Backend(
        name=model or "main",
        model=model or "",
        base_url=(url or OPENAI_URL).rstrip("/"),
        api_key_env="OPENAI_API_KEY" if key else "",
        skills={"txt": 1.0, "img": 1.0, "aud": 1.0, "code": 1.0},
    )
    return Pool(backends=(backend,))


def choose(
    pool: Pool | Path | str | None,
    model: str | None = None,
    perception: str | None = None,
    media: Iterable[str] = (),
) -> Pool:
    """A pool, given or from a file or the environment, with --model and --perception applied.
    `media`: the modalities of the files. Raises ConfigError.
    """
    if not pool:
        chosen = from_environment(model)
    else:
        chosen = pool if isinstance(pool, Pool) else load(Path(pool))
        if model:
            chosen = _with_main(chosen, model, file=pool)
    return perceiving(chosen, perception, media)


def perceiving(pool: Pool, perception: str | None, media: Iterable[str] = ()) -> Pool:
    """The pool with the engines of --perception. Raises ConfigError."""
    if perception == "local":
        local = Engine("local")
        return pool.with_(engines={"image": local, "audio": local})
    if perception == "endpoint":
        return _perceiving_by_endpoint(pool, media)
    return pool


def _with_main(pool: Pool, model: str, file: object) -> Pool:
    if model not in pool.names:
        known = ", ".join(pool.names)
        hint = did_you_mean(model, pool.names)
        raise ConfigError(f"--model {model}: not in {file}; one of {known}{hint}")
    return pool.with_(main=model)


def _perceiving_by_endpoint(pool: Pool, media: Iterable[str]) -> Pool:
    """The pool without the engines of its file. Raises ConfigError if no backend sees or hears."""
    pool = pool.with_(engines={})
    needed = analysed(media)
    lost = [SKILL_OF[kind] for kind in needed if pool.engine(kind).engine == "local"]
    if lost:
        skill = min(lost)
        raise ConfigError(f"--perception endpoint: no backend has the skill {skill}")
    return pool


def analysed(media: Iterable[str]) -> set[Analysis]:
    """The kinds of analysis that these media need; a video, or a file of unknown kind, may need
    both.

    >>> analysed(["image", "image"])
    {'image'}
    >>> sorted(analysed(["video"]))
    ['audio', 'image']
    """
    kinds: set[Analysis] = set(get_args(Analysis))
    needed: set[Analysis] = set()
    for modality in media:
        if modality == "file":
            continue  # a tool reads it, and no model
        named = {kind for kind in kinds if kind == modality}
        needed |= named or kinds
    return needed


def check(pool: Pool, budget_usd: float | None) -> None:
    """Raises ConfigError if a key is missing or unusable, a price that --budget needs, or a file of
    certificates.
    """
    missing = missing_bundle(os.environ)
    if missing and any(b.base_url.startswith("https:") for b in pool.backends):
        raise ConfigError(
            f"{missing}: there is no such file; set it to your certificates"
        )
    for b in pool.backends:
        _check_key(b)
        if budget_usd is not None and b.price_usd_per_mtok is None:
            price = f"price_usd_per_mtok of backend {b.name} in a file of --backends"
            raise ConfigError(f"--budget needs prices: set {price} (docs/models.md)")
    audio = pool.engine("audio")
    transcribes = audio.transcription_model != ""
    if budget_usd is not None and transcribes and audio.usd_per_minute is None:
        raise ConfigError(
            "--budget needs prices: set usd_per_minute of [engines] audio"
        )


def _check_key(b: Backend) -> None:
    key = os.environ.get(b.api_key_env, "").strip()
    where = f"backend {b.name}: the environment variable {b.api_key_env}"
    if b.api_key_env and not key:
        raise ConfigError(f"{where} is not set; set it to your key")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(
            f"{where} holds a line break or a non-ASCII character; set it again"
        )
