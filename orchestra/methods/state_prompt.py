"""The parts of prompts that main agents share: files, models, round and budget. And files as text,
for systems whose agents read only text.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestra.matching import mentions
from orchestra.runtime.prompts import quoted_whole, say
from orchestra.vocabulary import (
    SKILLS,
    Backend,
    Delegate,
    Evidence,
    Media,
    State,
    SubTask,
)


def model_lines(backends: Sequence[Backend]) -> str:
    """B for the prompt: name, skills, price."""

    def one(b: Backend) -> str:
        skills = ", ".join(f"{k} {b.skills[k]:g}" for k in SKILLS if b.skills.get(k))
        p = b.price_usd_per_mtok
        cost = (
            say("delegation", "price", into=f"{p.input:g}", out=f"{p.output:g}")
            if p
            else ""
        )
        return f"- {b.name}: {skills}; {cost or say('delegation', 'no_price')}"

    return "\n".join(map(one, backends))


def status_lines(
    state: State, next_step: str, mistake: str = "", last_chance: bool = False
) -> str:
    """Round and budget, the error of the previous reply, and the next step."""
    notice = say("delegation", "mistake", mistake=mistake) if mistake else ""
    if last_chance:
        return f"{notice}\n{say('delegation', 'last_chance')}".strip()
    place = say("delegation", "round", round=state.round, rounds=state.rounds)
    left = state.budget_usd
    money = "" if left is None else say("delegation", "budget", usd=f"{left:.4f}")
    return " ".join(part for part in (place, money, notice) if part) + "\n" + next_step


def reported(text: str) -> str:
    """Reports of sub-agents as data: they may quote pages and files that are not trusted."""
    return quoted_whole(text) if text else say("delegation", "nothing_found")


# ---- files ---------------------------------------------------------------------------------------


def media_lines(state: State) -> str:
    """M for the prompt: each file, and the sub-tasks that have opened it or failed to."""

    def one(m: Media) -> str:
        opened, tried = opened_by(m, state), tried_by(m, state)
        key = "media_seen" if opened else "media_tried" if tried else "media_unseen"
        rows = [
            say("delegation", "seen_by", id=h.id, round=h.round)
            for h in opened or tried
        ]
        return say(
            "delegation", key, name=m.name, modality=m.modality, ids=", ".join(rows)
        )

    return "\n".join(map(one, state.task.media)) or say("delegation", "no_media")


def opened_by(m: Media, state: State) -> list[Evidence]:
    return [h for h in state.history if m.name in h.media]


def tried_by(m: Media, state: State) -> list[Evidence]:
    """The sub-tasks whose instruction names the file."""
    return [h for h in state.history if mentions(h.instruction, m)]


def unopened(state: State) -> tuple[list[str], list[str]]:
    """The files that no sub-task has opened: (those that none has tried, those that some have)."""
    left = [m for m in state.task.media if not opened_by(m, state)]
    new = [m.name for m in left if not tried_by(m, state)]
    return new, [m.name for m in left if m.name not in new]


# ---- files as text, for systems whose agents read only text --------------------------------------


def file_readers(state: State) -> tuple[SubTask, ...]:
    """One sub-task a file. The colon keeps its id apart from every id that a model may give."""
    return tuple(
        SubTask(
            f"file:{n}",
            say("files", "instruction", file=m.name),
            tools=(),
            agent="read-file",
        )
        for n, m in enumerate(state.task.media, 1)
    )


def read_files_first(state: State) -> Delegate | None:
    """The sub-tasks that read the files, or those that are left; None if all have ended."""
    ended = {h.id for h in state.history}
    readers = file_readers(state)
    if all(u.id in ended for u in readers):
        return None
    return Delegate(() if ended else readers)


def files_as_text(texts: Sequence[tuple[str, str]]) -> str:
    """(name, content) of each file; "" without files."""
    rows = [say("files", "file", name=name, text=text) for name, text in texts]
    return say("files", "files", files="\n".join(rows)) if rows else ""


def files_found(state: State) -> str:
    """The texts from the readers of the first turn, in the order of the files."""
    found = {h.id: h.summary or h.error for h in state.history}
    media = enumerate(state.task.media, 1)
    return files_as_text(
        [(m.name, found[id]) for n, m in media if (id := f"file:{n}") in found]
    )
