"""Media made for the tests: drawn text, tones, speech, video of all of them."""

import random
import re
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy
from PIL import Image, ImageDraw, ImageFont

from orchestra.kernel.vocabulary import ToolError
from tests.program import SPEECH

RATE = 16000  # of decoded sound


def drawn(text: str, size: tuple[int, int] = (640, 360)) -> Image.Image:
    picture = Image.new("RGB", size, "white")
    font = ImageFont.load_default(max(20, size[1] // 6))
    ImageDraw.Draw(picture).text((size[0] // 12, size[1] // 3), text, fill="black", font=font)
    return picture


def saved(path: Path, picture: Image.Image | str, *more: Image.Image, **how: Any) -> Path:
    """A picture, or one with this text, as a file; with `more`, of several pages or frames."""
    pages = {"save_all": True, "append_images": more} if more else {}
    (drawn(picture) if isinstance(picture, str) else picture).save(path, **pages, **how)
    return path


def tone(seconds: float, level: int = 8000, rate: int = RATE) -> numpy.ndarray:
    return (numpy.sin(numpy.arange(int(rate * seconds)) / 15) * level).astype(numpy.int16)


def toned(path: Path, codec: str, rate=48000, layout="mono", seconds=1.0, offset_s=0.0) -> Path:
    """A tone in all channels; its clock starts at `offset_s`."""
    with av.open(str(path), "w") as target:
        stream: Any = target.add_stream(codec, rate=rate, layout=layout)
        data = numpy.repeat(tone(seconds, 9000, rate), stream.layout.nb_channels)[None, :]
        frame = av.AudioFrame.from_ndarray(data, format="s16", layout=layout)
        frame.rate = rate
        _encode(target, stream, [frame], int(offset_s * rate))
    return path


def _encode(target: Any, stream: Any, frames: Any, at: int = 0) -> None:
    form, rate = stream.codec_context, stream.rate
    resampler = av.AudioResampler(form.format, form.layout, rate, form.frame_size or 1024)
    for frame in (*frames, None):
        for piece in resampler.resample(frame):
            piece.pts, piece.time_base, at = at, Fraction(1, rate), at + piece.samples
            target.mux(stream.encode(piece))
    target.mux(stream.encode(None))


def filmed(path: Path, pictures: list[Image.Image], codec="libx264", fps=5, sound="", at_s=(), sound_s=0.0, **options: str) -> Path:  # fmt: skip
    """A frame of each picture, at the times `at_s` if given. `sound`: the codec of the speech, which
    starts at `sound_s`; `options`: of the encoder.
    """
    with av.open(str(path), "w", options={"avoid_negative_ts": "disabled"}) as target:
        video: Any = target.add_stream(codec, rate=fps, options=options)
        video.width, video.height = pictures[0].size
        video.pix_fmt = "rgb24" if codec in ("png", "qtrle") else "yuv420p"
        audio: Any = target.add_stream(sound, rate=48000) if sound else None
        for n, picture in enumerate(pictures):
            frame = av.VideoFrame.from_image(picture)
            frame.time_base = Fraction(1, fps)
            frame.pts = round((at_s[n] if at_s else n / fps) * fps)
            target.mux(video.encode(frame))
        target.mux(video.encode(None))
        if audio:
            with av.open(str(SPEECH)) as source:
                _encode(target, audio, source.decode(audio=0), round(sound_s * 48000))
    return path


def film(path: Path, codec: str = "libx264", sound: str = "") -> Path:
    """Two seconds of "Gate 1", two of "Gate 2"."""
    gates = [drawn("Gate 1", (320, 180)), drawn("Gate 2", (320, 180))]
    pictures = [gates[n // 10] for n in range(20)]
    fast = {"deadline": "realtime", "cpu-used": "8"} if codec == "libvpx" else {}
    return filmed(path, pictures, codec, sound=sound, **fast)


def scenes(path: Path, *lengths_s: float, fps: int = 10, **how: Any) -> Path:
    """One scene after another, each of another colour, of these lengths."""
    shown: list[Image.Image] = []
    for colour, length_s in zip(("black", "white", "navy", "yellow", "maroon"), lengths_s):  # noqa: B905
        shown += [Image.new("RGB", (128, 72), colour)] * round(length_s * fps)
    return filmed(path, shown, fps=fps, **how)


def read_damaged(path: Path, times: int, *reads: Callable[[Path], Iterable[object]]) -> set[bool]:
    """Whether anything was read of the file, in `times` variants with random bytes changed (of a
    fixed seed). Every exception but ToolError is raised.
    """
    whole, chance, outcomes = path.read_bytes(), random.Random(times), set()
    for _ in range(times):
        data = bytearray(whole)
        for _ in range(chance.choice([1, 3, 30])):
            start = min(len(data), chance.choice([64, 1000]))
            data[chance.randrange(start)] = chance.randrange(256)
        path.write_bytes(data[: chance.randrange(len(data))] if chance.random() < 0.3 else data)
        for read in reads:
            try:
                outcomes.add(bool(list(read(path))))
            except ToolError as error:
                assert re.search("cannot be read|too large|has no ", str(error))
                outcomes.add(False)
    return outcomes
