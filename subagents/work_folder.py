"""The work folder of a mini-SWE sub-agent: where it begins, and what was changed in it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from orchestra.prompts import say
from orchestra.repository import special_files
from subagents.executor import cut_in_the_middle
from tools import Environment, ToolError, code, wall

COMMAND_TIMEOUT_S = 60
DIFF_BYTES = 200_000
# A file changed twice in one second would else run from its old byte code; and behind the wall the
# program is another user than the owner of the copy.
SETTINGS = (
    "export PYTHONDONTWRITEBYTECODE=1 GIT_CONFIG_COUNT=1"
    " GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'"
)
DIFF = (
    "git add -A -- {paths} && git diff --cached --binary --no-color --no-ext-diff --no-textconv"
    " --src-prefix=a/ --dst-prefix=b/ base"
)
BINARY = re.compile(r"(?m)^GIT binary patch\n(?:(?:literal|delta) \d+\n(?:.+\n)*\n?)+")
CHANGES = "changes.diff"


def prepare(folder: Path) -> None:
    """A copy of the folder of the sub-task before this one, or of the repository; or nothing."""
    if folder.exists():
        return
    place = _place(folder)
    before = [f for f in folder.parent.glob("r*-t*") if _place(f) < place]
    origin = max(before, key=_place, default=folder.parent.parent / "workdir")
    if not origin.is_dir():
        return
    part = folder.with_name(f".{folder.name}.part")  # a kill leaves no half copy that looks whole
    try:
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(origin, part, symlinks=True, ignore=special_files)
        part.rename(folder)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise ToolError(say("mini_swe/messages", "not_copied", reason=why)) from None


def _place(folder: Path) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", folder.name)))


def changes(env: Environment) -> str:
    """Writes the diff of the repository against --workdir into the run's changes.diff. Returns what
    the main agent is told of it, "" where there is none.
    """
    if not (env.folder / ".git").exists():
        return ""
    paths = ". ':!media'" if env.task.media else "."  # the task's own files are shown there
    command = f"{SETTINGS}\n{DIFF.format(paths=paths)}".encode()
    ran = wall.confined(
        code.RUNNER, ["bash"], command, COMMAND_TIMEOUT_S, env.folder, None, DIFF_BYTES, False
    )
    diff, note = ran.output, ""
    if ran.ended == "flood":
        note = say("mini_swe/messages", "diff_cut", limit=DIFF_BYTES)
        diff += f"\n{note}\n".encode()
    elif ran.ended != "end" or ran.status:
        return say("mini_swe/messages", "no_diff", reason=f"{ran.ended}, {ran.status}")
    (env.folder.parent.parent / CHANGES).write_bytes(diff)
    left_out = say("mini_swe/messages", "binary") + "\n"
    text = BINARY.sub(left_out, ran.output.decode("utf-8", "replace"))
    shown = cut_in_the_middle(text.rstrip())
    told = say("mini_swe/messages", "changed", diff=shown) if shown else ""
    return f"{told}\n{note}".strip()
