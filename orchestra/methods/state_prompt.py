"""Parts of the state s_t as text: files, models, tools, round and budget.

The main agents of Orchestra-o1 and AOrchestra read them. The main agent never opens a file itself:
it reads which files there are, and which sub-tasks have opened one or failed to.

    >>> from pathlib import Path
    >>> from orchestra.vocabulary import Task
    >>> picture = Media(modality="image", name="clock.png", path=Path("clock.png"), sha256="")
    >>> state = State(
    ...     task=Task("What time is it?", media=(picture,)), context="", history=(),
    ...     backends=("small",), tools=(), round=2, rounds=10, budget_usd=0.5,
    ... )
    >>> print(media_lines(state))
    - clock.png (image): not analysed yet
    >>> print(status_lines(state, next_step="Decide now."))
    Round 2 of 10. 0.5000 USD are left.
    Decide now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestra.matching import mentions
from orchestra.runtime.prompts import named, quoted_whole, say
from orchestra.toolkit import Tool
from orchestra.vocabulary import SKILLS, Backend, Evidence, Media, State

PROMPTS = "delegation"


# ---- models and tools ----------------------------------------------------------------------------


def model_lines(backends: Sequence[Backend]) -> str:
    """B for the prompt: name, skills, price."""
    return "\n".join(_model_line(b) for b in backends)


def _model_line(b: Backend) -> str:
    price = b.price_usd_per_mtok
    if price is None:
        cost = say(PROMPTS, "no_price")
    else:
        cost = say(PROMPTS, "price", into=f"{price.input:g}", out=f"{price.output:g}")
    return f"- {b.name}: {skills_of(b)}; {cost}"


def skills_of(b: Backend) -> str:
    """The skills of a backend that are not 0, as in "txt 1, img 0.5"."""
    return ", ".join(f"{k} {b.skills[k]:g}" for k in SKILLS if b.skills.get(k))


def manual_lines(tools: Mapping[str, Tool]) -> str:
    """T for the prompt: the manual of each tool."""
    return "\n\n".join(tool.manual for tool in tools.values())


# ---- the round -----------------------------------------------------------------------------------


def status_lines(
    state: State, next_step: str, mistake: str = "", last_chance: bool = False
) -> str:
    """Round and budget, the error of the previous reply, and the next step."""
    notice = say(PROMPTS, "mistake", mistake=mistake) if mistake else ""
    if last_chance:
        return f"{notice}\n{say(PROMPTS, 'last_chance')}".strip()
    parts = [say(PROMPTS, "round", round=state.round, rounds=state.rounds)]
    if state.budget_usd is not None:
        parts.append(say(PROMPTS, "budget", usd=f"{state.budget_usd:.4f}"))
    if notice:
        parts.append(notice)
    return " ".join(parts) + "\n" + next_step


def reported(text: str) -> str:
    """Reports of sub-agents as data: they may quote pages and files that are not trusted."""
    return quoted_whole(text) if text else say(PROMPTS, "nothing_found")


# ---- files ---------------------------------------------------------------------------------------


def media_lines(state: State) -> str:
    """M for the prompt: each file, and the sub-tasks that have opened it or failed to."""
    if not state.task.media:
        return say(PROMPTS, "no_media")
    return "\n".join(_media_line(m, state) for m in state.task.media)


def _media_line(m: Media, state: State) -> str:
    opened = opened_by(m, state)
    tried = tried_by(m, state)
    if opened:
        text = "media_seen"
        ids = ", ".join(say(PROMPTS, "seen_by", id=h.id, round=h.round) for h in opened)
    elif tried:
        text = "media_tried"
        ids = "; ".join(say(PROMPTS, "tried_by", id=h.id, round=h.round) for h in tried)
    else:
        text = "media_unseen"
        ids = ""
    name = named(m.name)
    return say(PROMPTS, text, name=name, modality=m.modality, ids=ids)


def opened_by(m: Media, state: State) -> list[Evidence]:
    return [h for h in state.history if m.name in h.media]


def tried_by(m: Media, state: State) -> list[Evidence]:
    """The sub-tasks whose instruction names the file."""
    return [h for h in state.history if mentions(h.instruction, m)]


def unopened(state: State) -> tuple[list[Media], list[Media]]:
    """The files that no sub-task has opened: (those that none has tried, those that some have)."""
    new = []
    tried = []
    for m in state.task.media:
        if opened_by(m, state):
            continue
        if tried_by(m, state):
            tried.append(m)
        else:
            new.append(m)
    return new, tried
