"""The rubric judge of App. B.4: a language model at any OpenAI-compatible endpoint gives the four
scores of Eq. 29.

    reward = make("judge", base_url="http://127.0.0.1:8000/v1", model="m", cache="judge.jsonl")

Every call is on the tape `cache`, so nothing is paid for twice. If a score is missing or invalid,
the judge is asked again, up to `tries` times. Then the sample is dropped, so that a fault of the
judge does not look like a bad decision. A sample is dropped too if the endpoint refuses its text (a
content filter) or does not answer in time. A rate limit is waited for. Any other failure raises
EndpointError.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import Json

from orchestra.money import Purse
from orchestra.runtime.chat import Chat
from orchestra.runtime.openai_api import with_model
from orchestra.runtime.parsing import after_thinking
from orchestra.runtime.pool import Checked
from orchestra.runtime.prompts import explained, fenced, render, say
from orchestra.runtime.secrets import Secrets
from orchestra.runtime.tape import Tape
from orchestra.runtime.trajectory import decision_row
from orchestra.seams import Messages
from orchestra.training.examples import Example, state_of
from orchestra.training.options import Above0, Count
from orchestra.training.rewards import Reading, Scores, readings, weighted
from orchestra.vocabulary import Backend, EndpointError, Failure, ModelMistake

PATIENCE_S = 300.0  # of waiting at a rate limit, in one call
NOTES = "training/judge_notes"
REFUSED = {400, 413, 422}  # statuses about this text, not about the endpoint
LINES = {  # the judge's line -> the part of Eq. 29 and its largest score
    "FORMAT_CORRECT": ("format", 1),
    "ACTION_VALID": ("action", 1),
    "TOOL_REASONABLE": ("tool", 3),
    "DECISION_QUALITY": ("decision", 3),
}


def read_scores(reply: str) -> dict[str, float]:
    """The four parts, each in [0, 1]. Raises ModelMistake: a line is missing, twice or odd."""
    text, parts = after_thinking(reply), {}
    for name, (part, most) in LINES.items():
        found = set(re.findall(rf"{name}[*_` \t]*:[*_` \t]*([^\s*_`]*)", text))
        if not found:
            raise ModelMistake("missing", NOTES, name=name)
        score = " and ".join(sorted(found))
        if score not in map(str, range(most + 1)):
            raise ModelMistake(
                "odd", NOTES, score=repr(score)[:20], name=name, most=most
            )
        parts[part] = int(score) / most
    return parts


class Settings(Checked):
    """`model` "": the only one that the endpoint serves. `options` go into every request, as JSON.
    `cache`: the tape of its calls.
    """

    base_url: str
    cache: Path
    model: str = ""
    api_key_env: str = ""
    tries: Count = 3
    parallel: Count = 8
    timeout_s: Above0 = 120.0
    options: Json[dict[str, Any]] = {}


class Judge:
    """Scores a group in parallel, and equal texts once. Raises OSError for a cache that cannot be
    written.
    """

    def __init__(self, s: Settings) -> None:
        rank = os.environ.get(
            "RANK", "0"
        )  # a tape has one writer: each process has its own
        path = Path(s.cache if rank == "0" else f"{s.cache}.{rank}")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.chat = Chat(
            Tape(path, "resume", Secrets([s.api_key_env])), s.timeout_s, PATIENCE_S
        )
        options = {"temperature": 0, **s.options}
        backend = Backend("judge", s.model, s.base_url, s.api_key_env, options=options)
        self.s, self.backend = s, with_model(self.chat, backend)
        self.known = dict[
            str, dict[str, float] | None
        ]()  # the parts of each judged text

    def __call__(
        self, example: Example, completions: list[str], cut: Sequence[bool] = ()
    ) -> list[Scores | None]:
        read = readings(example, completions, cut)
        prompts = [
            judge_prompt(example, *pair) for pair in zip(completions, read, strict=True)
        ]
        new = [text for text in dict.fromkeys(prompts) if text not in self.known]
        with ThreadPoolExecutor(self.s.parallel) as executor:
            self.known |= zip(new, executor.map(self._judge, new), strict=True)
        return [
            Scores(weighted(parts), parts, r.decision is not None) if parts else None
            for parts, r in zip(map(self.known.get, prompts), read, strict=True)
        ]

    def _judge(self, text: str) -> dict[str, float] | None:
        """The four parts, or None if no reply has them. Raises EndpointError."""
        name = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
        messages: Messages = [{"role": "user", "content": text}]
        for _ in range(self.s.tries):
            try:
                with self.chat.tape.call("judge", name):
                    reply = self.chat(self.backend, messages, Purse()).text
                return read_scores(reply)
            except ModelMistake as mistake:
                again = say(NOTES, "again", problem=explained(mistake))
                answer = {"role": "assistant", "content": reply}
                messages += answer, {"role": "user", "content": again}
            except EndpointError as error:
                failure = error.failure
                if failure is None or not is_about_text(failure):
                    raise
                break
        return None


def is_about_text(failure: Failure) -> bool:
    """Whether the endpoint failed because of this text, as a content filter does."""
    return failure.status in REFUSED or failure.cause in ("timeout", "no_choice")


def judge_prompt(example: Example, reply: str, reading: Reading) -> str:
    """What the judge reads. Whatever others wrote is between marks that it cannot close."""
    state, parsed = state_of(example.meta["state"]), say(NOTES, "unusable")
    if reading.decision:
        parsed = json.dumps(decision_row(reading.decision), ensure_ascii=False)
    parts = {
        "question": state.task.question,
        "answer": str(example.meta.get("answer") or say(NOTES, "unknown")),
        "history": state.context or say(NOTES, "nothing"),
        "reference": json.dumps(example.reference, ensure_ascii=False),
        "reply": reply,
        "parsed": parsed,
    }
    return render(
        "training/judge.md", **{name: fenced(text) for name, text in parts.items()}
    )
