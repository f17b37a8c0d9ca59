"""Real media, made for the tests: speech by espeak-ng, drawn text, video of both."""

from __future__ import annotations

import shutil
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest
from PIL import Image, ImageDraw, ImageFont

SPEECH = "The blue train leaves from platform seven."


def speech(path: Path, text: str = SPEECH) -> Path:
    if not shutil.which("espeak-ng"):
        pytest.skip("espeak-ng is not installed")
    subprocess.run(["espeak-ng", "-s", "140", "-w", str(path), text], check=True)
    return path


def drawn(text: str, size: tuple[int, int] = (640, 360), mode: str = "RGB") -> Image.Image:
    picture = Image.new("RGB", size, "white")
    font = ImageFont.load_default(max(20, size[1] // 6))
    ImageDraw.Draw(picture).text((size[0] // 12, size[1] // 3), text, fill="black", font=font)
    return picture.convert(mode)


def film(
    path: Path, codec: str, sound: str = "", texts: tuple[str, ...] = ("Gate 1", "Gate 2")
) -> Path:
    """Two seconds of each text; with `sound`, a codec, speech beside it."""
    with av.open(str(path), "w") as target:
        video: Any = target.add_stream(codec, rate=5)
        video.width, video.height, video.pix_fmt = 640, 360, "yuv420p"
        audio: Any = target.add_stream(sound, rate=48000) if sound else None
        for n in range(len(texts) * 10):
            frame = av.VideoFrame.from_image(drawn(texts[n // 10]))
            frame.pts, frame.time_base = n, Fraction(1, 5)
            target.mux(video.encode(frame))
        target.mux(video.encode(None))
        if audio:
            resampler = av.AudioResampler(format=audio.format, layout=audio.layout, rate=48000)
            with av.open(str(speech(path.with_suffix(".wav")))) as source:
                for block in source.decode(audio=0):
                    for piece in resampler.resample(block):
                        target.mux(audio.encode(piece))
            target.mux(audio.encode(None))
    return path


def truncated(path: Path, share: float = 0.5) -> Path:
    data = path.read_bytes()
    short = path.with_stem(f"{path.stem}_short")
    short.write_bytes(data[: int(len(data) * share)])
    return short


def scenes(path: Path, *lengths_s: float, fps: int = 10, codec: str = "libx264") -> Path:
    """One scene after another, each of another colour, of these lengths."""
    colours = ("black", "white", "navy", "yellow", "maroon", "pink")
    with av.open(str(path), "w") as target:
        video: Any = target.add_stream(codec, rate=fps)
        video.width, video.height, video.pix_fmt = 320, 180, "yuv420p"
        shown = [c for c, s in zip(colours, lengths_s, strict=False) for _ in range(round(s * fps))]
        for n, colour in enumerate(shown):
            frame = av.VideoFrame.from_image(Image.new("RGB", (320, 180), colour))
            frame.pts, frame.time_base = n, Fraction(1, fps)
            target.mux(video.encode(frame))
        target.mux(video.encode(None))
    return path


def turned(path: Path) -> Path:
    """An MP4 whose header says that it is shown a quarter turned, clockwise."""
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 44  # version 0: 4 of the name, 40 to the matrix
    numbers = 0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30
    data[at : at + 36] = b"".join(n.to_bytes(4, "big", signed=True) for n in numbers)
    path.write_bytes(data)
    return path
