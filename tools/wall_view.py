"""What of this machine's files a walled program sees: programs, libraries and this Python, no
settings. Where the project, the run folder or the home lie in these, as /usr/src/app does in a
container, they are covered, and the parts of this Python that lie in them shown again.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/ld.so.cache",
)
PROGRAMS = ("/usr/bin", "/usr/sbin", "/usr/lib")


def view(folder: Path) -> list[tuple[Path, bool]]:
    """(path, whether it is covered) of all that is mounted for a program whose own folder is
    work/<name> of a run folder; what lies in another comes after it.
    """
    python = _python()
    usual = [p for p in python if not p.is_relative_to("/usr")]
    shown = [p for p in (*map(Path, SYSTEM), *usual) if p.exists()]
    covers: list[Path] = []
    own = {p.resolve() for p in (PROJECT, folder.parent.parent, Path(os.environ.get("HOME", "/")))}
    for place in sorted(own):  # what lies in another comes after it
        seen = place.is_dir() and any(_lies_in(place, p.resolve()) for p in shown)
        inside = any(_lies_in(place, cover) for cover in covers)
        if seen and not inside and not _needed(place, python):
            covers.append(place)
    again = [p for p in python if p.exists() and any(_lies_in(p, c) for c in covers)]
    rows = dict.fromkeys((*shown, *again), False) | dict.fromkeys(covers, True)
    return sorted(rows.items(), key=lambda row: len(row[0].parts))


def _python() -> list[Path]:
    prefixes = dict.fromkeys((sys.base_prefix, sys.prefix))
    return [Path(p) / part for p in prefixes for part in ("bin", "lib", "lib64", "pyvenv.cfg")]


def _lies_in(path: Path, folder: Path) -> bool:
    return path != folder and path.is_relative_to(folder)


def _needed(place: Path, python: Sequence[Path]) -> bool:
    """Whether it cannot be covered: programs, or packages of this Python, would be gone."""
    again = [p for p in python if _lies_in(p, place)]
    kinds = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    packages = [*map(sysconfig.get_path, kinds), *site.getsitepackages()]
    needed = [Path(p) for p in (*PROGRAMS, *packages)]
    return any(
        n.is_relative_to(place) and not any(n.is_relative_to(p) for p in again) for n in needed
    )
