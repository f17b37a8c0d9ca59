"""The folder of a program: packed for the sandbox, and what the program changed taken out again."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any


@dataclass(frozen=True)
class Packed:
    """A folder as a tar archive."""

    file: IO[bytes]
    files: int
    size_bytes: int


def pack(folder: Path, mounts: Collection[str]) -> Packed | None:
    """A folder without what is mounted over it."""
    places = [p for p in folder.iterdir() if p.name not in mounts] if folder.is_dir() else []
    names = [f"./{place.name}" for place in places]
    if not names:
        return None
    file = tempfile.TemporaryFile()  # noqa: SIM115
    tar = ["tar", "-c", "--format=posix", "--hard-dereference", "-f", "-", "-C", str(folder)]
    tar += ["--null", "-T", "-"]
    given = b"\0".join(map(os.fsencode, names))
    env = {k: v for k, v in os.environ.items() if k != "TAR_OPTIONS"}
    ran = subprocess.run(
        tar, input=given, stdout=file, stderr=subprocess.DEVNULL, env=env, check=False
    )
    if ran.returncode > 1:  # 1: a file was changed meanwhile
        raise OSError(errno.EIO, "the work folder cannot be copied")
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(0)
    return Packed(file, sum(1 for _ in folder.rglob("*")), size_bytes)


def unpack(archive: IO[bytes], folder: Path, gone: Iterable[str]) -> bool:
    """What a program changed, into its folder. No link is followed; regular files, folders, and
    links that stay inside are made, nothing else. False where the archive is cut off.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in gone:
        _cleared(folder, name)
    import tarfile

    links = []
    try:
        with tarfile.open(fileobj=archive, mode="r|") as tar:
            for m in tar:
                if m.isdir() and (place := _cleared(folder, m.name, keep_folder=True)):
                    place.mkdir(exist_ok=True)
                elif m.isreg() and (place := _cleared(folder, m.name)):
                    source: Any = tar.extractfile(m)
                    try:
                        with place.open("xb") as file:
                            shutil.copyfileobj(source, file)
                    except (OSError, tarfile.ReadError):  # no half of a file
                        place.unlink(missing_ok=True)
                        raise
                    place.chmod(0o755 if m.mode & 0o100 else 0o644)
                    with contextlib.suppress(OverflowError):
                        os.utime(place, (m.mtime, m.mtime))
                elif m.issym():
                    links.append(m)
    except (tarfile.ReadError, OSError) as error:  # OSError: a path that is too long
        if str(error) != "empty file":
            return False
    for m in links:
        target, depth = PurePosixPath(m.linkname).parts, len(PurePosixPath(m.name).parts) - 1
        up = target.count("..")  # all of them first: behind a link, one would lead out
        inside = up <= depth and set(target[:up]) <= {".."} and target[up:] and target[0] != "/"
        if inside and (place := _cleared(folder, m.name)):
            place.symlink_to(m.linkname)
    return True


def _cleared(folder: Path, name: str, keep_folder: bool = False) -> Path | None:
    """The place of a file of the program, with nothing there; None for a place outside."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or parts[0] == "/":
        return None
    place = folder
    for n, part in enumerate(parts, 1):
        place = place / part
        is_folder = place.is_dir() and not place.is_symlink()
        if is_folder and n == len(parts) and not keep_folder:
            shutil.rmtree(place)
        elif not is_folder and os.path.lexists(place):
            place.unlink()
        if n < len(parts):
            place.mkdir(exist_ok=True)
    return place
