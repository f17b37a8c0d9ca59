"""Orchestra-o1 (arXiv 2606.13707): the main agent decides once a round. It delegates sub-tasks,
which run in parallel, or it completes with an answer.

Differences from the paper / the released code
1. A task may carry `id`, `needs`, `modalities`, `requirements` and `priority`: the graph, r(u) and
   U of Eq. 5-10, which the paper leaves latent. `tools` may be left out: Eq. 7 chooses them.
2. After an unusable decision the model reads the error and decides again, up to three attempts.
3. The prompt has the state of each file and the context of Eq. 20, not the whole history.
4. A sub-agent gets C_t next to the context that the main agent writes for it.
5. Eq. 22 is computed from the token log-probabilities of "complete", if the endpoint gives them and
   a threshold is set (the option stop_threshold). The newest answer that was not sure enough is the
   fallback.
6. The schema puts the reasoning before the action: a model that names the action first has decided
   before it reasons. Replies in any order of keys are read.
7. L_ctx, which the paper does not give, is 20,000 tokens: ten rounds of eight sub-tasks with six
   sentences each fit whole.

What serves models of few parameters is in small_models.py (--prompts small).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from orchestra.kernel.folder import Options
from orchestra.kernel.method import Ask, Method, share
from orchestra.kernel.prompts import as_messages, quoted_whole, render, say
from orchestra.kernel.tool import Tool
from orchestra.kernel.vocabulary import (
    CAPABILITIES,
    SKILL_OF,
    Decision,
    Delegate,
    Messages,
    ModelMistake,
    Pool,
    State,
    Task,
)
from orchestra.methods.main_agent import (
    decision_schema,
    fill,
    manual_lines,
    media_lines,
    model_lines,
    read_decision,
    read_tasks,
    reported,
    status_lines,
    system_prompt,
    task_schema,
)
from orchestra.methods.replies import TEXT, closed_object, list_of, one_of

PROMPTS = "orchestra_o1/messages"
MAX_SUBTASKS = 128  # in one decision
COMPLETE = "complete"
ACTION = re.compile(r'"action"\s*:\s*"(?=(complete|delegate(?:_task)?)")')
ROUNDED = 1.01  # a probability of a little more than 1 is a rounding error


class OrchestraO1(Method):
    """pi_theta(y_t | s_t), Eq. 3. `tau_stop` of Eq. 22; None: off. `instruction` is a system prompt
    in place of the file's.
    """

    rounds = 10
    context_tokens = 20_000
    system = "orchestra_o1/system.md"
    options = {"stop_threshold": share, "instruction": system_prompt}

    def __init__(self, pool: Pool, tools: Mapping[str, Tool], options: Options) -> None:
        super().__init__(pool, tools, options)
        self.models = model_lines(pool.backends)
        self.manuals = manual_lines(tools)
        self.tau_stop: float | None = self.own.get("stop_threshold")

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """y_t ~ pi_theta(. | s_t). Raises ModelMistake."""
        prompt = self.prompt(state, mistake, last_chance)
        may_complete = self.may_complete(state)
        delegation = self.delegation_schema(state)
        schema = decision_schema(delegation, state, last_chance, may_complete)
        logprobs = self.tau_stop is not None
        reply = ask(prompt, ("decision", schema), logprobs)  # Eq. 3
        y_t = read_decision(read_delegation, reply, state, last_chance, may_complete)
        p_stop = stop_probability(reply.logprobs)
        if self.tau_stop is None or last_chance or p_stop is None:
            return y_t
        can_stop = p_stop > self.tau_stop  # Eq. 22
        if isinstance(y_t, Delegate):
            return (
                self.decide(state, ask, mistake, last_chance=True) if can_stop else y_t
            )
        if not can_stop:
            raise ModelMistake(
                "not_sure_enough",
                wanted="complete",
                answer=y_t.answer,
                seen=True,
                kept=y_t.answer,
                p=f"{p_stop:.2f}",
                threshold=f"{self.tau_stop:g}",
            )
        return y_t

    def may_complete(self, state: State) -> bool:
        """Whether an answer is taken now."""
        return True

    def also_read(self, task: Task, context: str) -> list[str]:
        """What was found so far, and the whole question, of which a sub-task is a part."""
        found = [found_so_far(context)] if context else []
        return [*found, say("notes", "whole_question", question=task.question)]

    # ---- what the model reads --------------------------------------------------------------------

    def prompt(self, state: State, mistake: str, last_chance: bool) -> Messages:
        """s_t as the main agent reads it."""
        user = render(
            "orchestra_o1/user.md",
            question=state.task.question,
            media=media_lines(state),
            context=reported(state.context),
            waiting="" if last_chance else waiting_lines(state.waiting),
            now=status_lines(state, self.next_step(state), mistake, last_chance),
        )
        about = {"models": self.models, "tools": self.manuals}
        own = self.own.get("instruction")
        system = fill(own, **about) if own else render(self.system, **about)
        return as_messages(system, user)

    def next_step(self, state: State) -> str:
        """The last sentence of the prompt."""
        return say(PROMPTS, "next")

    # ---- what the model may reply ----------------------------------------------------------------

    def delegation_schema(self, state: State) -> dict[str, Any]:
        """The JSON schema of a delegation's params."""
        share = {"type": "number", "minimum": 0, "maximum": 1}
        required = ("task_instruction", "context", "model")
        task = {
            **task_schema(state),
            "id": TEXT,
            "needs": list_of(TEXT),
            "modalities": list_of(one_of(SKILL_OF)),
            "requirements": closed_object(
                dict.fromkeys(CAPABILITIES, share), required=()
            ),
            "priority": {"type": "number", "exclusiveMinimum": 0},
        }
        return closed_object({"tasks": list_of(closed_object(task, required))})


def found_so_far(context: str) -> str:
    return say("notes", "found", context=quoted_whole(context))


def waiting_lines(waiting: Mapping[str, Sequence[str]]) -> str:
    """The sub-tasks of the graph that have not run, and what each of them needs."""
    rows = []
    for id, needs in waiting.items():
        text = "waits_for" if needs else "can_run"
        rows.append(say(PROMPTS, text, id=id, needs=", ".join(needs)))
    if not rows:
        return ""
    return "\n" + say(PROMPTS, "waiting", waiting="; ".join(rows)) + "\n"


def read_delegation(params: dict[str, Any], reasoning: str, state: State) -> Delegate:
    """The sub-tasks of a delegation: a list, one alone, or flat. None: the waiting ones go on."""
    tasks = params.get("tasks")
    if tasks is None and "task_instruction" in params:
        tasks = params
    tasks = [tasks] if isinstance(tasks, dict) else tasks or []
    can_continue = any(not needs for needs in state.waiting.values())
    if not isinstance(tasks, list) or not (tasks or can_continue):
        raise ModelMistake("no_subtasks")
    if len(tasks) > MAX_SUBTASKS:
        raise ModelMistake("too_many_subtasks", count=len(tasks), limit=MAX_SUBTASKS)
    return Delegate(read_tasks(tasks, state), reasoning)


# ---- when to stop: Eq. 22 ------------------------------------------------------------------------


def stop_probability(logprobs: Any) -> float | None:
    """p_stop(s_t) = p(a_t = complete | s_t), Eq. 22, from `choices[0].logprobs.content` of a
    decision. None: the endpoint gave no usable log-probabilities, or the text has no action.
    """
    try:
        p = _probability_of_complete(logprobs)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None  # not in the format of OpenAI
    if p is None or math.isnan(p) or p >= ROUNDED:
        return None
    return min(p, 1.0)


def _probability_of_complete(logprobs: Any) -> float | None:
    text = "".join(str(entry["token"]) for entry in logprobs)
    actions = list(ACTION.finditer(text))
    if not actions:
        return None
    name = actions[-1][1]  # an earlier one is part of the thinking
    start_of_name = actions[-1].end()
    end_of_name = start_of_name + len(name)
    log_p = 0.0
    end = 0
    for entry in logprobs:
        start = end
        end += len(str(entry["token"]))
        if end <= start_of_name or start >= end_of_name:
            continue  # this token has no part of the name
        if name != COMPLETE:
            return _mass_of_complete(entry, prefix=text[start:start_of_name])
        log_p += float(entry["logprob"])
    return math.exp(log_p)


def _mass_of_complete(entry: Mapping[str, Any], prefix: str) -> float | None:
    """The probability that this token begins `complete` after the same `prefix`."""
    alternatives = entry.get("top_logprobs")
    if not alternatives:
        return None
    mass = 0.0
    for alternative in alternatives:
        token = str(alternative["token"])
        word = token.removeprefix(prefix)
        is_part = word != "" and COMPLETE.startswith(word)
        if token.startswith(prefix) and (is_part or word.startswith(f'{COMPLETE}"')):
            mass += math.exp(float(alternative["logprob"]))
    return mass
