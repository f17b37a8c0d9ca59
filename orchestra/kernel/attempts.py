"""The attempts of one call: what came back, whether another attempt may help, how long to wait."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestra.kernel.events import completion_in, is_stream
from orchestra.kernel.http import Body, NoAnswer, Response
from orchestra.kernel.money import Bill
from orchestra.kernel.tape import (
    CONTEXT,
    NO_SYSTEM,
    OVER_BUDGET,
    Failure,
    Tape,
    as_dict,
)

ATTEMPTS = 3  # of one call, besides those that meet a rate limit
BUSY = {0, 408, 409, 429, *range(500, 600)}  # worth another attempt; 0: no response
PROMPT_REFUSED = {400, 413, 422, 500}  # no further attempt changes that
REFUSED_MEDIA = re.compile(
    r"(image|audio|vision)\w* .*(not|only) supported|support (image|audio|vision)"
    r"|for (image|audio) input|not a multi-?modal|unsupported content part|mmproj",
    re.IGNORECASE,
)
TOO_LONG = re.compile(
    r"(?!.*max_\w*tokens\W.{0,40}(too large|exceeds)).*("
    r"maximum (context|model|input) length|context_length_exceeded|exceed_context"
    r"|(context|tokens?)\b.{0,60}\bexceed|exceed\w*.{0,40}\b(context|tokens?)\b"
    r"|(prompt|input|conversation|message)[\w ]{0,20} (is|was) too long"
    r"|(long|larg|great)er than the (model|maximum|(\w+ )?context)"
    r"|(prompt|input) exceeds maximum length|range of input length|tokens in request"
    r"|too many (input|prompt) tokens|too large (for model|to process)"
    r"|reduce (the length of the|your) (messages?|prompt|input)|`inputs` tokens \+)",
    re.IGNORECASE | re.DOTALL,
)
SYSTEM_REFUSED = re.compile(
    r"\bsystem (role|message|prompt|instruction)s?\b.{0,40}(not|un)\W?(supported|allowed)"
    r"|(not|n't) support.{0,20}\bsystem (role|message|prompt|instruction)"
    r"|developer instruction is not enabled|roles must alternate|be 'user' or 'assistant'"
    r"|only user.{0,40}roles are supported|(unexpected|unsupported|invalid) role:? \W?system"
    r"|['\"`]system['\"`] is not (supported|one of)|first message (must|should) be .{0,20}user",
    re.IGNORECASE,
)
LOADING = re.compile(  # with status 503
    r"(?<!failed )\bloading (the )?model|model\b.{0,40}\bloading\b", re.IGNORECASE
)
NO_QUOTA = "insufficient_quota"  # error codes: of status 429,
NO_ROOM = "context_length_exceeded"  # and of 400
PAUSE_S = 0.25  # before the second attempt; doubled each time
MAX_PAUSE_S = 16.0
SHALLOW = 200  # brackets in an answer that cannot be nested too deep
WHY_CHARS = 300
Notify = Callable[[str], None]


def attempts(
    send: Callable[[], Response],
    bill: Bill,
    tape: Tape,
    patience_s: float,
    notify: Notify,
) -> Body | Failure:
    """The answer for the tape, or the Failure of all attempts. `send` makes one."""
    backend = bill.backend
    problem = Problem(f"budget exhausted: it cannot cover a call to {backend.name!r}")
    problem = replace(problem, cause=OVER_BUDGET)
    patience = Patience(patience_s)
    unanswered = 0
    while bill.covers(unanswered + 1):
        found = attempt(send)
        if not isinstance(found, Problem):
            return {"data": found, "unanswered": unanswered}
        problem = found
        unanswered += problem.billed
        pause_s = patience.pause_s(problem)
        if pause_s is None:
            break
        why = f"{tape.current_call}: {backend.name}: {problem.why[:80]}"
        notify(f"{why}; {patience.told}")
        tape.wait(pause_s)
    # Redacted before it is cut: half a key is not found.
    why = json.loads(tape.redact(json.dumps(problem.why, ensure_ascii=False)))
    status = problem.status if problem.status >= 300 else 0  # of an error
    return Failure(status, why[:WHY_CHARS], unanswered, problem.cause)


@dataclass(frozen=True)
class Problem:
    """Why an attempt gave no answer. `billed`: it may be on the bill all the same. `status` is 0
    without a response.
    """

    why: str
    status: int = 0
    billed: bool = False
    retry_after_s: float = 0.0
    cause: str = ""

    @property
    def is_rate_limit(self) -> bool:
        """Also a model that is being loaded, and an endpoint that is overloaded (529)."""
        waits = self.retry_after_s > 0 or LOADING.search(self.why)
        return self.status in (429, 529) or bool(self.status == 503 and waits)

    @property
    def may_pass(self) -> bool:
        """Whether another attempt may help."""
        is_final = self.cause in (CONTEXT, NO_SYSTEM) or NO_QUOTA in self.why
        is_final = is_final or REFUSED_MEDIA.search(self.why) is not None
        return self.status in BUSY and not is_final


def attempt(send: Callable[[], Response]) -> Body | Problem:
    """One attempt: the completion, or why there is none."""
    try:
        response = send()
    except NoAnswer as error:
        cause = "timeout" if error.timed_out else ""
        return Problem(str(error), billed=error.billed, cause=cause)
    return _read(response)


class Patience:
    """How long a call waits before its next attempt. At most ATTEMPTS fail; after two time-outs
    there is none, because a slow model is slow again. Attempts that meet a rate limit do not count;
    together they wait for at most `patience_s`.
    """

    def __init__(self, patience_s: float) -> None:
        self.left_s = patience_s
        self.failures = 0
        self.timeouts = 0
        self.next_pause_s = PAUSE_S
        self.told = ""  # what comes next, for people

    def pause_s(self, problem: Problem) -> float | None:
        """Seconds to wait after a problem; None: make no further attempt."""
        pause_s = self.next_pause_s
        self.next_pause_s = min(2 * pause_s, MAX_PAUSE_S)
        if problem.is_rate_limit:
            pause_s = problem.retry_after_s or pause_s
            self.left_s -= pause_s
            left = f"{max(self.left_s, 0):.3g} s more (--option patience_s)"
            self.told = (
                f"the next attempt is in {pause_s:.2g} s; it waits at most {left}"
            )
        else:
            self.failures += 1
            self.timeouts += problem.cause == "timeout"
            self.told = f"attempt {self.failures + 1} of {ATTEMPTS} follows"
            self.told += " (--timeout waits longer)" * (problem.cause == "timeout")
        is_over = self.left_s < 0 or self.failures >= ATTEMPTS or self.timeouts >= 2
        return None if is_over or not problem.may_pass else pause_s


# ---- the answer ----------------------------------------------------------------------------------


def _read(response: Response) -> Body | Problem:
    """The completion in a response, or the problem: an error, HTML, half an answer."""
    status = response.status
    if 300 <= status < 400:
        return Problem(f"redirects to {response.location or '?'}", status)
    content = response.content
    if is_stream(content):
        content = completion_in(content)
    start = " ".join(content[:2000].decode("utf-8", "replace").split())
    why = f"the answer is not JSON: {start}" if status < 300 else start or "no message"
    data: Any = None
    try:
        data = json.loads(content)
        brackets = content.count(b"[") + content.count(b"{")
        if brackets > SHALLOW:
            json.dumps(
                data
            )  # deep nesting raises here, and not when the tape writes it
        if status < 300 and not data.get("error"):
            choice = data["choices"][0]
            if isinstance(choice["message"], dict) and not choice.get("error"):
                refused = _refusal_in(choice)
                if refused:
                    return Problem(refused, status, billed=True, cause="refused")
                return dict(data)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    return _problem_in(data, response, why)


def _refusal_in(choice: Mapping[str, Any]) -> str:
    """Why a model or a filter gave no answer, or half of one; "" if it gave one."""
    if choice.get("finish_reason") == "content_filter":
        return "the content filter of the endpoint stopped the answer"
    refusal = choice["message"].get("refusal")
    return f"the model refused: {refusal}" if refusal else ""


def _problem_in(data: Any, response: Response, why: str) -> Problem:
    """The problem that a response tells of. A router may send an error with status 200; then the
    status is the error's code, if it has one. OpenRouter puts the error into the choice.
    """
    status = response.status
    is_error = status >= 300
    error = as_dict(data).get("error")
    choices = as_dict(data).get("choices")
    if error is None and isinstance(choices, list) and choices:
        error = as_dict(choices[0]).get("error")
    if not is_error and isinstance(data, dict) and error is None:
        short = " ".join(json.dumps(data, ensure_ascii=False)[:2000].split())
        why = f"the answer has no choice: {short}"
        return Problem(why, status, billed=True, cause="no_choice")
    if error is not None:
        code = as_dict(error).get("code")
        why = " ".join(str(as_dict(error).get("message") or error).split())
        if code in (NO_QUOTA, NO_ROOM) and code not in why:
            why = f"{why} ({code})"
        if not is_error and isinstance(code, int) and 400 <= code < 600:
            status = code
            is_error = True
    if not is_error:
        return Problem(why, status, billed=True)
    cause = ""
    if status in PROMPT_REFUSED:
        cause = CONTEXT if TOO_LONG.match(why) else cause
        cause = NO_SYSTEM if SYSTEM_REFUSED.search(why) else cause
    wait_s = response.retry_after_s
    return Problem(why or "no message", status, retry_after_s=wait_s, cause=cause)
