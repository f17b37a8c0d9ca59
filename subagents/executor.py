"""What all styles of sub-agents share: how one is called, what ends it, how much it is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orchestra.prompts import say
from orchestra.vocabulary import BudgetExceeded, ConfigError, EndpointError, Result, Step, SubTask
from tools import Environment, Tool

Call = tuple[str, ...]  # the name of a logical call, as in ("r1", "t2")
OnStep = Callable[[int, Step], None]  # told each step, counted from 1, as it happens
Run = Callable[[SubTask, Environment, Mapping[str, Tool], Call, int, OnStep], Result]

SEARCH, VISIT = "GoogleSearchAction", "ExtractUrlContentAction"
CODE = "ExecuteCodeAction"
OBSERVATION_CHARS = 8000
# What ends one sub-task, with the reason in its Result.
STOPPED = EndpointError, BudgetExceeded, ConfigError


def capped(text: str) -> str:
    """The beginning of an observation, with a note of how much there is."""
    if len(text) <= OBSERVATION_CHARS:
        return text
    shown = text[:OBSERVATION_CHARS]
    return say("notes", "capped", text=shown, shown=OBSERVATION_CHARS, total=len(text))


def cut_in_the_middle(text: str) -> str:
    """The beginning and the end of a long text, with a note of how much is left out."""
    if len(text) <= OBSERVATION_CHARS:
        return text
    half = OBSERVATION_CHARS // 2
    left_out = len(text) - 2 * half
    return say("mini_swe/messages", "cut", head=text[:half], tail=text[-half:], count=left_out)
