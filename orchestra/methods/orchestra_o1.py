"""Orchestra-o1 (arXiv 2606.13707): the main agent decides once a round. It delegates sub-tasks,
which run in parallel, or it completes with an answer.

Differences from the paper / the released code
1. A task may carry `id`, `needs`, `modalities`, `requirements` and `priority`: the graph, r(u) and
   U of Eq. 5-10, which the paper leaves latent and the released code does not have. `tools` may be
   left out: Eq. 7 chooses them.
2. `complete` is refused if the task has media and nothing was delegated yet: the main agent cannot
   have seen them.
3. After an unusable decision the model reads the error and decides again, up to three attempts a
   round; the released code skips the round. Tools that cannot open the file of their sub-task make
   a decision unusable. The schema does not offer a refused action again in that round.
4. The prompt has the state of each file and the context of Eq. 20, not the whole history.
5. A sub-agent gets C_t next to the context that the main agent writes for it (C of Eq. 2 is "passed
   from previous rounds"), so that no finding is lost in the retelling.
6. Eq. 22 is computed from the token log-probabilities of "complete", if the endpoint gives them and
   a threshold is set. The newest answer that was not sure enough is the fallback; three in a round
   end the run.
7. The schema puts the reasoning before the action: a model that names the action first has decided
   before it reasons. Replies in any order of keys are read.
8. `--prompts small` (prompts/orchestra_o1/small) is for models of few parameters: it names the next
   step, which follows from the history, and writes out the sub-tasks that read files. Sub-agents do
   not read the whole question then, as in App. B.3, because small models answer it instead of their
   task.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from orchestra.methods.assignment import tools_for_file
from orchestra.methods.decision import (
    decision_schema,
    read_decision,
    read_tasks,
    task_schema,
)
from orchestra.methods.state_prompt import (
    manual_lines,
    media_lines,
    model_lines,
    reported,
    status_lines,
    unopened,
)
from orchestra.methods.state_texts import state_texts
from orchestra.runtime.options import Options
from orchestra.runtime.pool import Pool
from orchestra.runtime.prompts import as_messages, named, render, say
from orchestra.runtime.reply_schema import TEXT, closed_object, list_of, one_of
from orchestra.seams import Ask, Messages
from orchestra.stopping import is_sure, stop_probability
from orchestra.toolkit import CODE, Tool
from orchestra.vocabulary import (
    CAPABILITIES,
    SKILL_OF,
    Decision,
    Delegate,
    Evidence,
    Media,
    ModelMistake,
    RefusedAnswer,
    State,
)

PROMPTS = "orchestra_o1/messages"
SMALL_PROMPTS = "orchestra_o1/small/messages"
MAX_SUBTASKS = 128  # in one decision


# ---- what the model reads ------------------------------------------------------------------------


def waiting_lines(waiting: Mapping[str, Sequence[str]]) -> str:
    """The sub-tasks of the graph that have not run, and what each of them needs."""
    if not waiting:
        return ""
    rows = []
    for id, needs in waiting.items():
        text = "waits_for" if needs else "can_run"
        rows.append(say(PROMPTS, text, id=id, needs=", ".join(needs)))
    return "\n" + say(PROMPTS, "waiting", waiting="; ".join(rows)) + "\n"


def next_step(state: State) -> str:
    """The next step, from the history alone: small models follow what they read last."""
    new, tried = unopened(state)
    if new:
        tasks = "\n".join(_reading_task(m, state) for m in new)
        return say(SMALL_PROMPTS, "next_unseen", tasks=tasks)
    if tried:
        names = ", ".join(named(m.name) for m in tried)
        return say(SMALL_PROMPTS, "next_tried", files=names)
    newest = [h for h in state.history if h.round == state.history[-1].round]
    failed = [h.id for h in newest if h.status in ("failed", "blocked")]
    if failed:
        return say(SMALL_PROMPTS, "next_failed", ids=", ".join(failed))
    unfinished = [h.id for h in newest if h.status == "partial" and _has_summary(h)]
    if unfinished:
        return say(SMALL_PROMPTS, "next_unfinished", ids=", ".join(unfinished))
    if state.waiting:
        return say(SMALL_PROMPTS, "next_waiting")
    if not newest:
        return say(SMALL_PROMPTS, "next_start")
    return _use_findings(newest, has_code=CODE in state.tools)


def _has_summary(h: Evidence) -> bool:
    """Whether a sub-agent has found something, but did not report an answer."""
    return h.summary != "" and not h.answer


def _reading_task(m: Media, state: State) -> str:
    """The sub-task that reads a file, for the model to copy. It asks what the file shows or says:
    small models would ask each file for the answer to the whole question.
    """
    tools = ", ".join(f'"{tool}"' for tool in tools_for_file(m, state)[:1])
    instruction = say(SMALL_PROMPTS, f"read_{m.modality}", file=named(m.name))
    return say(SMALL_PROMPTS, "reading_task", instruction=instruction, tools=tools)


def _use_findings(newest: Sequence[Evidence], has_code: bool) -> str:
    answered = [h for h in newest if h.answer]
    ids = ", ".join(h.id for h in answered or newest)
    if any(h.media for h in newest):
        compute = say(SMALL_PROMPTS, "next_compute", ids=ids)
        compute = " " + compute if has_code else ""
        return say(SMALL_PROMPTS, "next_seen", ids=ids, compute=compute)
    answers = "\n".join(h.answer or h.summary for h in answered or newest)
    return say(SMALL_PROMPTS, "next_found", ids=ids, answers=reported(answers))


# ---- what the model may reply --------------------------------------------------------------------


def delegation_schema(state: State, small: bool = False) -> dict[str, Any]:
    """The JSON schema of a delegation's params. For a small model: the keys of the paper, which it
    must give, and `id` and `needs`.
    """
    task = task_schema(state.backends, state.tools)
    required = [key for key in task if small or key != "tools"]
    task["id"] = TEXT
    task["needs"] = list_of(TEXT)
    if not small:
        share = {"type": "number", "minimum": 0, "maximum": 1}
        task["modalities"] = list_of(one_of(SKILL_OF))
        task["requirements"] = closed_object(
            dict.fromkeys(CAPABILITIES, share), required=()
        )
        task["priority"] = {"type": "number", "exclusiveMinimum": 0}
    return closed_object({"tasks": list_of(closed_object(task, required))})


def _delegate(params: dict[str, Any], reasoning: str, state: State) -> Delegate:
    tasks = params.get("tasks")
    if tasks is None and "task_instruction" in params:
        tasks = params  # flat
    elif tasks is None:
        tasks = []
    if isinstance(tasks, dict):
        tasks = [tasks]
    can_continue = any(not needs for needs in state.waiting.values())
    if not isinstance(tasks, list) or not (tasks or can_continue):
        raise ModelMistake("no_subtasks")
    if len(tasks) > MAX_SUBTASKS:
        raise ModelMistake("too_many_subtasks", count=len(tasks), limit=MAX_SUBTASKS)
    return Delegate(read_tasks(tasks, state), reasoning)


def parse_decision(
    reply: str, state: State, cut: bool = False, last_chance: bool = False
) -> Decision:
    """y_t from any reply. Raises ModelMistake."""
    return read_decision(_delegate, reply, state, cut, last_chance)


# ---- the decision --------------------------------------------------------------------------------


class OrchestraO1:
    """pi_theta(y_t | s_t), Eq. 3. `options.stop_threshold` is tau_stop of Eq. 22; None: off."""

    rounds = 10
    shares_context = True

    def __init__(self, pool: Pool, tools: Mapping[str, Tool], options: Options) -> None:
        self.models = model_lines(pool.for_subtasks())
        self.manuals = manual_lines(tools)
        self.instruction = options.instruction
        self.small = options.prompts == "small"
        self.texts = state_texts(options, pool.for_subtasks(), tools)
        self.stop_threshold = options.stop_threshold
        self.warn_once = cache(logging.getLogger("orchestra").warning)

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """y_t ~ pi_theta(. | s_t). Raises ModelMistake."""
        delegation = delegation_schema(state, self.small)
        schema = ("decision", decision_schema(delegation, state, last_chance))
        prompt = self.prompt(state, mistake, last_chance)
        tau_stop = self.stop_threshold
        logprobs = tau_stop is not None
        wanted = self.texts.schema(schema) if self.texts else schema
        reply = ask(prompt, wanted, logprobs)  # Eq. 3
        y_t = parse_decision(reply.text, state, reply.cut, last_chance)
        if tau_stop is None or last_chance:
            return y_t
        p_stop = stop_probability(reply.logprobs)
        if p_stop is None:
            self.warn_once(
                "--stop-threshold has no effect: the endpoint gave no log-probabilities"
            )
            return y_t
        can_stop = is_sure(p_stop, tau_stop)  # Eq. 22
        if isinstance(y_t, Delegate):
            if can_stop:  # generate the answer
                return self.decide(state, ask, mistake, last_chance=True)
            return y_t
        if not can_stop:
            raise not_sure_enough(y_t.answer, p_stop, tau_stop)
        return y_t

    def prompt(
        self, state: State, mistake: str = "", last_chance: bool = False
    ) -> Messages:
        """s_t as the main agent reads it. It depends on the arguments and the options alone."""
        if self.texts:
            return self.texts.messages(state, mistake, last_chance)
        step = next_step(state) if self.small else say(PROMPTS, "next")
        folder = "orchestra_o1/small" if self.small else "orchestra_o1"
        system = render(
            f"{folder}/system.md",
            self.instruction,
            models=self.models,
            tools=self.manuals,
        )
        user = render(
            "orchestra_o1/user.md",
            question=state.task.question,
            media=media_lines(state),
            context=reported(state.context),
            waiting="" if last_chance else waiting_lines(state.waiting),
            now=status_lines(state, step, mistake, last_chance),
        )
        return as_messages(system, user)


def not_sure_enough(answer: str, p_stop: float, tau_stop: float) -> RefusedAnswer:
    """An answer that the run keeps as its fallback while it goes on."""
    return RefusedAnswer(
        "not_sure_enough",
        answer=answer,
        seen=True,
        kept=answer,
        p=f"{p_stop:.2f}",
        threshold=f"{tau_stop:g}",
    )
