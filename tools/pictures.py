"""Pictures as a vision model gets them, and the text that RapidOCR reads in them.

A picture is turned upright (EXIF), shrunk for the endpoint and sent as JPEG or PNG. Of an animation
or a document of several pages, up to eight frames or pages are taken.
"""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy
from PIL import Image, ImageOps

from orchestra.kernel.prompts import say
from orchestra.kernel.vocabulary import ConfigError, ToolError
from orchestra.tools import media

MAX_SIDE = 2048  # pixels; endpoints shrink larger pictures themselves
MAX_FRAMES = 8
LOSSY = ("JPEG", "MPO", "WEBP", "HEIF", "AVIF")
OCR = {
    "Global.log_level": "error",
    # Pictures are shrunk, never enlarged, to find the lines of text: the memory for it grows with
    # the pixels.
    "Det.limit_type": "max",
    "Det.limit_side_len": 1536,
    # Lines are read one at a time: in a batch, all are as wide as the widest.
    "Rec.rec_batch_num": 1,
}
MAX_RATIO = 4  # of the sides of a picture; RapidOCR refuses very narrow ones
_ocr_lock = threading.Lock()


def pictures(path: Path) -> Iterator[tuple[str, Image.Image, str]]:
    """(place, picture, "JPEG" or "PNG") of at most MAX_FRAMES frames or pages, upright and small.
    The place is as in "2 of 5", or "" if there is only one. Raises ToolError.
    """
    with media.opened_picture(path) as file:
        kind = "JPEG" if file.format in LOSSY else "PNG"
        # The second picture of an MPO is a depth map.
        count = 1 if file.format == "MPO" else getattr(file, "n_frames", 1)
        several = count > 1
        for n in _evenly(count):
            file.seek(n)
            place = f"{n + 1} of {count}" if several else ""
            yield place, _small_rgb(file, several), kind


def _evenly(count: int) -> list[int]:
    """Which of `count` frames are taken: at most MAX_FRAMES, the first and the last among them.

    >>> _evenly(15)
    [0, 2, 4, 6, 8, 10, 12, 14]
    """
    steps = MAX_FRAMES - 1
    return sorted({round(i * (count - 1) / steps) for i in range(MAX_FRAMES)})


def _small_rgb(file: Any, several: bool) -> Image.Image:
    """The current frame, upright and small, transparent parts white."""
    file.draft("RGB", (MAX_SIDE, MAX_SIDE))  # decodes a JPEG no larger than needed
    if file.width * file.height > media.MAX_PIXELS:
        size = f"{file.width} x {file.height}"
        limit_mib = media.MAX_PIXELS * 4 >> 20
        raise ToolError(
            say("tools/notes", "too_many_pixels", size=size, limit=limit_mib)
        )
    file.load()
    image = file.copy() if several else file
    if image.mode[0] in "IF":
        image = _as_grey(image)
    elif image.mode in ("1", "P"):  # shrinks to grey: thin lines stay visible
        image = image.convert("RGBA")
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    image = ImageOps.exif_transpose(image).convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image)
    return white


def _as_grey(image: Any) -> Any:
    """A picture of integers or floats with the smallest value black, the largest white. Those of 16
    bits keep their whole range.
    """
    least, greatest = (0, 255 << 8)
    if not image.mode.startswith("I;16"):
        least, greatest = image.getextrema()
    scale = 255 / ((greatest - least) or 1)
    scaled = image.convert("F").point(lambda value: value * scale - least * scale)
    return scaled.convert("L")


def data_urls(path: Path) -> list[list[str]]:
    """[place, data URL] of each frame: its pixels, without metadata."""
    return [[place, data_url(picture, kind)] for place, picture, kind in pictures(path)]


def data_url(picture: Image.Image, kind: str) -> str:
    """A picture as it is sent to a vision model. `kind`: "JPEG" or "PNG"."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, quality=90)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f"data:image/{kind.lower()};base64,{data}"


def read_pages(path: Path) -> list[list[Any]]:
    """[place, lines of text] of each frame."""
    return [[place, read_text(picture)] for place, picture, _ in pictures(path)]


def read_text(image: Image.Image) -> list[str]:
    """The lines of text in a picture, top to bottom, by RapidOCR (the extra `local`)."""
    shortest = max(image.size) // MAX_RATIO
    if min(image.size) < shortest:
        size = (max(image.width, shortest), max(image.height, shortest))
        image = ImageOps.pad(image, size, color="white")
    rgb = numpy.asarray(image)  # (height, width, 3)
    bgr = numpy.ascontiguousarray(rgb[:, :, ::-1])
    with _ocr_lock:
        lines = _ocr()(bgr).txts
    return [] if lines is None else [str(line) for line in lines]


@cache
def _ocr() -> Any:
    try:
        from rapidocr import RapidOCR
    except ImportError:
        raise ConfigError(media.engine_needs("image", "rapidocr")) from None
    return RapidOCR(params=OCR)
