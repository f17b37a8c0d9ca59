"""Pictures as a vision model gets them, and the text that RapidOCR reads in them.

A picture is turned upright (EXIF), shrunk for the endpoint and sent as JPEG or PNG. One that would
become too narrow to be read is cut into parts that overlap. Of an animation or a document of
several pages, up to eight frames or pages are taken.
"""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Iterator
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from PIL import Image, ImageOps

from orchestra.kernel.prompts import say
from orchestra.kernel.vocabulary import ConfigError, ToolError
from orchestra.tools import media

MAX_SIDE = 2048  # pixels; endpoints shrink larger pictures themselves
MIN_SIDE = 768  # pixels; a picture that would be narrower if shrunk is cut into parts
MAX_FRAMES = 8
MAX_PARTS = 24  # of all frames together
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


class Picture(NamedTuple):
    """A frame or a page, or a part of one, upright and small."""

    place: str  # as in "2 of 5, part 1 of 3"; "" if there is only one
    image: Image.Image
    kind: str  # "JPEG" or "PNG"
    axis: int  # 0 of parts from left to right, 1 of parts from top to bottom
    overlap: int  # pixels at its left or top that the part before it shows, too


class Line(NamedTuple):
    """A line of text, and where it begins and ends along an axis, in pixels."""

    text: str
    start: float
    end: float

    @property
    def middle(self) -> float:
        return (self.start + self.end) / 2


def pictures(path: Path) -> Iterator[Picture]:
    """At most MAX_FRAMES frames or pages, the long ones in parts. Raises ToolError."""
    with media.opened_picture(path) as file:
        kind = "JPEG" if file.format in LOSSY else "PNG"
        # The second picture of an MPO is a depth map.
        count = 1 if file.format == "MPO" else getattr(file, "n_frames", 1)
        taken = _evenly(count)
        for n in taken:
            file.seek(n)
            place = f"{n + 1} of {count}" if count > 1 else ""
            yield from _parts(
                _upright(file, count > 1), MAX_PARTS // len(taken), place, kind
            )


def _evenly(count: int) -> list[int]:
    """Which of `count` frames are taken: at most MAX_FRAMES, the first and the last among them.

    >>> _evenly(15)
    [0, 2, 4, 6, 8, 10, 12, 14]
    """
    steps = MAX_FRAMES - 1
    return sorted({round(i * (count - 1) / steps) for i in range(MAX_FRAMES)})


def _upright(file: Any, several: bool) -> Any:
    """The current frame, upright, in a mode that can be shrunk."""
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
    ImageOps.exif_transpose(image, in_place=True)
    return image


def _parts(whole: Any, most: int, place: str, kind: str) -> Iterator[Picture]:
    """A picture, or its first `most` parts."""
    axis = int(whole.height >= whole.width)
    spans = _spans(whole.size[axis], whole.size[1 - axis])
    if len(spans) == 1:
        yield Picture(place, _small_rgb(whole), kind, axis, 0)
        return
    before = 0  # where the part before ends
    for n, (start, end) in enumerate(spans[:most], 1):
        box = (0, start, whole.width, end) if axis else (start, 0, end, whole.height)
        image = _small_rgb(whole.crop(box))
        section = "last_part" if n == most < len(spans) else "picture_part"
        part = say("tools/notes", section, part=n, parts=len(spans))
        overlap = (before - start) * image.size[axis] // (end - start)
        yield Picture(
            f"{place}, {part}".strip(", "), image, kind, axis, max(overlap, 0)
        )
        before = end


def _spans(long: int, short: int) -> list[tuple[int, int]]:
    """Where the parts of a picture begin and end along its long side. They are of equal length, and
    share an eighth with the next one.

    >>> _spans(4000, 3000), _spans(5000, 400)
    ([(0, 4000)], [(0, 1838), (1582, 3420), (3164, 5000)])
    """
    if long <= MAX_SIDE or short * MAX_SIDE >= long * MIN_SIDE:
        return [(0, long)]
    longest = max(MAX_SIDE, short)
    overlap = longest // 8
    count = ceil((long - overlap) / (longest - overlap))
    step = ceil((long - overlap) / count)
    return [(n * step, min(n * step + step + overlap, long)) for n in range(count)]


def _small_rgb(image: Any) -> Image.Image:
    """A picture of at most MAX_SIDE pixels, transparent parts white."""
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    image = image.convert("RGBA")
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
    """[place, data URL] of each picture: its pixels, without metadata."""
    return [
        [shown.place, data_url(shown.image, shown.kind)] for shown in pictures(path)
    ]


def data_url(picture: Image.Image, kind: str) -> str:
    """A picture as it is sent to a vision model. `kind`: "JPEG" or "PNG"."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, quality=90)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f"data:image/{kind.lower()};base64,{data}"


def read_pages(path: Path) -> list[list[Any]]:
    """[place, lines of text] of each picture. A line that two parts show is in one of them."""
    pages: list[list[Any]] = []
    last: list[Line] = []
    length = 0  # of the last picture
    for shown in pictures(path):
        lines = _lines(shown.image, shown.axis)
        if shown.overlap:
            seen, lines = _once(last, lines, length - shown.overlap, shown.overlap)
            pages[-1][1] = [line.text for line in seen]
        pages.append([shown.place, [line.text for line in lines]])
        last, length = lines, shown.image.size[shown.axis]
    return pages


def _once(
    seen: list[Line], lines: list[Line], shift: int, overlap: int
) -> tuple[list[Line], list[Line]]:
    """The lines of two parts in a row. A line up to the middle of what both show belongs to the
    first part, one after it to the second. `shift`: how far after the first the second begins.
    """
    seam = overlap / 2
    seen = [line for line in seen if line.middle - shift < seam]

    def is_new(line: Line) -> bool:
        again = (
            line.text == other.text and line.start < other.middle - shift < line.end
            for other in seen
        )
        return line.middle > seam / 2 and not any(again)

    return seen, [line for line in lines if is_new(line)]


def read_text(image: Image.Image) -> list[str]:
    """The lines of text in a picture, top to bottom, by RapidOCR (the extra `local`)."""
    return [line.text for line in _lines(image, axis=1)]


def _lines(image: Image.Image, axis: int) -> list[Line]:
    shortest = max(image.size) // MAX_RATIO
    if min(image.size) < shortest:
        size = (max(image.width, shortest), max(image.height, shortest))
        image = ImageOps.pad(image, size, color="white")
    rgb = numpy.asarray(image)  # (height, width, 3)
    bgr = numpy.ascontiguousarray(rgb[:, :, ::-1])
    with _ocr_lock:
        found = _ocr()(bgr)
    if found.txts is None:
        return []
    along = found.boxes[:, :, axis]  # (lines, corners)
    return list(map(Line, found.txts, along.min(axis=1), along.max(axis=1)))


@cache
def _ocr() -> Any:
    try:
        from rapidocr import RapidOCR
    except ImportError:
        raise ConfigError(media.engine_needs("image", "rapidocr")) from None
    return RapidOCR(params=OCR)
