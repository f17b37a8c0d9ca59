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
from typing import Any, Literal

from pydantic import Json

from orchestra.kernel.chat import Chat
from orchestra.kernel.folder import decision_row
from orchestra.kernel.money import Purse
from orchestra.kernel.prompts import THINK_END, explained, fenced, render, say
from orchestra.kernel.tape import Tape, redact_keys
from orchestra.kernel.vocabulary import (
    Backend,
    ConfigError,
    EndpointError,
    Messages,
    ModelMistake,
)
from orchestra.training.examples import Example, state_of
from orchestra.training.options import Above0, Checked, Count
from orchestra.training.rewards import (
    EXACT_WEIGHTS,
    WEIGHTS,
    Completion,
    Reading,
    Scores,
    readings,
    weighted,
)

PATIENCE_S = 300.0  # of waiting at a rate limit, in one call
NOTES = "training/judge_notes"
WORDS = "training/judge_scores"
REFUSED = {400, 413, 422}  # statuses about this text, not about the endpoint
# Problems that are about this text, too
NO_ANSWER = "timed out", "the answer has no choice"
Parts = dict[str, float]  # of Eq. 29, each in [0, 1]
# Whose words the judge is given, and whose weights count
Rule = Literal["rubric", "exact"]
ALPHA = {"rubric": WEIGHTS, "exact": EXACT_WEIGHTS}


# ---- the reply of the judge ----------------------------------------------------------------------


LINES = {  # that the judge writes: the part of Eq. 29, and its largest score
    "FORMAT_CORRECT": ("format", 1),
    "ACTION_VALID": ("action", 1),
    "TOOL_REASONABLE": ("tool", 3),
    "DECISION_QUALITY": ("decision", 3),
}


def read_scores(reply: str) -> Parts:
    """The four parts. Raises ModelMistake: a line is missing, twice or odd."""
    # Some chat templates print only the closing tag
    text = re.split(THINK_END, reply)[-1]
    lines = LINES.items()
    return {part: _share(text, name, most) for name, (part, most) in lines}


def _share(text: str, name: str, most: int) -> float:
    """The score in the line with this name, of the most that it can be."""
    found = set(re.findall(rf"{name}[*_` \t]*:[*_` \t]*([^\s*_`]*)", text))
    if not found:
        raise ModelMistake("missing", NOTES, name=name)
    score = " and ".join(sorted(found))
    if score not in map(str, range(most + 1)):
        raise ModelMistake("odd", NOTES, score=repr(score)[:20], name=name, most=most)
    return int(score) / most


# ---- the reward ----------------------------------------------------------------------------------


class Settings(Checked):
    """`options` go into every request, as JSON. `cache`: the tape of its calls. `rule`: whose words
    it judges by, of prompts/training/judge_scores.md.
    """

    base_url: str
    model: str
    cache: Path
    api_key_env: str = ""
    tries: Count = 3
    parallel: Count = 32
    timeout_s: Above0 = 120.0
    options: Json[dict[str, Any]] = {}
    rule: Rule = "rubric"


class Judge:
    """The Reward `judge`. It scores all groups of a step in parallel, and equal texts once.

    `settings` are the fields of Settings. Raises ConfigError for others, and OSError for a cache
    that cannot be written.
    """

    def __init__(self, /, **settings: Any) -> None:
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
        self.settings = s
        self.chat = Chat(tape, timeout_s=s.timeout_s, patience_s=PATIENCE_S)
        self.judged: dict[str, Parts | None] = {}  # by what the judge read

    def score(
        self, example: Example, completions: Sequence[Completion]
    ) -> list[Scores | None]:
        """Raises EndpointError if the judge fails, and KeyError, TypeError or ValueError for an
        example that has no state.
        """
        (scores,) = self.score_groups([example], [completions])
        return scores

    def score_groups(
        self, examples: Sequence[Example], groups: Sequence[Sequence[Completion]]
    ) -> list[list[Scores | None]]:
        """As `score`, for the completions in each example's state: all calls share one pool."""
        rule = self.settings.rule
        asked = [
            [(judge_prompt(example, reading, rule), reading) for reading in read]
            for example, read in zip(
                examples, map(readings, examples, groups), strict=True
            )
        ]
        self._judge_all([prompt for of_group in asked for prompt, _ in of_group])
        return [[self._scores(*pair) for pair in of_group] for of_group in asked]

    def _scores(self, prompt: str, reading: Reading) -> Scores | None:
        parts = self.judged[prompt]
        if parts is None:
            return None
        total = weighted(parts, ALPHA[self.settings.rule])
        return Scores(total, parts, valid=reading.decision is not None)

    def _judge_all(self, prompts: Sequence[str]) -> None:
        """Have the prompts judged that are new, each once."""
        new = [text for text in dict.fromkeys(prompts) if text not in self.judged]
        with ThreadPoolExecutor(self.settings.parallel) as executor:
            self.judged |= dict(zip(new, executor.map(self._judge, new), strict=True))

    def _judge(self, prompt: str) -> Parts | None:
        """The four parts, or None if no reply has them. Raises EndpointError."""
        name = hashlib.sha256(prompt.encode("utf-8", "replace")).hexdigest()[:16]
        messages: Messages = [{"role": "user", "content": prompt}]
        for _ in range(self.settings.tries):
            try:
                with self.chat.tape.call("judge", name):
                    reply = self.chat(self.backend, messages, Purse()).text
                return read_scores(reply)
            except EndpointError as error:
                if is_about_text(error):
                    return None
                raise
            except ModelMistake as mistake:
                again = say(NOTES, "again", problem=explained(mistake))
                messages.append({"role": "assistant", "content": reply})
                messages.append({"role": "user", "content": again})
        return None


def _tape_file(cache: Path) -> Path:
    """Where this process keeps its tape: a tape has one writer, so each rank has its own."""
    rank = os.environ.get("RANK", "0")
    file = cache if rank == "0" else Path(f"{cache}.{rank}")
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def is_about_text(error: EndpointError) -> bool:
    """Whether the endpoint failed because of this text, as a content filter does."""
    return error.status in REFUSED or any(why in str(error) for why in NO_ANSWER)


def judge_prompt(example: Example, reading: Reading, rule: Rule = "rubric") -> str:
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
    return render("training/judge.md", scores=say(WORDS, rule), **marked)
