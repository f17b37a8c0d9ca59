"""The rubric judge of App. B.4: a language model at any OpenAI-compatible endpoint gives the four
scores of Eq. 29.

    reward = make("judge", base_url="http://127.0.0.1:8000/v1", model="m", cache="judge.jsonl")

Every call is kept in the tape `cache`: what was judged once is not paid for again. Scores that are
missing or odd are asked for again, up to `tries` times; then the sample is dropped, so that no
fault of the judge looks like a bad decision. So is one that the endpoint refuses (a content filter)
or does not answer in time. One that asks to wait (429) is waited for. Any other failure of the
endpoint raises EndpointError.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from orchestra.main_agent import Messages
from orchestra.money import Purse
from orchestra.vocabulary import Backend, ConfigError, EndpointError, ModelMistake, Reply
from runtime.chat import Chat
from runtime.openai_api import with_model
from runtime.parsing import after_thinking
from runtime.prompts import fenced, render, say, told
from runtime.secrets import Secrets
from runtime.tape import Failure, Tape, TapeWriteError
from runtime.trajectory import decision_row
from training.examples import Example
from training.reading import Reading, state_at
from training.rewards import Scores, look, scores, weighted

PATIENCE_S = 300.0  # of waiting at a rate limit, in one call
NOTES = "training/judge_notes"
REFUSED = {400, 413, 422}  # what this text is, and not how the endpoint is
OF_THE_TEXT = ("timed out", "the answer has no choice")  # the same, of runtime.chat and http

LINES = {  # the judge's line -> the part of Eq. 29 and its largest score
    "FORMAT_CORRECT": ("format", 1),
    "ACTION_VALID": ("action", 1),
    "TOOL_REASONABLE": ("tool", 3),
    "DECISION_QUALITY": ("decision", 3),
}


def read_scores(reply: str) -> dict[str, float]:
    """The four parts, each in [0, 1]. Raises ModelMistake: a line is missing, twice or odd."""
    text = after_thinking(reply)
    return {part: _score(text, name, most) / most for name, (part, most) in LINES.items()}


def _score(text: str, name: str, most: int) -> int:
    found = set(re.findall(rf"{name}[*_` \t]*:[*_` \t]*([^\s*_`]*)", text))
    if not found:
        raise ModelMistake("missing", NOTES, name=name)
    if len(found) > 1:
        raise ModelMistake("two", NOTES, name=name)
    score = found.pop()
    if score not in map(str, range(most + 1)):
        raise ModelMistake("odd", NOTES, score=repr(score)[:20], name=name, most=most)
    return int(score)


class Judge:
    """Scores a group in parallel, the same text once. `purse` counts what was spent."""

    def __init__(
        self, backend: Backend, tape: Tape, tries: int, parallel: int, timeout_s: float
    ) -> None:
        self.tape, self.tries, self.parallel = tape, tries, parallel
        self.chat = Chat(tape, timeout_s, PATIENCE_S)
        self.backend = with_model(self.chat, backend)
        self.purse = Purse()
        self._known: dict[str, dict[str, float] | None] = {}

    def __call__(
        self, example: Example, completions: list[str], cut: Sequence[bool] = ()
    ) -> list[Scores | None]:
        seen = look(example, completions, cut)
        asked = [judge_prompt(example, t, r) for t, (r, _) in zip(completions, seen, strict=True)]
        new = [text for text in dict.fromkeys(asked) if text not in self._known]
        with ThreadPoolExecutor(self.parallel) as executor:
            for text, (parts, purse) in zip(new, executor.map(self._ask, new), strict=True):
                self._known[text] = parts
                self.purse.join(purse)
        judged = [(self._known[text], match) for text, (_, match) in zip(asked, seen, strict=True)]
        return [scores(weighted(parts), parts, m) if parts else None for parts, m in judged]

    def _ask(self, text: str) -> tuple[dict[str, float] | None, Purse]:
        """The four parts, or None where no reply held them."""
        purse = Purse()
        messages: Messages = [{"role": "user", "content": text}]
        name = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
        for _ in range(self.tries):
            with self.tape.call("judge", name):
                reply = self._reply(messages, purse)
            if reply is None:
                return None, purse
            try:
                return read_scores(reply.text), purse
            except ModelMistake as mistake:
                again = say(NOTES, "again", problem=told(mistake))
                said = {"role": "assistant", "content": reply.text}
                messages = [*messages, said, {"role": "user", "content": again}]
        return None, purse

    def _reply(self, messages: Messages, purse: Purse) -> Reply | None:
        """None where there is none for this text. Raises EndpointError."""
        try:
            return self.chat(self.backend, messages, purse)
        except TapeWriteError as error:
            raise ConfigError(f"--reward judge: {error}") from None
        except EndpointError as error:
            failure = error.__cause__
            outcome = failure.outcome if isinstance(failure, Failure) else {}
            if outcome.get("status") in REFUSED or str(outcome.get("why")).startswith(OF_THE_TEXT):
                return None
            raise


def judge_prompt(example: Example, reply: str, reading: Reading) -> str:
    """What the judge reads. Whatever others wrote stands inside marks that it cannot close."""
    state = state_at(example)
    answer = str(example.meta.get("answer") or say(NOTES, "unknown"))
    parsed = say(NOTES, "unusable")
    if reading.decision:
        parsed = json.dumps(decision_row(reading.decision), ensure_ascii=False)
    return render(
        "training/judge.md",
        question=fenced(state.task.question),
        answer=fenced(answer),
        history=fenced(state.context or say(NOTES, "nothing")),
        reference=fenced(json.dumps(example.reference, ensure_ascii=False)),
        reply=fenced(reply),
        parsed=fenced(parsed),
    )


def made(
    base_url: str,
    cache: str | Path,
    model: str = "",
    api_key_env: str = "",
    tries: int = 3,
    parallel: int = 8,
    timeout_s: float = 120.0,
    options: Mapping[str, Any] | None = None,
) -> Judge:
    """The reward `judge`. `model` "": the only one that the endpoint serves. `options` go into
    every request. Raises ConfigError for a cache that cannot be written, and odd settings.
    """
    for name, value in {"tries": tries, "parallel": parallel, "timeout_s": timeout_s}.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"--reward judge: the setting {name} is {value:g}; give more than 0")
    rank = os.environ.get("RANK", "0")  # a tape has one writer: each process has its own
    path = Path(cache if rank == "0" else f"{cache}.{rank}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tape = Tape(path, "resume", Secrets([api_key_env]))
    except OSError as error:
        raise ConfigError(
            f"{path}: the judge's cache cannot be written ({error.strerror})"
        ) from None
    settings = {"temperature": 0, **(options or {})}
    backend = Backend("judge", model, base_url, api_key_env, options=settings)
    return Judge(backend, tape, tries, parallel, timeout_s)
