"""The experts of ToolOrchestra (arXiv 2511.21689): answer, enhance_reasoning, search; and one that
reads a file, for systems whose agents read only text.

Differences from the paper / the released code
1. The code of enhance_reasoning runs in this program's sandbox. Of a program that fails nothing is
   added to the reasoning.
2. The slot's model writes the queries of search; this program's search tool answers them.
3. A reply that was cut off at its length limit is not used as if it were whole: the expert is asked
   once more, for its answer, its result or its queries alone (talk.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from orchestra.kernel.job import Job
from orchestra.kernel.prompts import after_thinking, say
from orchestra.kernel.tool import CODE, SEARCH
from orchestra.kernel.vocabulary import Result, ToolError
from orchestra.methods.answers import answer_of
from orchestra.methods.reasoning import answer_in, ask, queries_in, whole
from orchestra.methods.talk import Talk, agent

QUERIES = 3  # of one search
FENCE = "```"  # before and after a code block
LANGUAGE = re.compile(r"\w*")
PROMPTS = "toolorchestra/experts"


@agent
def answer(talk: Talk) -> str:
    """The final answer, from the problem and the context so far."""
    reply = ask(talk, "answer", _prompt("answer", talk.job))
    talk.cut = reply.cut
    return answer_in(reply)


@agent
def enhance_reasoning(talk: Talk) -> str:
    """Reasoning, and the output of its code if that ran to its end."""
    prompt = _prompt("enhance_reasoning", talk.job)
    reply = whole(talk, "reason", prompt, say(PROMPTS, "result_only"))
    reasoning = after_thinking(reply)
    programs = _python_in(reasoning)
    if not programs:
        return reasoning
    ran = talk.use(CODE, code=programs[-1])
    if ran.failed:
        return reasoning
    return say(PROMPTS, "reasoned", reasoning=reasoning, output=ran.observation)


@agent
def search(talk: Talk) -> str:
    """The results of the search tool for the queries that the slot's model writes."""
    prompt = _prompt("search", talk.job, most=str(QUERIES))
    reply = whole(talk, "queries", prompt, say(PROMPTS, "queries_only"))
    if talk.cut:
        return ""
    queries = queries_in(reply) or [answer_of(reply)]
    steps = [talk.use(SEARCH, query=query) for query in queries[:QUERIES] if query]
    found = [step.observation for step in steps if not step.failed]
    if not found:
        raise ToolError(steps[0].observation if steps else say("notes", "empty_reply"))
    return "\n\n".join(found)


def read_file(job: Job) -> Result:
    """The content of one file, as a summary, because it does not answer the question."""
    z = _content_of_file(job)
    return replace(z, answer="", summary=z.answer)


@agent
def _content_of_file(talk: Talk) -> str:
    job = talk.job
    number = int(job.u.id.removeprefix("file:"))  # as files_as_text.py names it
    media = job.task.media[number - 1]
    tool = next(t for t in job.tools.values() if media.modality in t.files.values())
    files = dict.fromkeys(tool.files, media.name)
    step = talk.use(
        tool.name, query=say("files", "query", question=job.task.question), **files
    )
    if step.failed:
        raise ToolError(step.observation)
    return step.observation


def _python_in(reply: str) -> list[str]:
    """The code blocks of a reply that are called Python; without one, those without a name. A model
    often shows in a block without a name what its program should print.
    """
    blocks = list(_code_blocks(reply))
    named = [text for language, text in blocks if language in ("python", "py")]
    return named or [text for language, text in blocks if not language]


def _code_blocks(reply: str) -> Iterator[tuple[str, str]]:
    """The language and the text of each complete code block."""
    end = 0
    while True:
        start = reply.find(FENCE, end)
        line_end = reply.find("\n", start + len(FENCE))
        text_end = reply.find(FENCE, line_end + 1)
        if -1 in (start, line_end, text_end):
            return
        language = LANGUAGE.match(reply, start + len(FENCE))
        yield language[0] if language else "", reply[line_end + 1 : text_end]
        end = text_end + len(FENCE)


def _prompt(name: str, job: Job, **values: str) -> str:
    problem = job.task.question
    _, _, query = job.u.instruction.partition(": ")  # after the slot
    if query:
        problem = say(PROMPTS, "asked", problem=problem, query=query)
    return say(PROMPTS, name, problem=problem, context=job.u.context or "-", **values)
