"""How a run ends. Every run has one end row, and every view of a run reads it.

    answered      the main agent completed, or a sub-task answered for it
    fallback      the run ended early; its answer is the best that the evidence supports
    stopped       the run ended without an answer
    interrupted   the user, the host program or the machine ended the run

In `--json` and in Python, `fallback` is true exactly if the state is fallback. The end row in
trajectory.jsonl has the `fallback` of earlier versions: true for each state but answered.

`cause` says what ended it early, and `why` tells a person: what happened, where, and what to do. A
program reads `cause`, never `why`. Models read other sentences, those of prompts/mistakes.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestra.vocabulary import Cause, ModelMistake, Result

EndState = Literal["answered", "fallback", "stopped", "interrupted"]
LARGER_BUDGET = "start a new run with a larger --budget"
UNUSABLE = "no reply of the main agent was usable, so the program chose the last sub-task itself"
# What was wrong with a reply, for people. Other rules are named as they are.
WRONG = {
    "not_json": "it has no JSON object",
    "cut": "it was cut off at its length limit",
    "bad_action": "it names an action that does not exist",
    "bad_fields": "its JSON has other fields than it should",
    "empty_answer": "its answer is empty",
    "empty_reply": "its reply is empty",
    "no_evidence": "it answers before any file was opened",
    "answer_unseen": "it answers before any file was opened",
    "not_sure_enough": "it is not sure enough of its answer (--stop-threshold)",
    "no_subtasks": "it delegates nothing",
    "bad_assignment": "it gives a sub-task no tool that opens its file",
    "no_call": "it calls no tool",
    "no_agent": "it describes no agent",
}


@dataclass(frozen=True)
class Ending:
    """How a run ended, and why. `finished`: the method came to its end; if not, a resume goes on
    where the run stopped.
    """

    state: EndState
    cause: Cause = ""
    why: str = ""
    finished: bool = True


def ending_of(error: BaseException) -> Ending:
    """How a run ended that an error has stopped."""
    cause: Cause = getattr(error, "cause", "bug")
    if cause == "signal" or isinstance(error, KeyboardInterrupt):
        return Ending("interrupted", "signal", "interrupted", finished=False)
    if exhausted(error):
        return Ending("stopped", "machine", exhausted(error), finished=False)
    why = str(error)
    if isinstance(error, OSError):
        cause = "disk"
        why = _of_file(error)
    elif cause == "bug":
        why = f"{type(error).__name__}: {error}"
    return Ending("stopped", cause, why, finished=False)


def _of_file(error: OSError) -> str:
    """The file and what is wrong with it."""
    parts = [error.filename, error.strerror]
    return ": ".join(str(part) for part in parts if part) or str(error)


def exhausted(error: BaseException) -> str:
    """What the machine has no more of, if that is the error, else ""."""
    if isinstance(error, MemoryError):
        return "this machine has no memory left"
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return "this machine starts no more threads: use a smaller --parallel"
    return ""


def unusable(mistake: ModelMistake, attempts: int) -> str:
    """Why a run ended in which so many replies of the main agent were unusable.

    >>> unusable(ModelMistake("cut"), attempts=3).split("; ")[1]
    'the last one: it was cut off at its length limit'
    """
    tried = f"no reply of the main agent was usable in {attempts} attempts"
    return f"{tried}; the last one: {wrong_with(mistake)}"


def wrong_with(mistake: ModelMistake) -> str:
    """What is wrong with a reply."""
    wrong = WRONG.get(mistake.rule, mistake.rule.replace("_", " "))
    begins = f" ({mistake.values['start']})" if "start" in mistake.values else ""
    return f"{wrong}{begins}"


def not_answered(z: Result) -> str:
    """Why the last sub-task, which had to answer the question, did not.

    >>> not_answered(Result("partial", answer="7:49", summary=""))
    'the last sub-task reported its answer as partial'
    """
    reason = z.why or z.error
    if z.cause == "steps":
        return f"the last sub-task made no report in {len(z.trace)} steps; --steps allows more"
    if z.cause == "budget":
        return f"{reason}; {LARGER_BUDGET}"
    if reason:
        return f"the last sub-task ended as {z.status}: {reason}"
    what = (
        "its answer as partial" if z.status == "partial" else f"that it is {z.status}"
    )
    return f"the last sub-task reported {what}"
