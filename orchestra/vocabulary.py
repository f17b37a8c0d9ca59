"""The vocabulary of all other files, as frozen dataclasses, with the symbols of arXiv 2606.13707.

    Task        x = (q, M)
    Backend     b in B, with its skills, price and latency
    State       s_t = (q, M, C_t, H_t, B, T, B_t), Eq. 1 and 21
    Decision    y_t = delegate | complete
    SubTask     u = (I, C, b, T), Eq. 2
    Result      z = (sigma, eta, omega, c, delta), Eq. 14
    Evidence    h = (I, b, T, sigma, eta, omega)

A run goes around them. The main agent reads a State and writes a Decision. If it delegates, each
SubTask is done by a sub-agent on a Backend, which gives a Result. The history keeps it as Evidence,
and the next State has that history.

    >>> u = SubTask(id="t1", instruction="Read the clock.", tools=("SeeAction",))
    >>> y = Delegate((u,), reasoning="The picture shows a clock.")
    >>> z = Result(status="done", answer="7:49", summary="The clock shows 7:49.")
    >>> Complete(z.answer)
    Complete(answer='7:49', reasoning='')
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from annotated_types import Ge, Le, Lt, MinLen
from pydantic import JsonValue

Modality = Literal["image", "audio", "video", "file"]  # file: any other
Status = Literal["done", "partial", "blocked", "failed"]
# What ended a run or a sub-task early; "sub-task" is that of a run whose last sub-task ended early
Cause = Literal[
    "",
    "budget",
    "rounds",
    "replies",
    "sub-task",
    "steps",
    "tool",
    "endpoint",
    "rate limit",
    "disk",
    "machine",
    "settings",
    "recording",
    "signal",
    "bug",
]
Skill = Literal["txt", "img", "aud", "vid", "code"]
SKILLS: tuple[Skill, ...] = get_args(Skill)  # phi(b) and r(u), Eq. 5
CAPABILITIES = (*SKILLS, "web")  # psi(g) and r_T(u), Eq. 7
Amount = Annotated[float, Ge(0), Lt(1e9)]
Action = Literal["delegate", "complete"]  # of a decision y_t
RATE_LIMITS = (429, 503)  # HTTP status
MARK = re.compile("</?data [0-9a-f]{8,64}>")  # around a text from outside, in prompts
# The actions of a step that is no call of a tool: it reports, or its reply broke a rule.
FINISH = "finish"
INVALID = "invalid"
SUMMARY = (
    "summary"  # the part of a sub-task's place that asks for its summary: r1/t2/summary
)
SKILL_OF: Mapping[str, Skill] = {"image": "img", "audio": "aud", "video": "vid"}
# The capabilities in psi(g) that open a file, Eq. 7. `file` is no skill of a backend: it reads the
# text of such a file, or writes code.
OPENED_BY: Mapping[Modality, tuple[str, ...]] = {
    "image": ("img",),
    "audio": ("aud",),
    "video": ("vid",),
    "file": ("file", "code"),
}


# ---- what can go wrong ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Failure:
    """An exchange with an endpoint that ended without an answer, after all its attempts.

    `status` is the HTTP status, 0 without one. `unanswered` counts the attempts that may be billed
    although no answer came; each cost at most `most_usd`. `cause` is "timeout", "no_choice" for a
    completion without a choice, or "" for anything else. `played`: it comes from the tape.
    """

    status: int
    why: str
    unanswered: int = 0
    cause: str = ""
    most_usd: float | None = None
    played: bool = False

    def row(self) -> dict[str, JsonValue]:
        """The failure as JSON, for the tape."""
        row: dict[str, JsonValue] = {
            "status": self.status,
            "why": self.why,
            "unanswered": self.unanswered,
        }
        if self.cause:
            row["cause"] = self.cause
        if self.unanswered:
            row["most_usd"] = self.most_usd
        return row


class ConfigError(Exception):
    """A mistake of the user, in one line: what, where, and what to do. Nothing was paid."""

    cause: Cause = "settings"


class EndpointError(Exception):
    """An endpoint could not be reached, refused the request, or sent no usable answer."""

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        super().__init__(message)
        self.failure = failure

    @property
    def cause(self) -> Cause:
        is_limit = self.failure is not None and self.failure.status in RATE_LIMITS
        return "rate limit" if is_limit else "endpoint"


class BudgetExceeded(Exception):
    """The next call could exceed its share of the budget, so it was not started (Eq. 21)."""

    cause: Cause = "budget"


class ModelMistake(Exception):
    """A model broke a rule. `rule` names the sentence in prompts/<file>.md that tells the model;
    `values` fill in the sentence. `action`: what the main agent wanted to do, if that is known.
    """

    cause: Cause = "replies"
    action: Action | None = None

    def __init__(self, rule: str, file: str = "mistakes", **values: object) -> None:
        super().__init__(rule, values)
        self.rule = rule
        self.file = file
        self.values = values


class RefusedAnswer(ModelMistake):
    """An answer of the main agent that must not end the run. It can still become the fallback.

    `seen`: evidence was there, but the model was not sure enough (Eq. 22). Otherwise the model
    answered before anything was opened, and any supported answer is better.
    """

    action: Action | None = "complete"

    def __init__(
        self,
        rule: str,
        file: str = "mistakes",
        *,
        answer: str,
        seen: bool,
        **values: object,
    ) -> None:
        super().__init__(rule, file, **values)
        self.answer = answer
        self.seen = seen


class EndOfRun(BaseException):
    """Ends the run from any thread.

    A BaseException, like KeyboardInterrupt, so that no `except Exception` of a tool or a library
    turns it into an observation.
    """

    cause: Cause = "signal"


class NotInstalled(EndOfRun):
    """The run needs a package or a model that this machine lacks. The caller gets a ConfigError."""

    cause: Cause = "settings"


# ---- the task and who can work on it -------------------------------------------------------------


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
        """The cost of one call, kappa_b; None if the price is unknown. `cached`: how many of the
        input tokens were in the endpoint's cache.
        """
        price = self.price_usd_per_mtok
        if price is None:
            return None
        price_of_cached = price.input if price.cached is None else price.cached
        usd = (
            (input_tokens - cached) * price.input
            + cached * price_of_cached
            + output_tokens * price.output
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
        """The file with this name; ./x, media/x and a marked x are x. None if there is none."""
        plain = MARK.sub("", name)
        wanted = plain.strip().removeprefix("./").removeprefix("media/")
        return next((m for m in self.media if m.name == wanted), None)


# ---- one round -----------------------------------------------------------------------------------


class Place(NamedTuple):
    """A place in a run: round t, sub-task j of that round, step l of that sub-task.

    Sub-task 0 is the main agent, and its steps are attempts at a decision. `part` names one of
    several calls in a step.

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
        if self.subtask > 0:
            names = [f"r{self.round}", f"t{self.subtask}"]
            kind = "s"
        else:
            names = [f"r{self.round}", "main"]
            kind = "a"
        if self.step > 0:
            names.append(f"{kind}{self.step}")
        if self.part:
            names.append(self.part)
        return "/".join(names)

    @classmethod
    def parse(cls, text: str) -> Place | None:
        """The place that a text spells, or None: not every recorded call has a place in a run."""
        found = PLACE.fullmatch(text)
        if found is None:
            return None
        round, subtask, step, part = found.groups()
        return cls(
            round=int(round),
            subtask=int(subtask or 0),
            step=int(step or 0),
            part=part or "",
        )

    @property
    def folder(self) -> str:
        """The name of the sub-task's work folder, r2-t1: a file name has no slash."""
        return f"r{self.round}-t{self.subtask}"

    @classmethod
    def of_folder(cls, name: str) -> Place | None:
        """The place of the sub-task that worked in this folder."""
        return cls.parse(name.replace("-", "/"))


PLACE = re.compile(r"r(\d{1,9})(?:/(?:main|t(\d{1,9})))?(?:/[as](\d{1,9}))?(?:/(.+))?")


@dataclass(frozen=True)
class SubTask:
    """u = (I, C, b, T), Eq. 2, and what the graph and the matching need.

    `backend` None: Eq. 5 chooses. `tools` None: Eq. 7 chooses. `requirements` is r(u), each in
    [0, 1]. `agent` names the kind of sub-agent; "" is the run's --agent.
    """

    id: str
    instruction: str
    context: str = ""
    backend: str | None = None
    tools: tuple[str, ...] | None = None
    needs: tuple[str, ...] = ()
    agent: str = ""
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
    """z = (sigma, eta, omega, c, delta), Eq. 14, and the trace that it summarizes.

    `cost_usd` None: some call's price is unknown. `cause`: what ended it early. Models read
    `error`; `why` tells people, where that is another sentence. `steps` counts those of the trace.
    The program fills in `latency_s`, `media` (the files that were opened), `round` and, with some
    --texts, `trace_summary`.
    """

    status: Status
    answer: str
    summary: str
    cost_usd: float | None = 0.0
    latency_s: float = field(default=0.0, compare=False)
    trace: tuple[Step, ...] = ()
    error: str = ""
    cause: Cause = ""
    why: str = field(default="", compare=False)
    media: tuple[str, ...] = ()
    round: int = 0
    steps: int = 0
    trace_summary: str = ""


@dataclass(frozen=True)
class Evidence:
    """h = (I, b, T, sigma, eta, omega): one entry of the history H_t. `media`: the files opened.
    `steps`: how many the sub-agent took; 0 if it took none, or if that is not known.
    `trace_summary`: what another call says of the steps, if --texts asks for that.
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
    steps: int = 0
    trace_summary: str = ""


@dataclass(frozen=True)
class Delegate:
    """y_t = delegate(U_t), Eq. 12. No sub-tasks: continue with the waiting ones of the graph.

    whole_graph   the sub-tasks are all of G_t and run by dataflow: each starts when its needs have
                  ended, with ${id} in its instruction replaced by the output of `id`
    answers       the answer of the last sub-task, if it has one, is the run's answer
    final         no decision follows, whatever the sub-tasks find
    fallback      if not empty, the model gave no usable decision and the program chose these
                  sub-tasks; this says why
    """

    subtasks: tuple[SubTask, ...]
    reasoning: str = ""
    whole_graph: bool = False
    answers: bool = False
    final: bool = False
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
    not completed. `budget_usd` None: no limit. `capabilities`: psi(g) of each tool, as far as it is
    known. `refused`: the actions that the main agent should not be offered again in this round.
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
    refused: tuple[Action, ...] = ()


@dataclass(frozen=True)
class Reply:
    """The outcome of a chat call. `cut`: it hit its length limit. `cost_usd` None: unknown.
    `unfinished`: an earlier reply that was cut off, if this is the one to the second request.
    """

    text: str
    cost_usd: float | None = None
    cut: bool = False
    logprobs: list[dict[str, Any]] | None = None
    unfinished: str | None = None
