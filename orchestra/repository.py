"""--workdir: the repository that sub-agents work in a copy of, in the run folder."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

from orchestra.vocabulary import ConfigError


def check(path: Path, with_media: bool = False) -> None:
    """Raises ConfigError where `path` is no git repository, there is no git to compare with, or the
    task's files would hide a folder of it.
    """
    if not path.is_dir():
        raise ConfigError(f"--workdir {path}: there is no such folder; check the path")
    if not (path / ".git").exists():
        raise ConfigError(
            f"--workdir {path}: is no git repository (it has no .git); name its top folder, or "
            "make it one with git init"
        )
    if with_media and os.path.lexists(path / "media"):
        raise ConfigError(
            f"--workdir {path}: has a media of its own, where sub-agents see the task's files; "
            "rename it, or ask without files"
        )
    if not shutil.which("git"):
        raise ConfigError("--workdir: needs git on this machine; install it")


def copy_into(folder: Path, source: Path) -> None:
    """Copy the files as they are now, without their history: its one commit is tagged `base`."""
    target = folder / "workdir"
    fixed = {"user.name": "orchestra-min", "user.email": "none", "commit.gpgsign": "false"}
    settings = [part for k, v in fixed.items() for part in ("-c", f"{k}={v}")]
    empty = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    # Without the GIT_DIR and the like of a hook that started this program: the copy is meant.
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | empty
    commands = "init -q", "add -A", "commit -q --allow-empty --no-verify -m base", "tag base"
    try:
        shutil.copytree(source, target, symlinks=True, ignore=_left_out)
        for command in commands:
            call = ["git", "-C", str(target), *settings, *command.split()]
            subprocess.run(call, check=True, capture_output=True, text=True, env=env)
    except (OSError, shutil.Error) as error:
        why = getattr(error, "strerror", None) or "some file can not be read"
        raise ConfigError(f"--workdir {source}: can not be copied ({why})") from None
    except subprocess.CalledProcessError as error:
        said = " ".join(error.stderr.split())[:200]
        raise ConfigError(f"--workdir {source}: git can not read the copy ({said})") from None


def _left_out(folder: str, names: list[str]) -> list[str]:
    return [*special_files(folder, names), *(name for name in names if name == ".git")]


def special_files(folder: str, names: list[str]) -> list[str]:
    """Pipes, sockets and devices: what a command may have made and no copy can hold."""

    def kept(mode: int) -> bool:
        return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)

    return [name for name in names if not kept(os.lstat(Path(folder, name)).st_mode)]
