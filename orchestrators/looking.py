"""Files for systems whose agents only read: each file is looked at or listened to once, as text."""

from __future__ import annotations

from collections.abc import Sequence

from orchestra.prompts import say
from orchestra.vocabulary import Delegate, State, SubTask, Task


def looks(task: Task) -> tuple[SubTask, ...]:
    """One sub-task a file. A colon in the id keeps it apart from every id a model may give."""
    return tuple(
        SubTask(f"file:{n}", say("looking", "instruction", file=m.name), tools=(), agent="look")
        for n, m in enumerate(task.media, 1)
    )


def look_first(task: Task) -> Delegate:
    """All looks at once, however many sub-tasks a round may have. None has an answer, only a
    summary, so the run goes on.
    """
    return Delegate(looks(task), drain=True)


def files_as_text(texts: Sequence[tuple[str, str]]) -> str:
    """(name, what it holds) each; "" without files."""
    rows = [say("looking", "file", name=name, text=text) for name, text in texts]
    return say("looking", "files", files="\n".join(rows)) if rows else ""


def files_listed(state: State) -> str:
    names = ", ".join(m.name for m in state.task.media)
    return "\n" + say("looking", "listed", files=names) if names else ""


def files_found(state: State) -> str:
    """What the looks of the first turn found, in the order of the files."""
    seen = {h.id: h.summary or h.error for h in state.history}
    media = enumerate(state.task.media, 1)
    return files_as_text([(m.name, seen[id]) for n, m in media if (id := f"file:{n}") in seen])
