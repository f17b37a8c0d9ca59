"""The sub-agent of the laboratory's orchestrator: it calls one tool and takes one value out of what
the tool returns. It is a function, not a model.

    Find the time at which the concert begins in concert.png.    reads the picture
    Search for the number of bridges of Lindmoor.                searches, perhaps opens a page
    Compute the time 110 minutes after 20:15.                    runs a program
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from orchestra.kernel.job import Job
from orchestra.kernel.prompts import fenced, say
from orchestra.kernel.vocabulary import Result, Step, ToolError
from orchestra.minigaia.operations import OPERATIONS, Operation
from orchestra.minigaia.tasks import TOOL, WORDS
from orchestra.tools.pages import page_text
from orchestra.training.lab.finding import value_in

PATH = {  # the parameter of a tool that names its file
    TOOL["image"]: "image_path",
    TOOL["audio"]: "audio_path",
    TOOL["video"]: "video_path",
}
MARKED = re.compile(r"<data (\w+)>\n?(.*?)\n?</data \1>", re.S)  # what is from outside
LINK = re.compile(r"https?://\S+")
PROGRAM_S = 60  # on a busy machine, the sandbox alone may take seconds to begin
NO_PROGRAM = "the instruction asks for no computation of known values"


def run(job: Job) -> Result:
    """One value, or a failure with its reason."""
    (tool,) = job.u.tools or ("",)
    try:
        if tool == TOOL["compute"]:
            return _computed(job)
        if tool == TOOL["search"]:
            return _searched(job)
        return _read(job, tool)
    except ToolError as failure:
        return _failed(job, str(failure))


def breaks_off(job: Job) -> Result:
    """Does nothing: a sub-task with the trouble of the laboratory's games (agent.Disturbed)."""
    return _failed(job, say(WORDS, "failed"))


def _done(job: Job, answer: str) -> Result:
    return job.result("done", answer, summary="")


def _failed(job: Job, reason: str) -> Result:
    return job.result("failed", answer="", summary="", error=reason)


def _use(job: Job, tool: str, params: dict[str, Any]) -> str:
    """The observation of a tool call, as a step."""
    job.note(job.use(tool, params))
    return job.trace[-1].observation


def _of_tool(job: Job, phrase: str, observation: str) -> Result:
    """The value that a phrase asks for in what a tool has returned."""
    if job.trace[-1].failed:
        return _failed(job, observation)
    texts = [text for _, text in MARKED.findall(observation)]
    value = value_in(phrase, "\n".join(texts))
    return _done(job, value) if value else _failed(job, "the text has no such value")


# ---- files ---------------------------------------------------------------------------------------


def _read(job: Job, tool: str) -> Result:
    """What a file shows or says."""
    asked = re.fullmatch(r"Find (.+) in (\S+)\.", job.u.instruction)
    if asked is None or tool not in PATH:
        return _failed(job, "the instruction names no file for this tool")
    phrase, name = asked.groups()
    return _of_tool(job, phrase, _use(job, tool, {"query": phrase, PATH[tool]: name}))


# ---- the web -------------------------------------------------------------------------------------


def _searched(job: Job) -> Result:
    """What the first result of a search says, or else its page."""
    asked = re.fullmatch(r"Search for (.+)\.", job.u.instruction)
    if asked is None or asked[1] == "it":
        return _failed(job, "the instruction does not say what to search for")
    observation = _use(job, TOOL["search"], {"query": asked[1]})
    links = LINK.findall(observation)
    if job.trace[-1].failed or not links:
        return _failed(job, observation)
    first_result = observation.partition(links[0])[2].partition("\n\n")[0]
    value = value_in(asked[1], first_result)
    return _done(job, value) if value else _of_tool(job, asked[1], _page(job, links[0]))


def _page(job: Job, url: str) -> str:
    """The text of a page, as a step. The page tool would ask a model about it. Raises ToolError."""
    env = job.env
    allow = env.options.more.get("allow_hosts", ())
    read = partial(page_text, url, allow, env.tape.redact)
    with env.tape.call(job.next_place, "page"):
        text = env.local("visit", {"url": url}, read)
    job.note(Step("page", {"url": url}, memory="", observation=fenced(text)))
    return fenced(text)


# ---- programs ------------------------------------------------------------------------------------

# An operation as a Python expression of its operands a and b
EXPRESSION = {
    "sum": "a + b",
    "difference": "abs(a - b)",
    "product": "a * b",
    "larger": "max(a, b)",
    "later": "f'{a + timedelta(minutes=b):%H:%M}'",
    "zone": "f'{a - timedelta(hours=b):%H:%M}'",
    "day_after": "a + timedelta(days=b)",
    "weekday": "f'{a:%A}'",
    "letters": "sum(map(str.isalpha, a))",
    "years": "abs(a - b)",
    "minutes": "a * 60",
    "grams": "a * 1000",
    "days": "a * 7",
    "mean": "(a + b) / 2",
    "remainder": "a % b",
    "earlier": "f'{a - timedelta(minutes=b):%H:%M}'",
    "days_between": "abs((a - b).days)",
    "pieces": "a * 12",
    "centimetres": "a * 100",
}
# How a program reads an operand of a kind from its text; any other kind is an integer.
OPERAND = {
    "time": "datetime.strptime({text}, '%H:%M')",
    "date": "date.fromisoformat({text})",
    "person": "{text}",
}


def _computed(job: Job) -> Result:
    """What a program prints for a computation."""
    program = program_for(job.u.instruction)
    if not program:
        return _failed(job, NO_PROGRAM)
    printed = _use(job, TOOL["compute"], {"code": program, "timeout_sec": PROGRAM_S})
    if job.trace[-1].failed:
        return _failed(job, printed)
    marked = MARKED.search(printed)
    return _done(job, (marked[2] if marked else printed).strip())


def program_for(instruction: str) -> str:
    """The program for an instruction such as "Compute the sum of 16 and 30."; "" for another one.

    >>> print(program_for("Compute the sum of 16 and 30."))
    from datetime import date, datetime, timedelta
    a = int('16')
    b = int('30')
    print(a + b)
    """
    for operation in OPERATIONS.values():
        for wording in say(WORDS, operation.name, a="{a}", b="{b}").splitlines():
            asked = say(WORDS, "compute", what=wording)
            pattern = re.escape(asked)
            for name in "ab":
                pattern = pattern.replace(rf"\{{{name}\}}", rf"(?P<{name}>.+)")
            found = re.fullmatch(pattern, instruction)
            if found:
                return _program(operation, found.groupdict())
    return ""


def _program(operation: Operation, texts: dict[str, str]) -> str:
    lines = ["from datetime import date, datetime, timedelta"]
    for name, kind in zip("ab", operation.takes, strict=False):
        operand = OPERAND.get(kind, "int({text})").format(text=repr(texts[name]))
        lines.append(f"{name} = {operand}")
    lines.append(f"print({EXPRESSION[operation.name]})")
    return "\n".join(lines)
