"""The words every other file speaks, as frozen dataclasses. Symbols are those of arXiv 2606.13707.

x = (q, M)                      Task          y_t = delegate | complete   Decision
u = (I, C, b, T)       Eq. 2    SubTask       z = (sigma, eta, omega, c, delta)   Eq. 14   Result
h = (I, b, T, sigma, eta, omega)   Evidence   s_t = (q, M, C_t, H_t, B, T, B_t)   Eq. 1, 21   State
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Modality = Literal["image", "audio", "video"]
Status = Literal["done", "partial", "blocked", "failed"]
SKILLS = ("txt", "img", "aud", "vid", "code")  # phi(b) and r(u), Eq. 5
CAPABILITIES = ("txt", "img", "aud", "vid", "web", "code")  # psi(g) and r_T(u), Eq. 7
SKILL_OF: Mapping[Modality, str] = {"image": "img", "audio": "aud", "video": "vid"}


class ConfigError(Exception):
    """The user's mistake: one line that says what, where and what to do. Nothing was paid."""


def can_not_write(path: Path, error: OSError) -> ConfigError:
    """The user's mistake where a file of the run can not be written."""
    why = error.strerror or error
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    advice = "free some space" if full else "make it writable"
    return ConfigError(f"{path}: can not be written ({why}); {advice}, or give another folder")


class EndpointError(Exception):
    """An endpoint could not be reached, refused, or answered something that is no answer."""


class ModelMistake(Exception):
    """What a model did wrong, in the words the model is told. It may mend it; it is counted."""


class BudgetExceeded(Exception):
    """The next call could pass the money it was given, so it was not started (Eq. 21)."""


class EndOfRun(BaseException):
    """Ends the whole run from any thread.

    A BaseException, like KeyboardInterrupt: no `except Exception` of a tool or of a library may
    turn it into an observation.
    """


@dataclass(frozen=True)
class Price:
    """USD per million tokens. `cached` is for the part of the input that the endpoint had in its
    cache.
    """

    input: float
    output: float
    cached: float


@dataclass(frozen=True)
class Backend:
    """b of B with phi(b) = (txt, img, aud, vid, code, kappa, delta).

    `model` "": the one model the endpoint serves. `price` None: unknown, shown as unknown.
    `options` go into every request as they are (temperature and the like). `latency_s` is delta_b,
    of one call. `image_tokens`: the most that a picture of 2048 x 2048 counts for, under a budget.
    """

    name: str
    model: str
    base_url: str
    api_key_env: str = ""
    skills: Mapping[str, float] = field(default_factory=dict)
    price: Price | None = None
    latency_s: float = 0.0
    max_output_tokens: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    image_tokens: int = 6000

    def cost_usd(
        self, input_tokens: int, output_tokens: int, cached_tokens: int = 0
    ) -> float | None:
        """What one call costs; None where the price is unknown."""
        if self.price is None:
            return None
        fresh = input_tokens - cached_tokens
        paid = (
            fresh * self.price.input
            + cached_tokens * self.price.cached
            + output_tokens * self.price.output
        )
        return paid / 1e6


@dataclass(frozen=True)
class Media:
    """One m_i of M. Models see `name`; tools open `path`, the run folder's own copy."""

    modality: Modality
    name: str
    path: Path = field(compare=False)
    sha256: str


@dataclass(frozen=True)
class Task:
    """x = (q, M)."""

    question: str
    media: tuple[Media, ...] = ()


@dataclass(frozen=True)
class SubTask:
    """u = (I, C, b, T), Eq. 2, and what the graph and the matching need to know of it.

    `backend` None: Eq. 5 chooses. `tools` None: Eq. 7 chooses. `requirements` is r(u), each in [0,
    1].
    """

    id: str
    instruction: str
    context: str = ""
    backend: str | None = None
    tools: tuple[str, ...] | None = None
    needs: tuple[str, ...] = ()
    agent: str = "react"
    roles: tuple[str, ...] = ()  # of a debate
    modalities: tuple[str, ...] = ()
    requirements: Mapping[str, float] = field(default_factory=dict)
    priority: float = 1.0  # U_theta(v | s_t), Eq. 10


@dataclass(frozen=True)
class Step:
    """(rho, a, o) of Eq. 13: what the sub-agent noted, did and saw."""

    action: str
    params: Mapping[str, Any]
    memory: str
    observation: str
    failed: bool = False  # the observation is an error


@dataclass(frozen=True)
class Result:
    """z = (sigma, eta, omega, c, delta), Eq. 14. `cost_usd` None: some call's price is unknown."""

    status: Status
    answer: str
    summary: str
    cost_usd: float | None = 0.0
    latency_s: float = field(default=0.0, compare=False)
    trace: tuple[Step, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Evidence:
    """h = (I, b, T, sigma, eta, omega): one line of the history H_t; `media` are the files it
    looked at.
    """

    round: int
    id: str
    instruction: str
    backend: str
    tools: tuple[str, ...]
    status: Status
    answer: str
    summary: str
    error: str = ""
    media: tuple[str, ...] = ()


@dataclass(frozen=True)
class Delegate:
    """y_t = delegate(U_t), Eq. 12. No sub-tasks: go on with those of the graph that still wait.

    `drain`: the sub-tasks are the whole system, so they run by dataflow, each as soon as its needs
    have ended, with ${id} in its instruction replaced by what `id` answered; the answer of the last
    one is the run's. `fallback`: the mistake for which the orchestrator gave up its own way.
    """

    subtasks: tuple[SubTask, ...]
    reasoning: str = ""
    drain: bool = False
    fallback: str = ""


@dataclass(frozen=True)
class Complete:
    """y_t = complete(a)."""

    answer: str
    reasoning: str = ""


Decision = Delegate | Complete


@dataclass(frozen=True)
class State:
    """s_t = (q, M, C_t, H_t, B, T, B_t), Eq. 1 and 21, with the round and the sub-tasks that wait.

    `backends` and `tools` are what the main agent may name; `waiting` maps a sub-task to the needs
    that keep it from running. `budget_usd` None: no budget was set.
    """

    task: Task
    context: str
    history: tuple[Evidence, ...]
    backends: tuple[str, ...]
    tools: tuple[str, ...]
    round: int
    rounds: int
    budget_usd: float | None = None
    waiting: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
