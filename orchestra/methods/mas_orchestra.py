"""MAS-Orchestra (arXiv 2601.14652): the main agent decides once. It writes a whole system of agents
as XML, and the system runs by dataflow.

Differences from the paper / the released code
1. Independent agents run in parallel, each as soon as its last input is available, so the run takes
   the time of the critical path; the released code runs agent after agent.
2. A reply is read as forgivingly as the released code reads it (mas_xml.py). After one that breaks
   a rule the model reads which, and replies once more.
3. Without a usable graph one CoT agent answers the question, and the answer counts as a fallback.
4. ${id} inserts the whole output of an agent, its thinking and its answer. A ${id} inside an output
   is not replaced.
5. An agent that fails, fails alone: those that need it read its error in place of its output.
6. The paper has no files. Here they are read first, and every agent gets their text with the
   question. A direct answer about files is refused, because no agent has read them.
7. A reply that was cut off at its length limit is not a graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from orchestra.kernel.folder import Options
from orchestra.kernel.method import Ask, Method, one_of_these
from orchestra.kernel.prompts import as_messages, explained, named, render, say
from orchestra.kernel.tool import Tool
from orchestra.kernel.vocabulary import (
    Complete,
    Decision,
    Delegate,
    Messages,
    ModelMistake,
    Pool,
    Reply,
    State,
    SubTask,
)
from orchestra.methods import experts, reasoning
from orchestra.methods.files_as_text import file_readers, files_as_text
from orchestra.methods.mas_xml import TAG, parse

PROMPTS = "mas_orchestra/messages"
MISTAKES = "mas_orchestra/mistakes"


class MasOrchestra(Method):
    """One decision for the whole system. Degree of MAS: low (one agent) or high (a graph)."""

    rounds = 1
    options = {"dom": one_of_these("low", "high")}
    agents = {
        "read-file": experts.read_file,
        "cot": reasoning.cot,
        "sc": reasoning.self_consistency,
        "debate": reasoning.debate,
        "reflexion": reasoning.reflexion,
        "search-loop": reasoning.search,
    }

    def __init__(self, pool: Pool, tools: Mapping[str, Tool], options: Options) -> None:
        super().__init__(pool, tools, options)
        self.dom = self.own.get("dom", "high")

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """The graph, in at most two attempts. Raises ModelMistake if the first one is unusable."""
        reply = ask(render_state(state, self.dom, mistake))
        try:
            return parse_decision(reply, state, self.dom)
        except ModelMistake as error:
            if mistake == "":  # the first attempt
                raise
            alone = SubTask("A", "", tools=(), agent="cot")
            return replace(delegate((alone,), state), fallback=explained(error))


def render_state(state: State, dom: str, mistake: str = "") -> Messages:
    """The question and the degree of MAS (DoM). There are no observations: the prompts of the two
    attempts differ only in the mistake.
    """
    system = render(f"mas_orchestra/{dom}.md", agents=say(PROMPTS, "agents"))
    notice = "\n\n" + say(PROMPTS, "mistake", mistake=mistake) if mistake else ""
    files = ", ".join(named(m.name) for m in state.task.media)
    user = render(
        "mas_orchestra/user.md",
        question=state.task.question,
        files="\n" + say("files", "listed", files=files) if files else "",
        notice=notice,
    )
    return as_messages(system, user)


def parse_decision(reply: Reply, state: State, dom: str) -> Decision:
    """y_t: a direct answer, or the agents as sub-tasks. Raises ModelMistake."""
    if reply.cut:
        raise ModelMistake("cut")
    system = parse(reply.text, dom)
    if isinstance(system, tuple):
        return delegate(system, state)
    if state.task.media and dom == "low" and not TAG.search(reply.text):
        raise ModelMistake("low_is_one_agent", MISTAKES, count=0)  # the format, first
    if state.task.media:
        raise ModelMistake("answer_unseen", MISTAKES, answer=system)
    return Complete(system)


def delegate(agents: tuple[SubTask, ...], state: State) -> Delegate:
    """The agents, after those that read the files of the task and whose text every agent gets."""
    task = state.task
    readers = file_readers(state)
    ids = tuple(u.id for u in readers)
    names = [m.name for m in task.media]
    inserts = [f"${{{id}}}" for id in ids]  # ${id}: the output of that reader
    text = files_as_text(list(zip(names, inserts, strict=True)))
    nodes = []
    for u in agents:
        instruction = u.instruction or task.question
        nodes.append(
            replace(u, instruction=instruction, context=text, needs=ids + u.needs)
        )
    return Delegate((*readers, *nodes), whole_graph=True, answers=True, final=True)
