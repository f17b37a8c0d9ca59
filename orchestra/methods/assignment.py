"""The tools that a main agent assigns to a sub-task: what their names mean, and whether they open
the files that its instruction names.

An assignment that cannot work is a ModelMistake. The main agent reads which tool opens the file and
decides again in the same round, instead of reading a failed result a round later.

    >>> from pathlib import Path
    >>> from orchestra.vocabulary import Task
    >>> film = Media(modality="video", name="walk.mp4", path=Path("walk.mp4"), sha256="")
    >>> psi = {"SeeAction": frozenset({"img"}), "WatchAction": frozenset({"vid"})}
    >>> state = State(
    ...     task=Task("Where does it end?", media=(film,)), context="", history=(), backends=(),
    ...     tools=tuple(psi), round=1, rounds=10, capabilities=psi,
    ... )
    >>> check_files([SubTask("t1", "Watch walk.mp4", tools=("WatchAction",))], state)
    >>> check_files([SubTask("t1", "Watch walk.mp4", tools=("SeeAction",))], state)
    ... # doctest: +ELLIPSIS
    Traceback (most recent call last):
    orchestra.vocabulary.ModelMistake: ('bad_assignment', {'problems': 'SeeAction cannot open ...'})
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from orchestra.matching import OF_USER, may_open, mentions
from orchestra.methods.state_prompt import opened_by
from orchestra.runtime.prompts import named, say
from orchestra.runtime.spelling import tool_meant
from orchestra.vocabulary import OPENED_BY, Media, ModelMistake, State, SubTask

PROMPTS = "delegation"
MOST_PROBLEMS = 5  # told at once


def tools_meant(names: Sequence[str], state: State) -> tuple[str, ...]:
    """The tools of the state that these names mean, each once. Raises ModelMistake for a name that
    means none.
    """
    found: dict[str, None] = {}
    for name in names:
        tool = tool_meant(name, state.tools)
        if tool is None:
            rule = "unknown_tool" if state.tools else "no_tools"
            known = ", ".join(state.tools)
            raise ModelMistake(rule, tool=repr(name), known=known)
        found[tool] = None
    return tuple(found)


def check_files(subtasks: Sequence[SubTask], state: State) -> None:
    """Raises ModelMistake if an instruction names a file that no tool of its sub-task opens. All
    such files are named at once, because the attempts of a round are few.
    """
    problems = chain.from_iterable(_problems(u, state) for u in subtasks)
    told = list(dict.fromkeys(problems))[:MOST_PROBLEMS]
    if told:
        raise ModelMistake("bad_assignment", problems=" ".join(told))


def _problems(u: SubTask, state: State) -> Iterator[str]:
    """What is wrong with the tools of one sub-task.

    Without a tool for files, the sub-task may still name a file that was opened before, or that
    another sub-task opens for it: it can work with what that one reported.
    """
    psi = state.capabilities
    if u.tools is None or not all(tool in psi for tool in u.tools):
        return  # Eq. 7 chooses the tools, or it is not known what they open
    files = [m for m in state.task.media if mentions(u.instruction, m)]
    useless = [tool for tool in u.tools if _opens_others(psi[tool], files)]
    for m in files:
        right = tools_for_file(m, state)
        if not right or any(may_open(psi[tool], m) for tool in u.tools):
            continue
        about = {"name": named(m.name), "modality": m.modality, "right": right[0]}
        if useless:
            yield say(PROMPTS, "wrong_tool", tool=useless[0], **about)
        elif not u.needs and not opened_by(m, state):
            yield say(PROMPTS, "no_file_tool", **about)


def tools_for_file(m: Media, state: State) -> list[str]:
    """The tools that are made for files of this kind."""
    made_for = OPENED_BY[m.modality][0]
    return [tool for tool, psi in state.capabilities.items() if made_for in psi]


def _opens_others(psi: frozenset[str], files: Sequence[Media]) -> bool:
    """Whether a tool is made for files, but opens none of these."""
    made_for = {capabilities[0] for capabilities in OPENED_BY.values()}
    is_for_files = not psi.isdisjoint(made_for) and OF_USER not in psi
    return is_for_files and not any(may_open(psi, m) for m in files)
