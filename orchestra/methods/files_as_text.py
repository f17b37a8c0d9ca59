"""The files of a task as text, for methods whose agents read only text.

ToolOrchestra and MAS-Orchestra have no files in their papers. Here one sub-task a file describes it
first, and all other agents read the descriptions.

    >>> print(files_as_text([("clock.png", "A clock that shows 7:49.")]))
    # What the files of the task hold
    clock.png: A clock that shows 7:49.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestra.kernel.prompts import named, say
from orchestra.kernel.vocabulary import Delegate, State, SubTask

PROMPTS = "files"


def file_readers(state: State) -> tuple[SubTask, ...]:
    """One sub-task a file, in the order of the files."""
    readers = []
    for number, m in enumerate(state.task.media, 1):
        reader = SubTask(
            id=_id_of_reader(number),
            instruction=say(PROMPTS, "instruction", file=named(m.name)),
            tools=(),
            agent="read-file",
        )
        readers.append(reader)
    return tuple(readers)


def _id_of_reader(number: int) -> str:
    """The colon keeps it apart from every id that a model may give."""
    return f"file:{number}"


def read_files_first(state: State) -> Delegate | None:
    """The sub-tasks that read the files, or those that are left; None if all have ended."""
    ended = {h.id for h in state.history}
    readers = file_readers(state)
    if all(u.id in ended for u in readers):
        return None
    if ended:
        return Delegate(())  # the graph has those that are left
    return Delegate(readers)


def files_found(state: State) -> str:
    """The texts from the readers of the first turn, in the order of the files."""
    found = {h.id: h.summary or h.error for h in state.history}
    texts = []
    for number, m in enumerate(state.task.media, 1):
        id = _id_of_reader(number)
        if id in found:
            texts.append((m.name, found[id]))
    return files_as_text(texts)


def files_as_text(texts: Sequence[tuple[str, str]]) -> str:
    """(name, content) of each file; "" without files."""
    if not texts:
        return ""
    rows = [say(PROMPTS, "file", name=named(name), text=text) for name, text in texts]
    return say(PROMPTS, "files", files="\n".join(rows))
