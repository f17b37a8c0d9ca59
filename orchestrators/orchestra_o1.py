"""Orchestra-o1 (arXiv 2606.13707): the main agent decides once a round, delegating sub-tasks side
by side or completing.

Differences from the paper / the released code
1. A task may carry `id`, `needs`, `modalities`, `requirements` and `priority`: the graph, r(u) and
U of Eq. 5-10, which the
   paper leaves latent and the released code does not have.
2. `complete` is refused while a task with media has no evidence at all: the main agent has seen
nothing.
3. An unusable decision is told back, with the error named, up to three times a round; the released
code skips the round.
4. What is found is shown by file and as the compressed context of Eq. 20, not as the whole history.
5. A sub-agent gets C_t beside the context that the main agent writes for it (C of Eq. 2 is "passed
   from previous rounds"), so a fact that was found is not lost in the retelling.
6. Eq. 22 is read from the token log-probabilities of "complete", where the endpoint gives them and
a threshold is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from orchestra.main_agent import Ask
from orchestra.memory import stop_probability
from orchestra.prompts import render, say
from orchestra.vocabulary import Backend, Complete, Decision, Delegate, ModelMistake, State
from orchestrators.delegation import (
    action_schema,
    as_subtask,
    complete,
    media_lines,
    model_lines,
    object_schema,
    read_action,
    read_tasks,
)
from tools import Tool

MAX_SUBTASKS = 128  # in one decision
Messages = list[dict[str, Any]]


# ---- what the model reads ------------------------------------------------------------------------


def render_state(
    state: State, models: str, tools: str, mistake: str = "", last_chance: bool = False
) -> Messages:
    """s_t as the main agent sees it: a pure function, so the recorded prompt can be rebuilt to the
    byte.
    """
    notice = say("delegation", "mistake", mistake=mistake) if mistake else ""
    if last_chance:
        notice += say("delegation", "last_chance")
    user = render(
        "orchestra_o1/user.md",
        question=state.task.question,
        media=media_lines(state),
        context=state.context or say("delegation", "nothing_found"),
        waiting=_waiting_lines(state.waiting),
        round=state.round,
        rounds=state.rounds,
        budget=""
        if state.budget_usd is None
        else " " + say("delegation", "budget", usd=f"{state.budget_usd:.4f}"),
        notice=notice,
        next_step=_next_step(state),
    )
    system = render("orchestra_o1/system.md", models=models, tools=tools)
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def _next_step(state: State) -> str:
    """Where the task stands, from the history alone: small models follow what they read last."""
    history = state.history
    unseen = [m.name for m in state.task.media if all(m.name not in h.media for h in history)]
    tried = [name for name in unseen if any(name in h.instruction for h in history)]
    newest = [h for h in history if h.round == history[-1].round]
    failed = [h.id for h in newest if h.status in ("failed", "blocked")]
    ids = ", ".join(h.id for h in newest)
    answers = " / ".join(h.answer[:300] for h in newest if h.answer)
    if new := [name for name in unseen if name not in tried]:
        parts = [say("orchestra_o1/messages", "next_unseen_part", file=name) for name in new]
        first = "" if history else " " + say("orchestra_o1/messages", "next_unseen_first")
        return say("orchestra_o1/messages", "next_unseen", parts=", ".join(parts)) + first
    if tried:
        return say("orchestra_o1/messages", "next_tried", files=", ".join(tried))
    if failed:
        return say("orchestra_o1/messages", "next_failed", ids=", ".join(failed))
    if state.waiting:
        return say("orchestra_o1/messages", "next_waiting")
    if newest and not any(h.media for h in newest):
        return say("orchestra_o1/messages", "next_found", ids=ids, answers=answers)
    return say("orchestra_o1/messages", "next_seen" if history else "next_start", answers=answers)


def _waiting_lines(waiting: Mapping[str, Sequence[str]]) -> str:
    def one(id: str, needs: Sequence[str]) -> str:
        return say(
            "orchestra_o1/messages",
            "waits_for" if needs else "can_run",
            id=id,
            needs=", ".join(needs),
        )

    listed = "; ".join(one(id, needs) for id, needs in waiting.items())
    return "\n" + say("orchestra_o1/messages", "waiting", waiting=listed) + "\n" if listed else ""


# ---- what the model may say ----------------------------------------------------------------------


def decision_schema(
    backends: Sequence[str], tools: Sequence[str], last_chance: bool = False
) -> dict[str, Any]:
    """The JSON schema of y_t: one alternative an action. A loose schema lets small models mix the
    two.
    """
    text = {"type": "string"}
    task = {
        "task_instruction": text,
        "context": text,
        "model": {"type": "string", "enum": [*backends, "auto"]},
        "tools": {"type": "array", "items": {"type": "string", "enum": list(tools)}},
    }
    optional = {"id": text, "needs": {"type": "array", "items": text}}
    tasks = {"type": "array", "items": object_schema({**task, **optional}, required=list(task))}
    complete = action_schema("complete", object_schema({"answer": text}))
    return (
        complete
        if last_chance
        else {"anyOf": [action_schema("delegate_task", object_schema({"tasks": tasks})), complete]}
    )


def parse_decision(reply: str, state: State, cut: bool = False) -> Decision:
    """y_t from any reply (wire-formats: fenced, thinking around it, flat params, nulls, extra
    keys).

    Raises ModelMistake with the words the model is told.
    """
    action, params, reasoning = read_action(reply, cut)
    if action == "complete":
        return complete(params, reasoning, state)
    if action in ("delegate_task", "delegate"):
        return _delegate(params, reasoning, state)
    known = "delegate_task, complete"
    raise ModelMistake(say("mistakes", "bad_action", action=repr(action)[:80], known=known))


def _delegate(params: dict[str, Any], reasoning: str, state: State) -> Delegate:
    tasks = params.get("tasks")
    if tasks is None:
        tasks = [params] if "task_instruction" in params else []  # one task, flat in params
    if isinstance(tasks, dict):
        tasks = [tasks]
    if not tasks and not any(not needs for needs in state.waiting.values()):
        raise ModelMistake(say("mistakes", "no_subtasks"))
    if not isinstance(tasks, list) or len(tasks) > MAX_SUBTASKS:
        given = len(tasks) if isinstance(tasks, list) else 0
        key = "too_many_subtasks" if given else "no_subtasks"
        raise ModelMistake(say("mistakes", key, count=given, limit=MAX_SUBTASKS))
    taken = {h.id for h in state.history} | set(state.waiting)
    fields = read_tasks(tasks)
    taken |= {f.id for f in fields}
    free = (id for n in count(1) if (id := f"t{n}") not in taken)
    return Delegate(tuple(as_subtask(f, f.id or next(free), state) for f in fields), reasoning)


# ---- the decision --------------------------------------------------------------------------------


class OrchestraO1:
    """pi_theta(y_t | s_t), Eq. 3. `stop_threshold` is tau_stop of Eq. 22; None: off."""

    rounds = 10
    shares_context = True  # a sub-agent gets C_t beside what the main agent writes for it

    def __init__(
        self,
        backends: Sequence[Backend],
        tools: Mapping[str, Tool],
        stop_threshold: float | None = None,
    ) -> None:
        self.models = model_lines(backends)
        self.manuals = "\n\n".join(t.manual for t in tools.values())
        self.stop_threshold = stop_threshold

    def render(self, state: State, mistake: str = "", last_chance: bool = False) -> Messages:
        return render_state(state, self.models, self.manuals, mistake, last_chance)

    def decide(
        self, state: State, ask: Ask, mistake: str = "", last_chance: bool = False
    ) -> Decision:
        """y_t ~ pi_theta(. | s_t). Raises ModelMistake for a reply that is no decision."""
        schema = decision_schema(state.backends, state.tools, last_chance)
        reply = ask(
            self.render(state, mistake, last_chance),
            ("decision", schema),
            self.stop_threshold is not None,
        )  # Eq. 3
        decision = parse_decision(reply.text, state, reply.cut)
        if last_chance and isinstance(decision, Delegate):
            raise ModelMistake(
                say("mistakes", "bad_action", action="delegate_task", known="complete")
            )
        if self.stop_threshold is None or last_chance:
            return decision
        p = stop_probability(reply.logprobs)
        if p is None or isinstance(decision, Complete) == (
            p > self.stop_threshold
        ):  # Eq. 22: p_stop(s_t) > tau_stop
            return decision
        if isinstance(decision, Delegate):
            return self.decide(
                state, ask, mistake, last_chance=True
            )  # sure enough: generate the answer
        raise ModelMistake(
            say("mistakes", "not_sure_enough", p=f"{p:.2f}", threshold=f"{self.stop_threshold:g}")
        )
