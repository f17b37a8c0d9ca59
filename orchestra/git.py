"""git as this program runs it: it obeys the configuration of where it is, so what that is, is said
at each call.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import IO

NOBODY = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
}
OURS = {
    "user.name": "orchestra-min",
    "user.email": "none",
    "commit.gpgsign": "false",
    "core.excludesFile": os.devnull,
    "core.attributesFile": os.devnull,
    "pack.window": "0",
}
THEIRS = {"safe.directory": "*", "core.fsmonitor": "false"}  # so that listing starts no program


def git(
    folder: Path,
    *arguments: str,
    given: bytes = b"",
    out: IO[bytes] | int = subprocess.PIPE,
    well: tuple[int, ...] = (0,),
    timeout_s: float | None = None,
    theirs: bool = False,
) -> bytes:
    """What git prints in `folder`, with our settings and the folder's; `theirs`: with the user's.

    Raises OSError and subprocess.SubprocessError, the latter for any exit status but `well`.
    """
    fixed = (part for k, v in (THEIRS if theirs else OURS).items() for part in ("-c", f"{k}={v}"))
    # Without the GIT_DIR and the like of a hook that started this program: `folder` is meant.
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {"LC_ALL": "C"}
    env |= {"GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}
    done = subprocess.run(
        ["git", "-C", str(folder), *fixed, *arguments],
        input=given,
        stdout=out,
        stderr=subprocess.PIPE,
        env=env if theirs else env | NOBODY,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode not in well:
        raise subprocess.CalledProcessError(done.returncode, "git", done.stdout, done.stderr)
    return done.stdout or b""


def said(error: subprocess.SubprocessError) -> str:
    """What git said of its failure, in a line."""
    stderr = getattr(error, "stderr", None) or b""
    return " ".join(stderr.decode("utf-8", "replace").split())[:200] or type(error).__name__
