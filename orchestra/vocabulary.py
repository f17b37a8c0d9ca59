"""The vocabulary of all other files, as frozen dataclasses, with the symbols of arXiv 2606.13707.

Task        x = (q, M)
SubTask     u = (I, C, b, T), Eq. 2
Decision    y_t = delegate | complete
Result      z = (sigma, eta, omega, c, delta), Eq. 14
Evidence    h = (I, b, T, sigma, eta, omega)
State       s_t = (q, M, C_t, H_t, B, T, B_t), Eq. 1 and 21
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from annotated_types import Ge, Le, Lt, MinLen
from pydantic import JsonValue

Modality = Literal["image", "audio", "video"]
Status = Literal["done", "partial", "blocked", "failed"]
Skill = Literal["txt", "img", "aud", "vid", "code"]
SKILLS: tuple[Skill, ...] = get_args(Skill)  # phi(b) and r(u), Eq. 5
# psi(g) and r_T(u), Eq. 7, have one more: web.
Amount = Annotated[float, Ge(0), Lt(1e9)]
SKILL_OF: Mapping[str, Skill] = {"image": "img", "audio": "aud", "video": "vid"}


class ConfigError(Exception):
    """A mistake of the user, in one line: what, where, and what to do. Nothing was paid."""


class EndpointError(Exception):
    """An endpoint could not be reached, refused the request, or sent no usable answer."""


class BudgetExceeded(Exception):
    """The next call could exceed its share of the budget, so it was not started (Eq. 21)."""


class ModelMistake(Exception):
    """A model broke a rule. `rule` names the sentence in prompts/ that the model is shown."""

    def __init__(self, rule: str, file: str = "mistakes", **values: object) -> None:
        super().__init__(rule, values)
        self.rule, self.file, self.values = rule, file, values


class EndOfRun(BaseException):
    """Ends the run from any thread.

    A BaseException, like KeyboardInterrupt, so that no `except Exception` of a tool or a library
    turns it into an observation.
    """


@dataclass(frozen=True)
class Price:
    """USD per million tokens. `cached`: input tokens in the endpoint's cache (default: `input`)."""

    input: Amount
    output: Amount
    cached: Amount | None = None


@dataclass(frozen=True)
class Backend:
    """b of B with phi(b) = (txt, img, aud, vid, code, kappa, delta).

    `model` "": the one model that the endpoint serves. A price of None is unknown. `options` are
    part of every request. `latency_s` is delta_b, of one call. `image_tokens`: the most that one
    picture costs.
    """

    name: Annotated[str, MinLen(1)]
    model: str
    base_url: str
    api_key_env: str = ""
    skills: Mapping[Skill, Annotated[float, Ge(0), Le(1)]] = field(
        default_factory=lambda: {"txt": 1.0, "code": 1.0}
    )
    price_usd_per_mtok: Price | None = None
    latency_s: Amount = 0.0
    max_output_tokens: Annotated[int, Ge(16)] | None = None
    options: Mapping[str, JsonValue] = field(default_factory=dict)
    image_tokens: Annotated[int, Ge(16)] = 6000

    def cost_usd(
        self, input_tokens: int, output_tokens: int, cached: int = 0
    ) -> float | None:
        """The cost of one call, kappa_b; None if the price is unknown."""
        if (p := self.price_usd_per_mtok) is None:
            return None
        of_cached = p.input if p.cached is None else p.cached
        usd = (
            (input_tokens - cached) * p.input
            + cached * of_cached
            + output_tokens * p.output
        )
        return usd / 1e6


@dataclass(frozen=True)
class Media:
    """One m_i of M. Models see `name`; tools open `path`, the copy in the run folder."""

    modality: Modality
    name: str
    path: Path = field(compare=False)
    sha256: str


@dataclass(frozen=True)
class Task:
    """x = (q, M). `repo`: the names at the top level of the user's repository, if there is one."""

    question: str
    media: tuple[Media, ...] = ()
    repo: tuple[str, ...] = ()

    def file(self, name: str) -> Media | None:
        """The file with this name; ./x and media/x are x."""
        wanted = name.strip().removeprefix("./").removeprefix("media/")
        return next((m for m in self.media if m.name == wanted), None)


@dataclass(frozen=True)
class SubTask:
    """u = (I, C, b, T), Eq. 2, and what the graph and the matching need.

    `backend` None: Eq. 5 chooses. `tools` None: Eq. 7 chooses. `requirements` is r(u), each in
    [0, 1]. `agent` is the style of executor.
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
    """(rho, a, o) of Eq. 13: memory, action and observation of a sub-agent."""

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
    """h = (I, b, T, sigma, eta, omega): one entry of the history H_t. `media`: the files opened."""

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
    """y_t = delegate(U_t), Eq. 12. No sub-tasks: continue with the waiting ones of the graph.

    `drain`: the sub-tasks are the whole system. Each starts when its needs have ended, with ${id}
    in its instruction replaced by the output of `id`; the last one's answer is the run's.
    `fallback`: why the orchestrator chose them itself.
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
    """s_t = (q, M, C_t, H_t, B, T, B_t), Eq. 1 and 21, with the round and the waiting sub-tasks.

    `backends` and `tools`: what the main agent may name. `waiting`: sub-task -> its needs that are
    not completed. `budget_usd` None: no limit.
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


@dataclass(frozen=True)
class Reply:
    """The outcome of a chat call. `cut`: it hit its length limit. `cost_usd` None: unknown."""

    text: str
    cost_usd: float | None = None
    cut: bool = False
    logprobs: list[dict[str, Any]] | None = None
