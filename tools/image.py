"""ImageAnalysisAction: a vision model describes pictures, or RapidOCR reads the text in them.

A picture is turned upright (EXIF), shrunk for the endpoint and sent as JPEG or PNG; of an animation
or a document, up to eight frames or pages.
"""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy
from PIL import Image, ImageOps

from orchestra.runtime.pool import Engine
from orchestra.runtime.prompts import fenced, render, say
from orchestra.toolkit import Environment, ImageFile, ToolError, tool
from orchestra.tools import media, reading

MAX_SIDE = 2048  # pixels; endpoints shrink larger pictures themselves
MAX_FRAMES = 8
LOSSY = ("JPEG", "MPO", "WEBP", "HEIF", "AVIF")
OCR = {
    "Global.log_level": "error",
    "Det.limit_type": "max",  # pictures are shrunk, never enlarged, to find the lines of text:
    "Det.limit_side_len": 1536,  # the memory for it grows with the pixels
    "Rec.rec_batch_num": 1,  # lines read at a time; in a batch, all are as wide as the widest
}
MAX_RATIO = 4  # of the sides of a picture; RapidOCR refuses very narrow ones
_ocr_lock = threading.Lock()


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
        shape = list[tuple[str, list[str]]]
        pages = env.local("ocr", key, lambda: read_pages(file.path), shape)
        texts = [
            "\n".join([*([f"({place})"] if place else []), *lines])
            for place, lines in pages
        ]
        return say(
            "notes",
            "ocr",
            name=file.name,
            lines=fenced("\n\n".join(texts).strip() or "-"),
        )
    sent = env.local(
        "picture", key, lambda: data_urls(file.path), list[tuple[str, str]]
    )
    return ask(env, engine, render("tools/image.md", query=query), sent)


def ask(
    env: Environment, engine: Engine, request: str, shown: Iterable[tuple[str, str]]
) -> str:
    """The answer of a vision model, quoted. `shown`: (place or time, data URL) of each picture."""
    content: list[dict[str, Any]] = [{"type": "text", "text": request}]
    for place, url in shown:
        content += [{"type": "text", "text": place}] if place else []
        content += [{"type": "image_url", "image_url": {"url": url}}]
    return reading.quoted(reading.ask(env, env.pool[engine.backend], content))


def pictures(path: Path) -> Iterator[tuple[str, Image.Image, str]]:
    """(place, picture, "JPEG" or "PNG") of at most MAX_FRAMES frames or pages, upright and small.
    The place is as in "2 of 5", or "" if there is only one. Raises ToolError.
    """
    with media.opened_picture(path) as file:
        kind = "JPEG" if file.format in LOSSY else "PNG"
        count = (
            1 if file.format == "MPO" else getattr(file, "n_frames", 1)
        )  # MPO: depth maps
        for n in sorted(
            {round(i * (count - 1) / (MAX_FRAMES - 1)) for i in range(MAX_FRAMES)}
        ):
            file.seek(n)
            yield (
                f"{n + 1} of {count}" if count > 1 else "",
                _small_rgb(file, count > 1),
                kind,
            )


def _small_rgb(file: Any, several: bool) -> Image.Image:
    """The current frame, upright and small, transparent parts white."""
    file.draft("RGB", (MAX_SIDE, MAX_SIDE))  # decodes a JPEG no larger than needed
    if file.width * file.height > media.MAX_PIXELS:
        size, limit = f"{file.width} x {file.height}", media.MAX_PIXELS * 4 >> 20
        raise ToolError(say("tools/notes", "too_many_pixels", size=size, limit=limit))
    file.load()
    image = file.copy() if several else file
    if (
        image.mode[0] in "IF"
    ):  # integers or floats: the smallest is black, the largest white
        least, greatest = (
            (0, 255 << 8) if image.mode.startswith("I;16") else image.getextrema()
        )
        share = 255 / ((greatest - least) or 1)
        image = (
            image.convert("F").point(lambda v: v * share - least * share).convert("L")
        )
    elif image.mode in ("1", "P"):  # shrinks to grey: thin lines stay visible
        image = image.convert("RGBA")
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    image = ImageOps.exif_transpose(image).convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image)
    return white


def data_urls(path: Path) -> list[list[str]]:
    """[place, data URL] of each frame: its pixels, without metadata."""
    return [[place, data_url(picture, kind)] for place, picture, kind in pictures(path)]


def data_url(picture: Image.Image, kind: str) -> str:
    """A picture as it is sent to a vision model. `kind`: "JPEG" or "PNG"."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, quality=90)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def read_pages(path: Path) -> list[list[Any]]:
    """[place, lines of text] of each frame."""
    return [[place, read_text(picture)] for place, picture, _ in pictures(path)]


def read_text(image: Image.Image) -> list[str]:
    """The lines of text in a picture, top to bottom, by RapidOCR (the extra `local`)."""
    shortest = max(image.size) // MAX_RATIO
    if min(image.size) < shortest:
        size = max(image.width, shortest), max(image.height, shortest)
        image = ImageOps.pad(image, size, color="white")
    array = numpy.ascontiguousarray(
        numpy.asarray(image)[:, :, ::-1]
    )  # (height, width, BGR)
    with _ocr_lock:
        return [str(line) for line in _ocr()(array).txts or ()]


@cache
def _ocr() -> Any:
    try:
        from rapidocr import RapidOCR
    except ImportError:
        raise ToolError(say("notes", "no_engine", what="RapidOCR")) from None
    return RapidOCR(params=OCR)
