"""The decisions of a recorded run, each with its state s_t.

The events of a trajectory do not repeat what follows from earlier ones. So s_t is put together
again from the results before it, as the program did during the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from orchestra.memory import compress
from orchestra.runtime import trajectory
from orchestra.runtime.prompts import WORDING
from orchestra.runtime.trajectory import Event
from orchestra.vocabulary import ConfigError, Evidence, Place, State, Task


class Decided(NamedTuple):
    """A decision of a run, with s_t. `mistake` is that of the attempt before it, as the
    main agent was told; "" if it was the first attempt.
    """

    state: State
    event: Event
    mistake: str

    @property
    def place(self) -> Place:
        """Where in the run it was decided."""
        return Place(*self.event["at"])


def decisions(
    events: Iterable[Event], task: Task, tools: tuple[str, ...]
) -> Iterator[Decided]:
    """The decisions of a run, each with the s_t that is rebuilt from its events (Eq. 1, 21).
    Raises ConfigError for a trajectory that lacks events.
    """
    run: Event = {}
    mistake = ""
    history: list[Evidence] = []
    placed: dict[tuple[int, int], Mapping[str, Any]] = {}  # by round and number
    for event in trajectory.in_order(events):
        kind = event["event"]
        if kind == "run":
            run = event
        elif kind == "subtask":
            round, number, _ = event["at"]
            placed[round, number] = event["subtask"]
        elif kind == "result":
            round, number, _ = event["at"]
            if (round, number) not in placed:
                place = Place(round, number)
                raise ConfigError(f"the trajectory has a result without {place}")
            history.append(_evidence(event, placed[round, number]))
        elif kind == "decision" and "decision" not in event:
            mistake = event["mistake"]
        elif kind == "decision":
            state = _state(event, run, task, tuple(history), tools)
            _, _, attempt = event["at"]
            yield Decided(state, event, mistake if attempt > 1 else "")


def _evidence(result: Event, subtask: Mapping[str, Any]) -> Evidence:
    """The entry of the history for a result."""
    round, _, _ = result["at"]
    return Evidence(
        round=round,
        id=subtask["id"],
        instruction=subtask["instruction"],
        backend=subtask["backend"],
        tools=tuple(subtask["tools"]),
        status=result["status"],
        answer=result["answer"],
        summary=result["summary"],
        error=result["error"],
        media=tuple(result["media"]),
    )


def _state(
    decision: Event,
    run: Event,
    task: Task,
    history: tuple[Evidence, ...],
    tools: tuple[str, ...],
) -> State:
    """s_t of a decision. `run` is the first event of its run."""
    context = ""
    if history:
        limit = run["options"]["context_tokens"]
        context = compress(task.question, history, WORDING, limit)
    round, _, _ = decision["at"]
    return State(
        task=task,
        context=context,
        history=history,
        backends=tuple(backend["name"] for backend in run["pool"]["backend"]),
        tools=tools,
        round=round,
        rounds=decision["rounds"],
        budget_usd=decision["budget_usd"],
        waiting={id: tuple(needs) for id, needs in decision["waiting"].items()},
    )
