"""Orchestra-o1 (arXiv 2606.13707): the main agent decides once a round: it delegates sub-tasks that
run in parallel, or completes.

Differences from the paper / the released code
1. A task may carry `id`, `needs`, `modalities`, `requirements` and `priority`: the graph, r(u) and
   U of Eq. 5-10, which the paper leaves latent and the released code does not have. `tools` may be
   left out: Eq. 7 chooses them.
2. `complete` is refused if the task has media and nothing was delegated yet: the main agent cannot
   have seen them.
3. After an unusable decision the model reads the error and decides again, up to three attempts a
   round; the released code skips the round.
4. The prompt has the state of each file and the context of Eq. 20, not the whole history.
5. A sub-agent gets C_t next to the context that the main agent writes for it (C of Eq. 2 is "passed
   from previous rounds"), so that no finding is lost in the retelling.
6. Eq. 22 is computed from the token log-probabilities of "complete", if the endpoint gives them and
   a threshold is set. The newest answer that was not sure enough is the fallback; three in a round
   end the run.
7. The schema puts the reasoning before the action: a model that names the action first has decided
   before it reasons. Replies in any order of keys are read.
8. `--prompts small` (prompts/orchestra_o1/small) is for models of few parameters: it names the next
   step, which follows from the history. Sub-agents do not read the whole question then, as in App.
   B.3, because small models answer it instead of their task.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

from orchestra.methods.decision import (
    decision_schema,
    read_decision,
    read_tasks,
    task_schema,
)
from orchestra.methods.state_prompt import (
    media_lines,
    model_lines,
    reported,
    status_lines,
    unopened,
)
from orchestra.runtime.options import Options
from orchestra.runtime.pool import Pool
from orchestra.runtime.prompts import as_messages, render, say
from orchestra.runtime.reply_schema import TEXT, closed_object, list_of, one_of
from orchestra.seams import Ask, Messages
from orchestra.stopping import stop_probability
from orchestra.toolkit import Tool
from orchestra.vocabulary import (
    SKILL_OF,
    SKILLS,
    Decision,
    Delegate,
    ModelMistake,
    RefusedAnswer,
    State,
)

CODE = "ExecuteCodeAction"
MAX_SUBTASKS = 128  # in one decision
MESSAGES = "orchestra_o1/messages"
SMALL = "orchestra_o1/small/messages"
SHARE = {"type": "number", "minimum": 0, "maximum": 1}


# ---- what the model reads ------------------------------------------------------------------------


def _next_step(state: State) -> str:
    """The next step, from the history alone: small models follow what they read last."""
    history = state.history
    new, tried = unopened(state)
    newest = [h for h in history if h.round == history[-1].round]
    failed = [h.id for h in newest if h.status in ("failed", "blocked")]
    ids = ", ".join([h.id for h in newest if h.answer] or [h.id for h in newest])
    if new:
        parts = ", ".join(say(SMALL, "next_unseen_part", file=name) for name in new)
        first = "" if history else " " + say(SMALL, "next_unseen_first")
        return say(SMALL, "next_unseen", parts=parts, first=first)
    if tried:
        return say(SMALL, "next_tried", files=", ".join(tried))
    if failed:
        return say(SMALL, "next_failed", ids=", ".join(failed))
    if state.waiting:
        return say(SMALL, "next_waiting")
    if not history:
        return say(SMALL, "next_start")
    if not any(h.media for h in newest):
        answers = "\n".join(h.answer for h in newest if h.answer)
        return say(SMALL, "next_found", ids=ids, answers=reported(answers))
    compute = " " + say(SMALL, "next_compute", ids=ids) if CODE in state.tools else ""
    return say(SMALL, "next_seen", ids=ids, compute=compute)


def _waiting_lines(waiting: Mapping[str, Sequence[str]]) -> str:
    def one(id: str, needs: Sequence[str]) -> str:
        return say(
            MESSAGES, "waits_for" if needs else "can_run", id=id, needs=", ".join(needs)
        )

    listed = "; ".join(one(id, needs) for id, needs in waiting.items())
    return "\n" + say(MESSAGES, "waiting", waiting=listed) + "\n" if listed else ""


# ---- what the model may reply --------------------------------------------------------------------


def delegation_schema(state: State, small: bool = False) -> Any:
    """The JSON schema of a delegation's params. For a small model: the keys of the paper, which it
    must give, and `id` and `needs`.
    """
    task = task_schema(state.backends, state.tools)
    required = [*task] if small else [key for key in task if key != "tools"]
    task |= {"id": TEXT, "needs": list_of(TEXT)}
    if not small:
        r = closed_object(dict.fromkeys(SKILLS, SHARE), required=())
        task |= {"modalities": list_of(one_of(SKILL_OF)), "requirements": r}
        task |= {"priority": {"type": "number", "exclusiveMinimum": 0}}
    return closed_object({"tasks": list_of(closed_object(task, required))})


def _delegate(params: dict[str, Any], reasoning: str, state: State) -> Delegate:
    tasks = params.get("tasks")
    if tasks is None:
        tasks = (
            [params] if "task_instruction" in params else []
        )  # its keys are in params
    tasks = [tasks] if isinstance(tasks, dict) else tasks
    can_continue = any(not needs for needs in state.waiting.values())
    if not isinstance(tasks, list) or not (tasks or can_continue):
        raise ModelMistake("no_subtasks")
    if len(tasks) > MAX_SUBTASKS:
        raise ModelMistake("too_many_subtasks", count=len(tasks), limit=MAX_SUBTASKS)
    return Delegate(read_tasks(tasks, state), reasoning)


parse_decision = partial(read_decision, _delegate)  # y_t from any reply; ModelMistake


# ---- the decision --------------------------------------------------------------------------------


class OrchestraO1:
    """pi_theta(y_t | s_t), Eq. 3. `options.stop_threshold` is tau_stop of Eq. 22; None: off."""

    rounds = 10
    shares_context = True

    def __init__(self, pool: Pool, tools: Mapping[str, Tool], options: Options) -> None:
        self.models = model_lines(pool.backends)
        self.manuals = "\n\n".join(t.manual for t in tools.values())
        self.stop_threshold, self.instruction = (
            options.stop_threshold,
            options.instruction,
        )
        self.small = options.prompts == "small"
        self.warn = cache(logging.getLogger("orchestra").warning)  # once a run

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """y_t ~ pi_theta(. | s_t). Raises ModelMistake."""
        schema = decision_schema(delegation_schema(state, self.small), last_chance)
        prompt = self.prompt(state, mistake, last_chance)
        reply = ask(
            prompt, ("decision", schema), self.stop_threshold is not None
        )  # Eq. 3
        y_t = parse_decision(reply.text, state, reply.cut, last_chance)
        if self.stop_threshold is None or last_chance:
            return y_t
        p_stop = stop_probability(reply.logprobs)
        if p_stop is None:
            self.warn(
                "--stop-threshold has no effect: the endpoint gave no log-probabilities"
            )
            return y_t
        stop = p_stop > self.stop_threshold  # Eq. 22
        if isinstance(y_t, Delegate):  # sure enough: generate the answer
            return self.decide(state, ask, mistake, last_chance=True) if stop else y_t
        if not stop:
            threshold = f"{self.stop_threshold:g}"
            raise RefusedAnswer(
                "not_sure_enough",
                answer=y_t.answer,
                seen=True,
                kept=y_t.answer,
                p=f"{p_stop:.2f}",
                threshold=threshold,
            )
        return y_t

    def prompt(
        self, state: State, mistake: str = "", last_chance: bool = False
    ) -> Messages:
        """s_t as the main agent reads it. It depends on the arguments and the options alone."""
        next_step = _next_step(state) if self.small else say(MESSAGES, "next")
        user = render(
            "orchestra_o1/user.md",
            question=state.task.question,
            media=media_lines(state),
            context=reported(state.context),
            waiting="" if last_chance else _waiting_lines(state.waiting),
            now=status_lines(state, next_step, mistake, last_chance),
        )
        file = (
            "orchestra_o1/small/system.md" if self.small else "orchestra_o1/system.md"
        )
        how = {"models": self.models, "tools": self.manuals}
        return as_messages(render(file, self.instruction, **how), user)
