"""MAS-Orchestra (arXiv 2601.14652): the main agent decides once. It writes a whole system of agents
as XML, and the system runs by dataflow.

Differences from the paper / the released code
1. Independent agents run in parallel, each as soon as its last input is available, so the run takes
   the time of the critical path; the released code runs agent after agent.
2. The parser is strict and names the rule, the id or edge, and the line; the model reads the error
   and replies once more. The released grader accepts plain text, and its regular expressions ignore
   unclosed tags; --lenient reads replies as forgivingly (mas_lenient.py).
3. Without a usable graph one CoT agent answers the question, and the answer counts as a fallback.
4. ${id} inserts the whole output of an agent, its thinking and its answer. A ${id} inside an output
   is not replaced.
5. An agent that fails, fails alone: those that need it read its error in place of its output.
6. The paper has no files. Here they are read first, and every agent gets their text with the
   question. A direct answer about files is refused, because no agent has read them.
7. Eq. 5 chooses each agent's model from the pool; the paper has one model for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestra.methods.files_as_text import file_readers, files_as_text
from orchestra.methods.mas_lenient import parse_leniently
from orchestra.methods.mas_xml import parse
from orchestra.methods.state_texts import file_rows
from orchestra.runtime.options import Options
from orchestra.runtime.pool import Pool
from orchestra.runtime.prompts import as_messages, explained, named, render, say
from orchestra.runtime.texts import Texts
from orchestra.seams import Ask, Messages
from orchestra.toolkit import Tool
from orchestra.vocabulary import (
    Complete,
    Decision,
    Delegate,
    ModelMistake,
    RefusedAnswer,
    State,
    SubTask,
)

PROMPTS = "mas_orchestra/messages"
MISTAKES = "mas_orchestra/mistakes"


# ---- what the model reads ------------------------------------------------------------------------


def render_state(state: State, dom: str, mistake: str = "") -> Messages:
    """The question and the degree of MAS (DoM). There are no observations: the prompts of the two
    attempts differ only in the mistake.
    """
    system = render(f"mas_orchestra/{dom}.md", agents=say(PROMPTS, "agents"))
    notice = "\n\n" + say(PROMPTS, "mistake", mistake=mistake) if mistake else ""
    user = render(
        "mas_orchestra/user.md",
        question=state.task.question,
        files=file_line(state),
        notice=notice,
    )
    return as_messages(system, user)


def render_in(
    texts: Texts, state: State, models: Sequence[str], mistake: str
) -> Messages:
    """The same in the user's texts. `models`: the names in the pool."""
    values = {
        "question": state.task.question,
        "files": texts.rows("files", file_rows(state.task.media)),
        "models": texts.rows("models", [{"name": name} for name in models]),
    }
    notice = ""
    if mistake:
        default = say(PROMPTS, "mistake", mistake=mistake)
        notice = texts.piece("mistake", default, mistake=mistake)
    return texts.messages("main", values, notice)


def file_line(state: State) -> str:
    """The names of the files, if there are any."""
    if not state.task.media:
        return ""
    names = ", ".join(named(m.name) for m in state.task.media)
    return "\n" + say("files", "listed", files=names)


# ---- what the model may reply --------------------------------------------------------------------


def parse_decision(
    reply: str, state: State, dom: str, cut: bool = False, lenient: bool = False
) -> Decision:
    """y_t: a direct answer, or the agents as sub-tasks. Raises ModelMistake: see mas_xml; or "cut"
    for a broken reply that was cut off at its length limit. A cut reply is always read strictly.
    """
    read = parse_leniently if lenient and not cut else parse
    try:
        system = read(reply, dom)
    except ModelMistake:
        if cut:
            raise ModelMistake("cut") from None
        raise
    if isinstance(system, tuple):
        return delegate(system, state)
    if state.task.media:
        raise RefusedAnswer("answer_unseen", MISTAKES, answer=system, seen=False)
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
        needs = ids + u.needs
        node = replace(u, instruction=instruction, context=text, needs=needs)
        nodes.append(node)
    return Delegate((*readers, *nodes), whole_graph=True, answers=True, final=True)


# ---- the decision --------------------------------------------------------------------------------


class MasOrchestra:
    """One decision for the whole system. Degree of MAS: low (one agent) or high (a graph)."""

    rounds = 1
    shares_context = False

    def __init__(self, pool: Pool, tools: Mapping[str, Tool], options: Options) -> None:
        self.dom = options.dom
        self.lenient = options.lenient
        self.models = pool.sub_models
        self.texts = Texts(options.texts) if options.texts else None

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """The graph, in at most two attempts. Raises ModelMistake if the first one is unusable."""
        if self.texts:
            prompt = render_in(self.texts, state, self.models, mistake)
        else:
            prompt = render_state(state, self.dom, mistake)
        reply = ask(prompt)
        try:
            return parse_decision(reply.text, state, self.dom, reply.cut, self.lenient)
        except ModelMistake as error:
            if mistake == "":  # the first attempt
                raise
            alone = SubTask(id="A", instruction="", tools=(), agent="cot")
            return replace(delegate((alone,), state), fallback=explained(error))
