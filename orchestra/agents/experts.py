"""The experts of ToolOrchestra (arXiv 2511.21689): answer, enhance_reasoning, search; and one that
reads a file, for systems whose agents read only text.

Differences from the paper / the released code
1. The code of enhance_reasoning runs in this program's sandbox; an error is part of its output.
2. The slot's model writes the queries of search; this program's search tool answers them.
3. A reply that was cut off at its length limit is not used as if it were whole: the expert is asked
   once more, for its answer, its result or its queries alone (calls.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from orchestra.agents.answers import answer_of, whole_answer_of
from orchestra.agents.calls import Prompt
from orchestra.agents.job import Job, agent
from orchestra.agents.reasoning import answer_in, ask, queries_in, whole
from orchestra.runtime.parsing import after_thinking
from orchestra.runtime.prompts import say
from orchestra.toolkit import CODE, SEARCH, ToolError
from orchestra.vocabulary import Result

QUERIES = 3  # of one search
FENCE = "```"  # before and after a code block
LANGUAGE = re.compile(r"\w*")
PROMPTS = "toolorchestra/experts"


@agent
def answer(job: Job) -> str:
    """The final answer, from the problem and the context so far."""
    reply = ask(job, "answer", _prompt("answer", job))
    job.cut = reply.cut
    return answer_in(reply)


@agent
def answer_unlabelled(job: Job) -> str:
    """As `answer`; but a reply that labels no answer is the answer as a whole (--lenient)."""
    reply = ask(job, "answer", _prompt("answer", job))
    job.cut = reply.cut
    return "" if reply.cut else whole_answer_of(reply.text)


@agent
def enhance_reasoning(job: Job) -> str:
    """Reasoning, and the output of its code."""
    prompt = _prompt("enhance_reasoning", job)
    reply = whole(job, "reason", prompt, say(PROMPTS, "result_only"))
    reasoning = after_thinking(reply)
    programs = _python_in(reasoning)
    if not programs:
        return reasoning
    code = programs[-1]
    output = job.use(CODE, code=code)
    found = say(PROMPTS, "reasoned", reasoning=reasoning, output=output)
    texts = job.env.texts
    if texts is None:
        return found
    parts = {"reasoning": reasoning, "code": code.rstrip("\n"), "output": output}
    return texts.piece("reasoned", found, **parts)


@agent
def search(job: Job) -> str:
    """The results of the search tool for the queries that the slot's model writes."""
    prompt = _prompt("search", job, most=str(QUERIES))
    reply = whole(job, "queries", prompt, say(PROMPTS, "queries_only"))
    if job.cut:
        return ""
    queries = queries_in(reply)
    if not queries:
        queries = [answer_of(reply)]
    found: list[str] = []
    failures: list[str] = []
    for query in queries[:QUERIES]:
        if query:
            observation = job.use(SEARCH, query=query)
            is_failure = job.trace[-1].failed
            (failures if is_failure else found).append(observation)
    if not found:
        raise ToolError(failures[0] if failures else say("notes", "empty_reply"))
    return "\n\n".join(found)


def read_file(job: Job) -> Result:
    """The content of one file, as a summary, because it does not answer the question."""
    z = _content_of_file(job)
    return replace(z, answer="", summary=z.answer)


@agent
def _content_of_file(job: Job) -> str:
    number = int(job.u.id.removeprefix("file:"))  # as methods/files_as_text.py names it
    media = job.task.media[number - 1]
    tools = job.tools.values()
    tool = next(tool for tool in tools if media.modality in tool.files.values())
    files = dict.fromkeys(tool.files, media.name)
    query = say("files", "query", question=job.task.question)
    observation = job.use(tool.name, query=query, **files)
    if job.trace[-1].failed:
        raise ToolError(observation)
    return observation


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


def _prompt(name: str, job: Job, **values: str) -> Prompt:
    problem = job.task.question
    _, _, query = job.u.instruction.partition(": ")  # after the slot
    texts = job.env.texts
    if texts and texts.has(name):
        given = {"problem": problem, "query": query, "context": job.u.context}
        return texts.messages(name, given)
    context = job.u.context if job.u.context else "-"
    if query:
        problem = say(PROMPTS, "asked", problem=problem, query=query)
    return say(PROMPTS, name, problem=problem, context=context, **values)
