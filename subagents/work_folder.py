"""The work folder of a mini-SWE sub-agent: where it begins, that each command changes it once, and
what was changed in it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestra.changes import place, work_folders, write
from orchestra.prompts import say
from orchestra.repository import special_files
from subagents.executor import cut_in_the_middle
from tools import Environment, ToolError

COMMAND_TIMEOUT_S = 60
# A file changed twice in one second would else run from its old byte code; and behind the wall the
# program is another user than the owner of the copy.
SETTINGS = (
    "export PYTHONDONTWRITEBYTECODE=1 GIT_CONFIG_COUNT=1"
    " GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'"
)
BINARY = re.compile(r"(?m)^GIT binary patch\n(?:(?:literal|delta) \d+\n(?:.+\n)*\n?)+")


def prepare(folder: Path) -> None:
    """A copy of the folder of the sub-task before this one, or of the repository; or nothing. So
    also where all was deleted, as after a command that wrote too much.
    """
    if folder.is_dir() and any(folder.iterdir()):
        return
    run = folder.parent.parent
    before = [f for f in work_folders(run) if place(f) < place(folder)]
    origin = before[-1] if before else run / "workdir"
    if not origin.is_dir():
        return
    part = folder.with_name(f".{folder.name}.part")  # a kill leaves no half copy that looks whole
    try:
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(origin, part, symlinks=True, ignore=special_files)
        part.rename(folder)
    except OSError as error:
        raise _not_copied(error) from None


def begin(folder: Path, step: int, done: Sequence[str], run: Callable[[str], object]) -> None:
    """Before command `step`, which comes after those of `done`: the folder as they left it, or none
    yet for `run`, which prepares it.

    Where it began before and was ended by a kill or an interrupt, it may have changed half of what
    it changes: the folder is made anew, and `run` runs what was done in it again.
    """
    note = folder.with_name(f".{folder.name}.s{step}")  # where no command reaches it
    try:
        if note.exists():
            for tidy in (("chmod", "-R", "u+rwX"), ("rm", "-rf")):  # however deep or closed
                subprocess.run([*tidy, "--", folder], capture_output=True, check=False)
            for command in done:
                run(command)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()
    except OSError as error:
        raise _not_copied(error) from None


def _not_copied(error: OSError) -> ToolError:
    why = error.strerror or type(error).__name__
    return ToolError(say("mini_swe/messages", "not_copied", reason=why))


def changes(env: Environment) -> str:
    """Writes the diff of the repository against --workdir into the run's changes.diff. Returns what
    the main agent is told of it, "" where there is none.
    """
    run = env.folder.parent.parent
    if not ((run / "workdir").is_dir() and env.folder.is_dir()):
        return ""
    try:
        prepare(env.folder)
    except ToolError as error:
        return str(error)
    diff, note = write(run, env.folder)
    left_out = say("mini_swe/messages", "binary") + "\n"
    text = BINARY.sub(left_out, diff.decode("utf-8", "replace").removeprefix(note))
    shown = cut_in_the_middle(text.strip())
    told = say("mini_swe/messages", "changed", diff=shown) if shown else ""
    return f"{told}\n{cut_in_the_middle(note)}".strip()
