"""A language model as judge: it reads the question, the right answer and the given one, and replies
Correct or Incorrect.
"""

from __future__ import annotations

from orchestra.evaluation.questions import Question
from orchestra.evaluation.scores import exact
from orchestra.money import Purse
from orchestra.runtime.chat import Chat
from orchestra.runtime.parsing import after_thinking
from orchestra.runtime.prompts import fenced, render, say
from orchestra.vocabulary import Backend

AROUND_A_VERDICT = " \n\t.*`\"'"


def verdict(
    q: Question, given: str, judge: Backend, chat: Chat, purse: Purse
) -> bool | None:
    """Whether a language model judges the answer to be correct; None after two unusable replies.
    An exact or empty answer needs no call. Raises EndpointError, and BudgetExceeded if the purse
    cannot pay for the call.
    """
    if not given:
        return False
    if exact(given, q.accepted):
        return True
    prompt = render(
        "evaluation/judge.md",
        question=fenced(q.question),
        answer=_right_answer(q),
        reply=fenced(given),
    )
    messages = [{"role": "user", "content": prompt}]
    for attempt in ("a1", "a2"):
        with chat.tape.call("judge", attempt):
            reply = chat(judge, messages, purse).text
        word = after_thinking(reply).strip(AROUND_A_VERDICT)
        if word in ("Correct", "Incorrect"):
            return word == "Correct"
        messages.append({"role": "assistant", "content": reply})
        messages.append({"role": "user", "content": say("evaluation/notes", "again")})
    return None


def _right_answer(q: Question) -> str:
    """The right answer for the prompt, or each one that is accepted."""
    listed = fenced("\n".join(q.accepted))
    return say("evaluation/notes", "any_of", answers=listed) if q.also else listed
