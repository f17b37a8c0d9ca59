"""What the main agents of Orchestra-o1 and AOrchestra read of the state: files, models, and where
the run stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestra.prompts import say
from orchestra.vocabulary import SKILL_OF, SKILLS, Backend, Evidence, Media, State
from tools import tools_for

Messages = list[dict[str, Any]]


def media_lines(state: State) -> str:
    """M for the prompt: each file, and which sub-tasks have read it or have failed to."""

    def one(m: Media) -> str:
        seen, tried = read_by(m, state), tried_by(m, state)
        key = "media_seen" if seen else "media_tried" if tried else "media_unseen"
        rows = [say("delegation", "seen_by", id=h.id, round=h.round) for h in seen or tried]
        return say("delegation", key, name=m.name, modality=m.modality, ids=", ".join(rows))

    return "\n".join(map(one, state.task.media)) or say("delegation", "no_media")


def read_by(m: Media, state: State) -> list[Evidence]:
    return [h for h in state.history if m.name in h.media]


def tried_by(m: Media, state: State) -> list[Evidence]:
    """The sub-tasks meant for a file that none has read: they name it, or they name and read no
    file and had a tool for its kind.
    """
    if read_by(m, state):
        return []
    names = [other.name for other in state.task.media]
    skill = SKILL_OF[m.modality]
    opens = {name for name, tool in tools_for(state.task).items() if skill in tool.capabilities}

    def vague(h: Evidence) -> bool:
        return not h.media and not any(name in h.instruction for name in names)

    def meant(h: Evidence) -> bool:
        return m.name in h.instruction or (vague(h) and not opens.isdisjoint(h.tools))

    return [h for h in state.history if meant(h)]


def unread(state: State) -> tuple[list[str], list[str]]:
    """The names of the files that no sub-task has read: those none has tried, and the others."""
    left = [m for m in state.task.media if not read_by(m, state)]
    new = [m.name for m in left if not tried_by(m, state)]
    return new, [m.name for m in left if m.name not in new]


def now(state: State, next_step: str, mistake: str = "", last_chance: bool = False) -> str:
    """Where the run stands, what was wrong with the reply before, and what to do next."""
    told = say("delegation", "mistake", mistake=mistake) if mistake else ""
    if last_chance:
        return f"{told}\n{say('delegation', 'last_chance')}".strip()
    place = say("delegation", "round", round=state.round, rounds=state.rounds)
    usd = "" if state.budget_usd is None else f"{state.budget_usd:.4f}"
    money = say("delegation", "budget", usd=usd) if usd else ""
    return " ".join(part for part in (place, money, told) if part) + "\n" + next_step


def as_messages(system: str, user: str) -> Messages:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def model_lines(backends: Sequence[Backend]) -> str:
    """B for the prompt: name, what it is good at, its price."""
    return "\n".join(f"- {b.name}: {_skills(b)}; {_price(b)}" for b in backends)


def _skills(b: Backend) -> str:
    return ", ".join(f"{k} {b.skills[k]:g}" for k in SKILLS if b.skills.get(k))


def _price(b: Backend) -> str:
    if b.price is None:
        return say("delegation", "no_price")
    return say("delegation", "price", into=f"{b.price.input:g}", out=f"{b.price.output:g}")
