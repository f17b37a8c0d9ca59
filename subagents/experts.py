"""The experts of ToolOrchestra (arXiv 2511.21689): answer, enhance_reasoning, search, a worker; and
a look at one file for systems whose agents only read.

Differences from the paper / the released code
1. enhance_reasoning's code runs behind this program's wall, and a failure's text comes back too.
2. search writes its queries with the slot's model and asks this program's search tool.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from orchestra.parsing import behind_thinking
from orchestra.prompts import say
from orchestra.vocabulary import Modality, Result, SubTask
from subagents.asking import Asking, agent
from subagents.executor import CODE, SEARCH, Call, OnStep
from subagents.reasoning import answer_of, queries_in
from tools import Environment, Tool, ToolError

QUERIES = 3  # of one search
LOOK_WITH: dict[Modality, tuple[str, str]] = {
    "image": ("ImageAnalysisAction", "image_path"),
    "audio": ("ParseAudioAction", "audio_path"),
    "video": ("VideoAnalysisAction", "video_path"),
}


@agent
def answer(it: Asking) -> str:
    """The final answer, from the problem and the context so far."""
    return answer_of(it.ask("answer", _prompt("answer", it)))


@agent
def enhance_reasoning(it: Asking) -> str:
    """Reasoning, and what its code prints."""
    reply = behind_thinking(it.ask("reason", _prompt("enhance_reasoning", it)))
    blocks = re.findall(r"```(?:python|py)?[ \t]*\n(.*?)```", reply, flags=re.S)
    if not blocks:
        return reply
    output = it.use(CODE, code=blocks[-1])
    return say("toolorchestra/experts", "reasoned", reasoning=reply, output=output)


@agent
def search(it: Asking) -> str:
    """What the search tool finds for the queries that the slot's model writes."""
    reply = it.ask("queries", _prompt("search", it, most=str(QUERIES)))
    queries = queries_in(reply) or [answer_of(reply)]
    found = [it.use(SEARCH, query=query) for query in queries[:QUERIES] if query]
    if all(step.failed for step in it.trace[1:]):
        raise ToolError(found[0] if found else say("notes", "said_nothing"))
    return "\n\n".join(found)


@agent
def worker(it: Asking) -> str:
    """A worker of the prompted mode: its input as it is."""
    return behind_thinking(it.ask("work", it.u.instruction))


@agent
def search_worker(it: Asking) -> str:
    """A worker that is the search tool; its input is the query."""
    return _observed(it, it.use(SEARCH, query=it.u.instruction))


def look(
    u: SubTask, env: Environment, tools: Mapping[str, Tool], call: Call, steps: int, on_step: OnStep
) -> Result:
    """What one file shows or says: a summary, for it answers no question."""
    z = _look(u, env, tools, call, steps, on_step)
    return replace(z, answer="", summary=z.answer)


@agent
def _look(it: Asking) -> str:
    media = it.env.task.media[int(it.u.id.removeprefix("file:")) - 1]
    name, parameter = LOOK_WITH[media.modality]
    query = say("looking", "query", question=it.env.task.question)
    return _observed(it, it.use(name, query=query, **{parameter: media.name}))


def _observed(it: Asking, observation: str) -> str:
    """The observation, unless it is an error."""
    if it.trace[-1].failed:
        raise ToolError(observation)
    return observation


def _prompt(name: str, it: Asking, **values: str) -> str:
    task = {"problem": it.env.task.question, "context": it.u.context or "-"}
    return say("toolorchestra/experts", name, **task, **values)
