"""The words of all other files, as frozen dataclasses, with the symbols of arXiv 2606.13707.

    Task      x = (q, M)                            Backend   b in B
    State     s_t = (q, M, C_t, H_t, B, T, B_t)     Decision  y_t = delegate | complete
    SubTask   u = (I, C, b, T)                      Result    z = (sigma, eta, omega, c, delta)
    Evidence  h = (I, b, T, sigma, eta, omega)      Reply     one answer of a model

A run goes around them. The main agent reads a State and writes a Decision. Each SubTask of it is
done by a sub-agent, which gives a Result. The history keeps it as Evidence for the next State.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

Modality = Literal["image", "audio", "video", "file"]
Analysis = Literal["image", "audio"]  # a video is both
Window = tuple[float, float | None]  # of a recording, in seconds; None: to its end
WHOLE: Window = (0.0, None)
Status = Literal["done", "partial", "blocked", "failed"]
SKILLS = ("txt", "img", "aud", "vid", "code")  # phi(b) and r(u)
CAPABILITIES = (*SKILLS, "web")  # psi(g)
SKILL_OF = {"image": "img", "audio": "aud", "video": "vid"}
OPENED_BY = {  # the capabilities that open a file
    "image": ("img",),
    "audio": ("aud",),
    "video": ("vid",),
    "file": ("file", "code"),
}
MARK = re.compile("</?data [0-9a-f]{8,64}>")  # around a text from outside, in prompts
RATE_LIMITS = (429, 503, 529)  # HTTP status; 529 is Anthropic's
FINISH = "finish"  # the actions of a step that is no call of a tool
INVALID = "invalid"


# ---- what can go wrong ---------------------------------------------------------------------------


class ConfigError(Exception):
    """A mistake of the user, in one line: what, where, and what to do. Nothing was paid."""

    cause = "settings"


class EndpointError(Exception):
    """An endpoint gave no usable answer after all attempts. `status` is 0 without an HTTP status.

    It ends one sub-task; in a decision of the main agent, it ends the run.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    @property
    def cause(self) -> str:
        return "rate limit" if self.status in RATE_LIMITS else "endpoint"


class ContextExceeded(EndpointError):
    """A prompt does not fit the context of a model, even shortened."""

    cause = "context"


class RunEndpointError(EndpointError):
    """An EndpointError of a sub-agent without a main agent that could go on: it ends the run."""


class BudgetExceeded(Exception):
    """The next call could exceed its share of the budget, so it was not started (Eq. 21)."""

    cause = "budget"


class ToolError(Exception):
    """A tool failed. The text is its observation."""

    cause = "tool"


class ModelMistake(Exception):
    """A model broke a rule. `rule` names the sentence in prompts/<file>.md that tells it so, which
    `values` fill in.

    `wanted`: the action of the main agent. `answer`: one that must not end the run, but can still
    be its fallback; `seen`: evidence was there when the model gave it.
    """

    cause = "replies"

    def __init__(
        self,
        rule: str,
        file: str = "mistakes",
        wanted: str = "",
        answer: str = "",
        seen: bool = False,
        **values: object,
    ) -> None:
        super().__init__(rule, values)
        self.rule = rule
        self.file = file
        self.wanted = wanted
        self.answer = answer
        self.seen = seen
        self.values = values


# ---- the task and who can work on it -------------------------------------------------------------


@dataclass(frozen=True)
class Price:
    """USD per million tokens. `cached`: input tokens in the endpoint's cache."""

    input: float
    output: float
    cached: float | None = None


@dataclass(frozen=True)
class Backend:
    """b of B with phi(b): a model, where it is served, what it can do and costs."""

    name: str
    model: str
    base_url: str
    api_key_env: str = ""
    skills: Mapping[str, float] = field(
        default_factory=lambda: {"txt": 1.0, "code": 1.0}
    )
    price_usd_per_mtok: Price | None = None  # None: unknown
    latency_s: float = 0.0
    max_output_tokens: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # part of every request
    image_tokens: int = 6000

    def cost_usd(self, read: int, written: int, cached: int = 0) -> float | None:
        """kappa_b: the cost of one call, in tokens read and written. None: unknown."""
        price = self.price_usd_per_mtok
        if price is None:
            return None
        of_cached = price.input if price.cached is None else price.cached
        usd = (
            (read - cached) * price.input + cached * of_cached + written * price.output
        )
        return usd / 1e6


@dataclass(frozen=True)
class Engine:
    """Who analyses pictures or sound: a model of the pool looks or listens, or a library on this
    machine reads the text in a picture or writes down the speech. With a `transcription_model`,
    sound goes to the transcription endpoint of the backend, not to a chat.
    """

    engine: Literal["endpoint", "local"]
    backend: str = ""
    transcription_model: str = ""
    usd_per_minute: float | None = None


@dataclass(frozen=True)
class Pool:
    """B, and the name of the main agent's backend.

    The kernel keeps `engines`, the fields of an Engine by kind, for tools, and `experts`, the
    backend of each expert, for methods.
    """

    backends: tuple[Backend, ...]
    main: str
    engines: Mapping[str, Any] = field(default_factory=dict)
    experts: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Backend:
        return next(b for b in self.backends if b.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(b.name for b in self.backends)

    def engine_of(self, kind: Analysis) -> Engine:
        """By default, the first backend with the skill, else the library. An endpoint that refuses
        a picture is an EndpointError, which says so.
        """
        if kind in self.engines:
            return Engine(**self.engines[kind])
        able = [b.name for b in self.backends if b.skills.get(SKILL_OF[kind], 0.0) > 0]
        return Engine("endpoint", able[0]) if able else Engine("local")


@dataclass(frozen=True)
class Media:
    """One m_i of M. Models see `name`; tools open `path`, the copy in the run folder."""

    modality: Modality
    name: str
    path: Path = field(compare=False)
    sha256: str


@dataclass(frozen=True)
class Task:
    """x = (q, M)."""

    question: str
    media: tuple[Media, ...] = ()

    def file(self, name: str) -> Media | None:
        """The file with this name, which a model may have marked or written as ./name."""
        wanted = MARK.sub("", name).strip().removeprefix("./").removeprefix("media/")
        return next((m for m in self.media if m.name == wanted), None)


# ---- one round -----------------------------------------------------------------------------------


class Place(NamedTuple):
    """A place in a run: round, sub-task of the round, step of the sub-task.

    Sub-task 0 is the main agent, and its steps are its attempts. `part` names one of several calls
    in a step.

    >>> str(Place(2, 1, 3)), str(Place(2, 0, 1)), str(Place(2, 1)), str(Place(2, 1, 3, "p2"))
    ('r2/t1/s3', 'r2/main/a1', 'r2/t1', 'r2/t1/s3/p2')
    >>> Place.parse("r2/t1/s3/p2")
    Place(round=2, subtask=1, step=3, part='p2')
    """

    round: int
    subtask: int = 0
    step: int = 0
    part: str = ""

    def __str__(self) -> str:
        who, kind = (f"t{self.subtask}", "s") if self.subtask else ("main", "a")
        names = [f"r{self.round}", who]
        if self.step:
            names.append(f"{kind}{self.step}")
        if self.part:
            names.append(self.part)
        return "/".join(names)

    @classmethod
    def parse(cls, text: str) -> Place | None:
        """The place that a text spells. None: not every recorded call has a place in a run."""
        found = PLACE.fullmatch(text)
        if found is None:
            return None
        round, subtask, step, part = found.groups()
        return cls(int(round), int(subtask or 0), int(step or 0), part or "")


PLACE = re.compile(r"r(\d{1,9})(?:/(?:main|t(\d{1,9})))?(?:/[as](\d{1,9}))?(?:/(.+))?")


@dataclass(frozen=True)
class SubTask:
    """u = (I, C, b, T), Eq. 2. `backend` None: Eq. 5 chooses it. `tools` None: Eq. 7 does.

    `agent` names the kind of sub-agent, "" is the run's own; `requirements` is r(u); `priority` is
    U of Eq. 10.
    """

    id: str
    instruction: str
    context: str = ""
    backend: str | None = None
    tools: tuple[str, ...] | None = None
    needs: tuple[str, ...] = ()
    agent: str = ""
    roles: tuple[str, ...] = ()
    modalities: tuple[str, ...] = ()
    requirements: Mapping[str, float] = field(default_factory=dict)
    priority: float = 1.0


@dataclass(frozen=True)
class Step:
    """(rho, a, o) of Eq. 13: memory, action and observation. `failed`: it is an error."""

    action: str
    params: Mapping[str, Any]
    memory: str
    observation: str
    failed: bool = False


@dataclass(frozen=True)
class Result:
    """z = (sigma, eta, omega, c, delta), Eq. 14. `error` is the reason for models, and `cause`
    what ended it early. The program fills in latency, round and the files that were opened.
    """

    status: Status
    answer: str
    summary: str
    cost_usd: float | None = 0.0
    latency_s: float = field(default=0.0, compare=False)
    trace: tuple[Step, ...] = ()
    error: str = ""
    cause: str = ""
    media: tuple[str, ...] = ()
    round: int = 0


@dataclass(frozen=True)
class Evidence:
    """h = (I, b, T, sigma, eta, omega): one entry of the history H_t."""

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
    steps: int = 0


@dataclass(frozen=True)
class Delegate:
    """y_t = delegate(U_t).

    whole_graph   the sub-tasks are all of G_t, and each starts when its needs have ended
    answers       the answer of the last sub-task, if it has one, is the run's
    final         no decision follows
    fallback      why the program chose these sub-tasks itself; "" if the model did
    """

    subtasks: tuple[SubTask, ...]
    reasoning: str = ""
    whole_graph: bool = False
    answers: bool = False
    final: bool = False
    fallback: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.subtasks, SubTask):
            raise TypeError(
                "Delegate: takes a tuple of sub-tasks, as in Delegate((u,))"
            )


@dataclass(frozen=True)
class Complete:
    """y_t = complete(a)."""

    answer: str
    reasoning: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.answer, str):
            raise TypeError(f"Complete: {self.answer!r:.80} is not a text")


Decision = Delegate | Complete


@dataclass(frozen=True)
class State:
    """s_t of Eq. 1 and 21. `capabilities` is psi(g); `waiting`: sub-task -> needs not completed;
    `refused`: the actions not to be offered again in this round. `budget_usd` None: no limit.
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
    capabilities: Mapping[str, frozenset[str]] = field(default_factory=dict)
    refused: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reply:
    """The answer of a chat call. `cut`: it hit its length limit. `cost_usd` None: unknown."""

    text: str
    cost_usd: float | None = None
    cut: bool = False
    logprobs: Any = None


Messages = list[dict[str, Any]]
Schema = tuple[str, Mapping[str, Any]]  # its name and the JSON schema of the reply
