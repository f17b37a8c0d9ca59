"""The pool B: the backends of a run, and who looks and listens for it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from orchestra.secrets import key_problem
from orchestra.vocabulary import Backend, ConfigError, SubTask
from orchestra.workers import Worker


@dataclass(frozen=True)
class Engine:
    """Who looks or listens for a perception tool: a model of the pool, or a library on this
    machine.
    """

    engine: Literal["endpoint", "local"]
    backend: str = ""
    transcription_model: str = (
        ""  # audio only: the transcription endpoint instead of a chat with `input_audio`
    )
    usd_per_minute: float | None = None  # of the transcription endpoint


@dataclass(frozen=True)
class Pool:
    """B: the candidate backends, the main agent's among them, and the engines of the perception
    tools.
    """

    backends: tuple[Backend, ...]
    main: str
    engines: Mapping[str, Engine] = field(default_factory=dict)  # default_engines fills it up
    workers: tuple[Worker, ...] | None = None  # None: every backend is one
    experts: Mapping[str, str] = field(default_factory=dict)  # slot of EXPERT_SLOTS -> backend
    beside: tuple[Backend, ...] = ()  # not in B: endpoints of single workers, reached by name alone

    def __post_init__(self) -> None:
        """Raises ConfigError where a name is that of no backend."""
        eyes = {f"engines, {kind}": e.backend for kind, e in self.engines.items() if e.backend}
        for where, name in {"main": self.main, **eyes}.items():
            if name not in [b.name for b in self.reached]:
                known = ", ".join(b.name for b in self.reached)
                raise ConfigError(f"pool: {where}: {name!r} is no backend; one of {known}")

    def __getitem__(self, name: str) -> Backend:
        return next(b for b in self.reached if b.name == name)

    @property
    def reached(self) -> tuple[Backend, ...]:
        """All that a run may call."""
        return (*self.backends, *self.beside)

    def candidates(self, subtasks: Sequence[SubTask]) -> tuple[Backend, ...]:
        """B, and what these sub-tasks name beside it."""
        named = {u.backend for u in subtasks}
        return (*self.backends, *(b for b in self.beside if b.name in named))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(b.name for b in self.backends)

    def expert(self, slot: str) -> str:
        """The backend behind a slot. Unmapped, slot n is the n-th of the pool, or its last."""
        return self.experts.get(slot) or self.names[min(int(slot[-1]), len(self.names)) - 1]


def default_engines(pool: Pool) -> dict[str, Engine]:
    """Without an [engines] table: the first backend that sees, or hears; else the library on this
    machine.
    """

    def best(skill: str) -> Engine:
        able = [b for b in pool.backends if b.skills.get(skill, 0.0) > 0]
        return Engine("endpoint", able[0].name) if able else Engine("local")

    return {"image": best("img"), "audio": best("aud")}


def check(
    pool: Pool, budget_usd: float | None, environment: Mapping[str, str] = os.environ
) -> None:
    """What a run needs of a pool before its first call: every key at hand, and with a budget every
    price of B (a worker's, beside it, is asked for where workers are: check_prices).
    """
    for b in pool.reached:
        if b.api_key_env:
            _check_key(b, environment.get(b.api_key_env, ""))
    check_prices(pool.backends, budget_usd)
    audio = pool.engines.get("audio")
    if (
        budget_usd is not None
        and audio
        and audio.transcription_model
        and audio.usd_per_minute is None
    ):
        raise ConfigError("--budget needs prices, and [engines] audio has none: set usd_per_minute")


def _check_key(b: Backend, key: str) -> None:
    where = f"backend {b.name}: the environment variable {b.api_key_env}"
    if not key:
        raise ConfigError(f"{where} is not set; set it to your key")
    if problem := key_problem(key):
        raise ConfigError(f"{where} {problem}")


def check_prices(backends: Sequence[Backend], budget_usd: float | None) -> None:
    """Raises ConfigError where a budget could not be kept."""
    for b in backends:
        if budget_usd is not None and b.price is None:
            raise ConfigError(
                f"--budget needs prices, and backend {b.name} has none: "
                "set price_usd_per_mtok in a --backends file"
            )
