"""Real media, made for the tests: speech by espeak-ng, drawn text, video of both."""

from __future__ import annotations

import shutil
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy
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


def toned(
    path: Path, codec: str, rate: int = 48000, layout: str = "mono", seconds: float = 1.0,
    offset_s: float = 0.0,
) -> Path:  # fmt: skip
    """A tone in all channels; its clock starts at `offset_s`."""
    with av.open(str(path), "w") as target:
        stream: Any = target.add_stream(codec, rate=rate, layout=layout)
        tone = (numpy.sin(numpy.arange(int(rate * seconds)) / 20) * 9000).astype(numpy.int16)
        data = numpy.repeat(tone, stream.codec_context.layout.nb_channels)[None, :]
        frame = av.AudioFrame.from_ndarray(data, format="s16", layout=layout)
        frame.rate, size = rate, stream.codec_context.frame_size or 1024
        resampler = av.AudioResampler(stream.codec_context.format, layout, rate, size)
        at = int(offset_s * rate)
        for piece in (*resampler.resample(frame), *resampler.resample(None)):
            piece.pts, piece.time_base, at = at, Fraction(1, rate), at + piece.samples
            target.mux(stream.encode(piece))
        target.mux(stream.encode(None))
    return path


def scenes(
    path: Path, *lengths_s: float, fps: int = 10, codec: str = "libx264",
    at_s: list[float] | None = None, one_key: bool = False, start_s: float = 0.0,
) -> Path:  # fmt: skip
    """One scene after another, each of another colour, of these lengths; `at_s`: when each frame is
    shown, if not evenly; `one_key`: no frame but the first is a key frame; `start_s`: of the clock.
    """
    colours = ("black", "white", "navy", "yellow", "maroon", "pink")
    with av.open(str(path), "w", options={"avoid_negative_ts": "disabled"}) as target:
        options = {"g": "1000", "sc_threshold": "0"} if one_key else {}
        video: Any = target.add_stream(codec, rate=fps, options=options)
        video.width, video.height, video.pix_fmt = 320, 180, "yuv420p"
        shown = [c for c, s in zip(colours, lengths_s, strict=False) for _ in range(round(s * fps))]
        for n, colour in enumerate(shown):
            frame = av.VideoFrame.from_image(Image.new("RGB", (320, 180), colour))
            frame.time_base = Fraction(1, fps)
            frame.pts = round(((at_s[n] if at_s else n / fps) + start_s) * fps)
            target.mux(video.encode(frame))
        target.mux(video.encode(None))
    return path


def turned(path: Path, a: int = 0, b: int = 1, c: int = -1, d: int = 0) -> Path:
    """An MP4 whose header says how it is shown: as it is, a quarter turned, clockwise."""
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 44  # version 0: 4 of the name, 40 to the matrix
    numbers = a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30
    data[at : at + 36] = b"".join(n.to_bytes(4, "big", signed=True) for n in numbers)
    path.write_bytes(data)
    return path


def empty_film(path: Path, side: int) -> Path:
    """One black frame, a PNG, of a square video."""
    with av.open(str(path), "w") as target:
        video: Any = target.add_stream("png", rate=1)
        video.width, video.height, video.pix_fmt = side, side, "rgb24"
        frame = av.VideoFrame(side, side, "rgb24")
        frame.planes[0].update(bytes(frame.planes[0].buffer_size))
        target.mux(video.encode(frame))
        target.mux(video.encode(None))
    return path
