"""ImageAnalysisAction: a vision model looks, or RapidOCR reads, behind one function.

A picture is turned upright (EXIF), made small enough for an endpoint, and sent under the type that
it is, whatever its name says. Of an animation or a document of several pages, up to eight.
"""

from __future__ import annotations

import base64
import contextlib
import io
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runtime.prompts import fenced, render, say
from tools import Environment, ImageFile, ToolError, pixels, reading, tool
from tools.media import DAMAGED, picture_formats

if TYPE_CHECKING:
    from PIL import Image

MAX_FRAMES = 8
MOST_PAGES = 2000  # that are walked through to come to those
OWN_BYTES = 1 << 20  # a file of less is sent as it is, whatever it holds beside its pixels
QUICK = {  # RapidOCR for frames, read in parallel: a second thread in one costs more than it helps
    "Det.limit_type": "max",
    "Det.limit_side_len": 960,  # pixels
    "Rec.rec_batch_num": 1,  # lines at a time: six as wide as the widest take more time and memory
    "EngineConfig.onnxruntime.intra_op_num_threads": 1,
    "EngineConfig.onnxruntime.enable_cpu_mem_arena": True,  # keeps its memory from frame to frame
}
LARGE_SIDE = 1536  # pixels
LARGE = {  # RapidOCR for pages: the detector's memory grows with the pixels that it looks at
    "Det.limit_type": "max",
    "Det.limit_side_len": LARGE_SIDE,  # the lines found are read from the picture itself
    "Rec.rec_batch_num": 1,
}
OCR: dict[str, dict[str, Any]] = {"frame": QUICK, "page": LARGE, "picture": {}}
FRAMES_AT_ONCE = 2  # of all videos that are being read; each takes up to 150 MiB
MAX_RATIO = 4  # of the sides of a picture that is read; a longer one is padded
AS_IT_IS = ("PNG", "JPEG", "WEBP", "GIF")  # what endpoints take
LOSSY = ("JPEG", "MPO", "WEBP", "HEIF", "AVIF")
_ocr_turn, _making = threading.Lock(), threading.Lock()
_frame_turn = threading.BoundedSemaphore(FRAMES_AT_ONCE)


class Picture(NamedTuple):
    """One frame or page. `place` says which, as in "2 of 5"; "" where there is one only."""

    place: str
    image: Image.Image  # RGB


@tool("ImageAnalysisAction", "img")
def image_analysis(env: Environment, query: str, image_path: ImageFile) -> str:
    """Look at one picture of the task: the things, persons and places it shows, and all text in it.

    query: what your task wants to know about the picture, in the words of the task
    image_path: the file name of the picture, exactly as the task lists it
    """
    file = env.media(image_path, "image")
    engine = env.pool.engine("image")
    key = {"sha256": file.sha256}
    if engine.engine == "local":
        pages = env.local(
            "ocr", key, lambda: [[p.place, read_text(p.image)] for p in pictures(file.path)]
        )
        texts = ["\n".join([*([f"({place})"] if place else []), *lines]) for place, lines in pages]
        return say("notes", "ocr", name=file.name, lines=fenced("\n\n".join(texts).strip() or "-"))
    sent = env.local("picture", key, lambda: [[p, u] for p, u in data_urls(file.path)])
    content: list[dict[str, Any]] = [
        {"type": "text", "text": render("tools/image.md", query=query)}
    ]
    for place, url in sent:
        content += [{"type": "text", "text": place}] if place else []
        content += [{"type": "image_url", "image_url": {"url": url}}]
    backend = env.pool[engine.backend]
    return reading.quoted(env.chat(backend, [{"role": "user", "content": content}], env.purse).text)


def pictures(path: Path) -> Iterator[Picture]:
    """The frames of a picture file, upright and small. Raises ToolError: it cannot be read."""
    with _opened(path) as file:
        count = _counted(file)
        total = f"more than {MOST_PAGES}" if count > MOST_PAGES else str(count)
        for n in evenly(min(count, MOST_PAGES), MAX_FRAMES):
            if count > 1:
                file.seek(n)
            place = f"{n + 1} of {total}" if count > 1 else ""
            yield Picture(place, pixels.small(file, count > 1))


def _counted(file: Image.Image) -> int:
    """The frames or pages. Of a GIF or TIFF, which are walked through to be counted, MOST_PAGES + 1
    at most.
    """
    if file.format not in ("GIF", "TIFF"):
        return getattr(file, "n_frames", 1)
    with contextlib.suppress(EOFError):
        for n in range(1, MOST_PAGES + 1):
            file.seek(n)
    count = file.tell() + 1
    file.seek(0)
    return count


def data_urls(path: Path) -> Iterator[tuple[str, str]]:
    """(place, data URL) of each frame: the file's own bytes where an endpoint takes them."""
    from PIL import Image

    with _opened(path) as file:
        source = file.format or ""
        plain = (
            source in AS_IT_IS
            and not getattr(file, "is_animated", False)
            and max(file.size) <= pixels.MAX_SIDE
            and path.stat().st_size <= max(file.width * file.height * 3, OWN_BYTES)
            and file.getexif().get(pixels.ORIENTATION, 1) == 1
        )
    for place, image in pictures(path):  # also shows that the file can be read to its end
        kind = source if plain else "JPEG" if source in LOSSY else "PNG"
        data = path.read_bytes() if plain else encoded(image, kind)
        yield place, f"data:{Image.MIME[kind]};base64,{base64.b64encode(data).decode()}"


def encoded(image: Image.Image, kind: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, quality=90)
    return buffer.getvalue()


def evenly(count: int, most: int) -> list[int]:
    """At most `most` of 0..count-1, the first and the last among them.

    >>> evenly(100, 4)
    [0, 33, 66, 99]
    """
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """The picture file; whatever shows it to be damaged while it is open is a ToolError."""
    from PIL import Image

    try:
        with Image.open(path, formats=picture_formats()) as file:
            yield file
    except (*DAMAGED, Image.DecompressionBombError) as error:
        reason = str(error).replace(str(path), path.name)
        raise ToolError(say("notes", "unreadable", name=path.name, reason=reason)) from None


def read_text(image: Image.Image, quick: bool = False) -> list[str]:
    """The lines of text in a picture, top to bottom, by RapidOCR (the extra `local`).
    `quick`: large letters only, as in a frame of a video; may be called in parallel.
    """
    import numpy
    from PIL import ImageOps

    least = max(image.size) // MAX_RATIO  # the engine enlarges the short side, whatever the other
    if min(image.size) < least:
        size = max(image.width, least), max(image.height, least)
        image = ImageOps.pad(image, size, color="white")
    array = numpy.ascontiguousarray(numpy.asarray(image)[:, :, ::-1])  # (height, width, BGR)
    large = image.width * image.height > LARGE_SIDE**2
    with _frame_turn if quick else _ocr_turn:
        result = _engine("frame" if quick else "page" if large else "picture")(array)
    return [str(line) for line in result.txts or ()]


def _engine(kind: str) -> Any:
    with _making:
        return _ocr(kind)


@cache
def _ocr(kind: str) -> Any:
    try:
        from rapidocr import RapidOCR
    except ImportError:
        raise ToolError(say("notes", "no_engine", what="RapidOCR")) from None
    return RapidOCR(params={"Global.log_level": "error", **OCR[kind]})
