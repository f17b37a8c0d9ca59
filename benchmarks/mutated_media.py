#!/usr/bin/env python3
"""900 damaged media files through the tools: crashes, memory and time.

    python benchmarks/mutated_media.py [N]     needs ffmpeg and espeak-ng

Ten formats, N mutations of each (90): bit flips, truncations, damaged headers and zeroed blocks.
Each file is read in a process of its own: checked as before a run, then sent as to an endpoint.
Only ToolError and ConfigError may come of it. Memory is the peak over that of the undamaged file,
less the size of the file. Exits with 1 where a mark is missed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import common  # noqa: F401  the program on the path

from orchestra.kernel.vocabulary import ConfigError, ToolError
from orchestra.tools import frames, media, pictures, sound

MAX_MIB, MAX_S = 60, 30
STILLS = "png", "jpeg", "webp", "gif", "tiff"
FILMS, SOUNDS = ("mp4", "webm"), ("wav", "mp3", "flac")
OUTCOMES = ("read", "refused", "crash", "killed")


def make(folder: Path) -> dict[str, Path]:
    """One good file of each format, with speech, letters and motion in it."""

    def ffmpeg(*arguments: str) -> None:
        subprocess.run(
            ["ffmpeg", "-v", "error", "-y", *arguments], check=True, cwd=folder
        )

    text = "Nine fifteen from platform four. " * 3
    subprocess.run(["espeak-ng", "-w", "said.wav", text], check=True, cwd=folder)
    seen = ("-f", "lavfi", "-i", "testsrc=size=640x360:rate=10:duration=6")
    made = {}
    for suffix in (*STILLS, *FILMS, *SOUNDS):
        sound = () if suffix in STILLS else ("-i", "said.wav")
        pictures = () if suffix in SOUNDS else seen
        still = (
            ()
            if suffix in ("gif", *FILMS, *SOUNDS)
            else ("-frames:v", "1", "-update", "1")
        )
        fast = ("-deadline", "realtime") if suffix == "webm" else ()
        name = f"good.{suffix}"
        ffmpeg(*pictures, *sound, *still, *fast, name)
        made[suffix] = folder / name
    return made


def mutated(data: bytes, chance: random.Random) -> tuple[str, bytes]:
    """(kind of damage, bytes)."""
    kind = chance.choice(["bit flips", "truncation", "header", "zeroed block"])
    damaged, size = bytearray(data), len(data)
    if kind == "truncation":
        return kind, data[: chance.randrange(size)]
    if kind == "zeroed block":
        start, length = chance.randrange(size), chance.choice([16, 512, 4096])
        damaged[start : start + length] = bytes(min(length, size - start))
    elif kind == "header":
        for _ in range(chance.choice([1, 4, 16])):
            damaged[chance.randrange(min(size, 600))] = chance.randrange(256)
    else:
        for _ in range(chance.choice([1, 10, 100])):
            damaged[chance.randrange(size)] ^= 1 << chance.randrange(8)
    return kind, bytes(damaged)


def read(path: Path, kind: str) -> bool:
    """Whether all of a file can be read. The tools also get files that the check refuses."""
    reads: list[Any] = [lambda: media.check([path])]
    if kind == "image":
        reads.append(lambda: list(pictures.data_urls(path)))
    if kind == "video":
        reads.append(
            lambda: [pictures.data_url(p, "JPEG") for _, p in frames.frames(path, 8)]
        )
    if kind != "image":
        reads.append(lambda: [sound.as_wav(s) for _, s in sound.parts(path, 120)])
    good = True
    for each in reads:
        try:
            each()
        except (ToolError, ConfigError):
            good = False
    return good


def measure(path: Path, kind: str) -> tuple[str, float, float]:
    """(outcome, peak MiB, seconds) of reading in a process of its own."""
    started = time.perf_counter()
    if not (child := os.fork()):
        signal.alarm(MAX_S)
        try:
            os._exit(0 if read(path, kind) else 1)
        except BaseException:
            traceback.print_exc()
            os._exit(2)
    _, status, usage = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    outcome = OUTCOMES[code] if code >= 0 else "killed"
    return outcome, usage.ru_maxrss / 1024, time.perf_counter() - started


def row(suffix: str, good: Path, count: int) -> bool:
    """Print the row of a format. Returns whether it meets the marks."""
    kind = "image" if suffix in STILLS else "video" if suffix in FILMS else "audio"
    data, chance = good.read_bytes(), random.Random(suffix)
    outcome, base_mib, _ = measure(good, kind)
    assert outcome == "read", (good, outcome)
    outcomes, most_mib, most_s = Counter[str](), 0.0, 0.0
    for n in range(count):
        damage, changed = mutated(data, chance)
        path = good.with_name(f"{suffix}-{n}.{suffix}")
        path.write_bytes(changed)
        outcome, peak_mib, took_s = measure(path, kind)
        more_mib = peak_mib - base_mib - len(changed) / (1 << 20)
        if outcome in ("crash", "killed") or more_mib > MAX_MIB:
            print(
                f"  {path.name} ({damage}): {outcome}, {more_mib:.0f} MiB, {took_s:.1f} s"
            )
        outcomes[outcome] += 1
        most_mib, most_s = max(most_mib, more_mib), max(most_s, took_s)
    counts = " ".join(f"{outcomes[o]:>8}" for o in OUTCOMES)
    print(f"{suffix:6} {counts} {most_mib:>11.0f} MiB {most_s:>8.1f} s", flush=True)
    return not outcomes["crash"] and not outcomes["killed"] and most_mib <= MAX_MIB


def main(count: int) -> None:
    import av
    import numpy  # noqa: F401  its memory must not count for the first file
    import PIL.Image

    PIL.Image.init()
    warnings.simplefilter("ignore")
    av.logging.set_level(av.logging.PANIC)
    print(
        f"{'':6} {' '.join(f'{o:>8}' for o in OUTCOMES)} {'memory over':>15} {'longest':>10}"
    )
    with tempfile.TemporaryDirectory() as folder:
        kept = [row(suffix, good, count) for suffix, good in make(Path(folder)).items()]
    print(f"marks: no crash, {MAX_MIB} MiB, {MAX_S} s")
    sys.exit(not all(kept))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 90)
