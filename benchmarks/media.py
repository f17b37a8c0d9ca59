#!/usr/bin/env python3
"""Long and large media, read by the local engines: how fast, and in how much memory over the start.

    WHISPER_MODEL=DIR python benchmarks/media.py     needs pip install -e '.[local]' and espeak-ng

Each row runs in a process of its own, on media made for it.
The engine has read a small file before the clock and the memory start.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

from common import in_new_process

SPEECH = "The committee met on the ninth of March and spoke about water, bread and the price of salt. "


def speak(path: Path, minutes: float) -> None:
    once = path.with_suffix(".once.wav")
    subprocess.run(["espeak-ng", "-s", "150", "-w", str(once), SPEECH * 4], check=True)
    import wave

    with wave.open(str(once)) as source, wave.open(str(path), "wb") as target:
        target.setparams(source.getparams())
        sound, length_s = (
            source.readframes(10**9),
            source.getnframes() / source.getframerate(),
        )
        for _ in range(int(minutes * 60 / length_s) + 1):
            target.writeframes(sound)


def film(path: Path, seconds: int, fps: int) -> None:
    import av
    from PIL import Image, ImageDraw, ImageFont

    with av.open(str(path), "w") as target:
        stream = target.add_stream("libx264", rate=fps, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 1280, 720, "yuv420p"
        font = ImageFont.load_default(90)
        for n in range(seconds * fps):
            picture = Image.new("RGB", (1280, 720), "white")
            text = f"Scene {n // fps}"
            ImageDraw.Draw(picture).text((200, 300), text, fill="black", font=font)
            frame = av.VideoFrame.from_image(picture)
            frame.pts, frame.time_base = n, Fraction(1, fps)
            target.mux(stream.encode(frame))
        target.mux(stream.encode(None))


def transcript(folder: Path) -> Callable[[], Any]:
    from orchestra.tools import hearing

    path = folder / "long.wav"
    speak(path, 10)
    speak(folder / "short.wav", 0.1)
    hearing.by_whisper(folder / "short.wav", "")  # the engine is there
    return lambda: hearing.by_whisper(path, "")


def decoding(folder: Path) -> Callable[[], Any]:
    from orchestra.tools import sound

    path = folder / "long.wav"
    speak(path, 120)
    return lambda: sum(len(samples) for _, samples in sound.parts(path, 120))


def twenty_frames(folder: Path) -> Callable[[], Any]:
    from orchestra.tools import frames

    path = folder / "film.mp4"
    film(path, 600, 2)
    frames.read_frames(path, 1)
    return lambda: frames.read_frames(path, 20)


def long_video(folder: Path) -> Callable[[], Any]:
    from orchestra.tools import frames, pictures

    path = folder / "film.mp4"
    film(path, 7200, 1)
    return lambda: [
        pictures.data_url(picture, "JPEG") for _, picture in frames.frames(path, 16)
    ]


def large_picture(folder: Path) -> Callable[[], Any]:
    from orchestra.tools import pictures

    path = folder / "large.jpg"
    make = "from PIL import Image; Image.new('RGB', (10000, 10000), 'teal').save('large.jpg')"
    subprocess.run([sys.executable, "-c", make], check=True, cwd=folder)
    return lambda: list(pictures.data_urls(path))


def dense_page(folder: Path) -> Callable[[], Any]:
    from PIL import Image, ImageDraw

    from orchestra.tools import pictures

    page = Image.new("RGB", (2048, 2048), "white")
    for n in range(60):
        text = f"Line {n}: the price of {n * n} pounds of salt at the market of town {n}, in crowns"
        ImageDraw.Draw(page).text((20, 10 + n * 34), text, fill="black", font_size=28)
    pictures.read_text(Image.new("RGB", (1600, 1600), "white"))  # the engine is there
    return lambda: pictures.read_text(page)


ROWS: dict[str, tuple[Callable[[Path], Callable[[], Any]], str]] = {  # with the mark
    "transcript of 10 minutes": (transcript, "faster than 600 s, 300 MiB"),
    "decoding 2 hours of sound": (decoding, "300 MiB"),
    "20 frames of a 10-minute video": (twenty_frames, "15 s"),
    "16 frames of a 2-hour video": (long_video, "300 MiB"),
    "a 100-megapixel JPEG": (large_picture, "300 MiB"),
    "a dense page of 2048 x 2048": (dense_page, "400 MiB"),
}


def measure(name: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        run = ROWS[name][0](Path(folder))
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before, started, busy = peak_mib(), time.perf_counter(), time.process_time()
        run()
        took = {
            "wall_s": time.perf_counter() - started,
            "cpu_s": time.process_time() - busy,
        }
        return {**took, "more_mib": peak_mib() - before}


def peak_mib() -> float:
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) / 1024 for row in rows if row.startswith("VmHWM"))


def main() -> None:
    print(f"{'':32} {'wall':>8} {'CPU':>9} {'memory over start':>18}   mark")
    for name, (_, mark) in ROWS.items():
        row = in_new_process(__file__, name)
        times = f"{row['wall_s']:>6.1f} s {row['cpu_s']:>7.1f} s"
        print(f"{name:32} {times} {row['more_mib']:>14.0f} MiB   {mark}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
    else:
        main()
