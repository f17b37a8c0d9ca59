"""How to go on with a run that was ended: the command, which can be copied as it is."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from pathlib import Path

import orchestra_min
from orchestra.kernel.folder import read_manifest

PROGRAM = "orchestra-min"
SCRIPT = Path(orchestra_min.__file__)


def resume_command(folder: Path, a: argparse.Namespace) -> str:
    """The command with each permission that a resume needs again."""
    words = ["resume", str(folder.absolute())]
    for flag, path in (("--backends", a.backends), ("--workdir", a.workdir)):
        words += [flag, str(path.absolute())] if path else []
    reused = [*a.reuse]
    if (
        a.resume and a.resume.absolute() != folder.absolute()
    ):  # a fork may reuse its run
        is_reused = a.resume.resolve().name in read_manifest(folder).more.get(
            "reuse", ()
        )
        reused = [a.resume, *reused] if is_reused else reused
    if reused:
        words += ["--reuse", ",".join(str(run.absolute()) for run in reused)]
    for flag, name in (("--method", a.method), ("--agent", a.agent)):
        words += [flag, _absolute(name)] if ":" in (name or "") else []
    for tool in a.tools or ():
        words += ["--tools", _absolute(tool)]
    for flag, values in (("--mcp", a.mcp), ("--allow-host", a.allow_host)):
        for value in values or ():
            words += [flag, value]
    words += ["--unsafe-code"] if a.unsafe_code else []
    program = [PROGRAM] if shutil.which(PROGRAM) else [sys.executable, str(SCRIPT)]
    return shlex.join([*program, *words])


def _absolute(spec: str) -> str:
    """FILE.py:NAME with the whole path; package.module:NAME as it is."""
    where, _, name = spec.rpartition(":")
    return f"{Path(where).absolute()}:{name}" if where.endswith(".py") else spec
