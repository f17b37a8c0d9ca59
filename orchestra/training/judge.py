"""The rubric judge of App. B.4: a language model at any OpenAI-compatible endpoint gives the four
scores of Eq. 29.

    reward = make("judge", base_url="http://127.0.0.1:8000/v1", model="m", cache="judge.jsonl")

Every call is on the tape `cache`, so nothing is paid for twice. If a score is missing or invalid,
the sample is dropped, so that a fault of the judge does not look like a bad decision. It is dropped
too if the endpoint refuses its text (a
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

from orchestra.kernel.chat import Chat
from orchestra.kernel.folder import decision_row
from orchestra.kernel.money import Purse
from orchestra.kernel.prompts import THINK_END, fenced, render, say
from orchestra.kernel.tape import Tape, redact_keys
from orchestra.kernel.vocabulary import (
    Backend,
    ConfigError,
    EndpointError,
    Messages,
)
from orchestra.training.examples import Example, state_of
from orchestra.training.options import Above0, Checked, Count
from orchestra.training.rewards import Completion, Reading, Scores, readings, weighted

PATIENCE_S = 300.0  # of waiting at a rate limit, in one call
NOTES = "training/judge_notes"
REFUSED = {400, 413, 422}  # statuses about this text, not about the endpoint
# Problems that are about this text, too
NO_ANSWER = "timed out", "the answer has no choice"
Parts = dict[str, float]  # of Eq. 29, each in [0, 1]
NEEDED = {"base_url": "URL", "model": "NAME", "cache": "FILE"}  # settings


# ---- the reply of the judge ----------------------------------------------------------------------


LINES = {  # that the judge writes: the part of Eq. 29, and its largest score
    "FORMAT_CORRECT": ("format", 1),
    "ACTION_VALID": ("action", 1),
    "TOOL_REASONABLE": ("tool", 3),
    "DECISION_QUALITY": ("decision", 3),
}


def read_scores(reply: str) -> Parts | None:
    """The four parts, or None if a line is missing, twice or odd."""
    # Some chat templates print only the closing tag
    text = re.split(THINK_END, reply)[-1]
    parts: Parts = {}
    for name, (part, most) in LINES.items():
        found = set(re.findall(rf"{name}[*_` \t]*:[*_` \t]*([^\s*_`]*)", text))
        shares = {str(score): score / most for score in range(most + 1)}
        if len(found) != 1 or not found <= shares.keys():
            return None
        parts[part] = shares[found.pop()]
    return parts


# ---- the reward ----------------------------------------------------------------------------------


class Settings(Checked):
    """`options` go into every request, as JSON. `cache`: the tape of its calls."""

    base_url: str
    model: str
    cache: Path
    api_key_env: str = ""
    parallel: Count = 32
    timeout_s: Above0 = 120.0
    options: Json[dict[str, Any]] = {}


class Judge:
    """The Reward `judge`. It scores all groups of a step in parallel, and a text once.

    `settings` are the fields of Settings. Raises ConfigError for others, and OSError for a cache
    that cannot be written.
    """

    def __init__(self, /, **settings: Any) -> None:
        if missing := NEEDED.keys() - settings.keys():
            needs = [f"{name}={NEEDED[name]}" for name in sorted(missing)]
            why = f"needs --reward-setting {' --reward-setting '.join(needs)}"
            raise ConfigError(f"--reward judge: {why}")
        try:
            s = Settings(**settings)
        except ConfigError as error:
            raise ConfigError(f"--reward judge: the setting {error}") from None
        redact = redact_keys([s.api_key_env] if s.api_key_env else [])
        tape = Tape(_tape_file(s.cache), "resume", redact=redact)
        self.backend = Backend(
            name="judge",
            model=s.model,
            base_url=s.base_url,
            api_key_env=s.api_key_env,
            options={"temperature": 0, **s.options},
        )
        self.parallel = s.parallel  # groups at once, and calls at once
        self.pool = ThreadPoolExecutor(s.parallel)
        self.chat = Chat(tape, timeout_s=s.timeout_s, patience_s=PATIENCE_S)
        self.judged: dict[str, Parts | None] = {}  # by what the judge read

    def score(
        self, example: Example, completions: Sequence[Completion]
    ) -> list[Scores | None]:
        """Raises EndpointError if the judge fails, and KeyError, TypeError or ValueError for an
        example that has no state.
        """
        read = readings(example, completions)
        prompts = [judge_prompt(example, reading) for reading in read]
        new = [text for text in dict.fromkeys(prompts) if text not in self.judged]
        self.judged |= dict(zip(new, self.pool.map(self._judge, new), strict=True))
        scores: list[Scores | None] = []
        for reading, prompt in zip(read, prompts, strict=True):
            parts = self.judged[prompt]
            score = None
            if parts is not None:
                is_valid = reading.decision is not None
                score = Scores(weighted(parts), parts, is_valid)
            scores.append(score)
        return scores

    def _judge(self, prompt: str) -> Parts | None:
        """The four parts, or None if the reply does not have them. Raises EndpointError."""
        name = hashlib.sha256(prompt.encode("utf-8", "replace")).hexdigest()[:16]
        messages: Messages = [{"role": "user", "content": prompt}]
        try:
            with self.chat.tape.call("judge", name):
                reply = self.chat(self.backend, messages, Purse())
        except EndpointError as error:
            if is_about_text(error):
                return None
            raise
        return read_scores(reply.text)


def _tape_file(cache: Path) -> Path:
    """Where this process keeps its tape: a tape has one writer, so each rank has its own."""
    rank = os.environ.get("RANK", "0")
    file = cache if rank == "0" else Path(f"{cache}.{rank}")
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def is_about_text(error: EndpointError) -> bool:
    """Whether the endpoint failed because of this text, as a content filter does."""
    return error.status in REFUSED or any(why in str(error) for why in NO_ANSWER)


def judge_prompt(example: Example, reading: Reading) -> str:
    """What the judge reads. Whatever others wrote is between marks that it cannot close."""
    state = state_of(example.meta["state"])
    parsed = say(NOTES, "unusable")
    if reading.decision is not None:
        parsed = json.dumps(decision_row(reading.decision), ensure_ascii=False)
    texts = {
        "question": state.task.question,
        "answer": str(example.meta.get("answer") or say(NOTES, "unknown")),
        "history": state.context or say(NOTES, "nothing"),
        "reference": json.dumps(example.reference, ensure_ascii=False),
        "reply": reading.text,
        "parsed": parsed,
    }
    marked = {name: fenced(text) for name, text in texts.items()}
    return render("training/judge.md", **marked)
