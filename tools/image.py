"""ImageAnalysisAction: a vision model looks, or RapidOCR reads, behind one function.

A picture is turned upright (EXIF), made small enough for an endpoint, and sent as a JPEG or PNG. Of
an animation or a document of several pages, up to eight.
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

from runtime.pool import Engine
from runtime.prompts import fenced, render, say
from tools import Environment, ImageFile, ToolError, media, reading, tool

MAX_SIDE = 2048  # pixels; endpoints make larger ones smaller themselves
MAX_FRAMES = 8
MOST_PAGES = 2000  # of which they are taken: to come to one, all before it are decoded
LOSSY = ("JPEG", "MPO", "WEBP", "HEIF", "AVIF")
LARGE_SIDE = 1536  # pixels
LARGE = {  # RapidOCR for pages: the detector's memory grows with the pixels that it looks at
    "Det.limit_type": "max",
    "Det.limit_side_len": LARGE_SIDE,  # the lines found are read from the picture itself
    "Rec.rec_batch_num": 1,  # lines at a time: six as wide as the widest take more time and memory
}
MAX_RATIO = 4  # of the sides of a picture that is read; a longer one is padded
_ocr_turn = threading.Lock()


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
            "ocr", key, lambda: [[p, read_text(i)] for p, i in pictures(file.path)],
            list[tuple[str, list[str]]],
        )  # fmt: skip
        texts = ["\n".join([*([f"({place})"] if place else []), *lines]) for place, lines in pages]
        return say("notes", "ocr", name=file.name, lines=fenced("\n\n".join(texts).strip() or "-"))
    sent = env.local(
        "picture", key, lambda: [[p, u] for p, u in data_urls(file.path)], list[tuple[str, str]]
    )
    return ask(env, engine, render("tools/image.md", query=query), sent)


def ask(env: Environment, engine: Engine, request: str, shown: Iterable[tuple[str, str]]) -> str:
    """What a vision model answers, quoted. `shown`: (place or time, data URL) of each picture."""
    content: list[dict[str, Any]] = [{"type": "text", "text": request}]
    for place, url in shown:
        content += [{"type": "text", "text": place}] if place else []
        content += [{"type": "image_url", "image_url": {"url": url}}]
    return reading.quoted(reading.said(env, env.pool[engine.backend], content))


def pictures(path: Path) -> Iterator[tuple[str, Image.Image]]:
    """The frames or pages of a picture file, at most MAX_FRAMES, as small upright RGB, each after
    its place, as in "2 of 5"; "" where there is one only. Raises ToolError: it cannot be read.
    """
    with media.opened_picture(path) as file:
        count = 1 if file.format == "MPO" else getattr(file, "n_frames", 1)  # its others are depths
        last = min(count, MOST_PAGES) - 1
        for n in sorted({round(i * last / (MAX_FRAMES - 1)) for i in range(MAX_FRAMES)}):
            file.seek(n)
            yield f"{n + 1} of {count}" if count > 1 else "", _small(file, count > 1)


def _small(file: Any, more: bool) -> Image.Image:
    """The current frame as small upright RGB, transparent parts white. `more`: there are others."""
    file.draft("RGB", (MAX_SIDE, MAX_SIDE))  # a JPEG is never decoded larger than needed
    if file.width * file.height > media.MAX_PIXELS:
        size, limit = f"{file.width} x {file.height}", media.MAX_PIXELS * 4 >> 20
        raise ToolError(say("tools/notes", "too_many_pixels", size=size, limit=limit))
    file.load()
    image = file.copy() if more else file
    if image.mode[0] in "IF":  # of numbers: the least black, the greatest white
        least, greatest = (0, 255 << 8) if image.mode.startswith("I;16") else image.getextrema()
        share = 255 / ((greatest - least) or 1)
        image = image.convert("F").point(lambda v: v * share - least * share).convert("L")
    elif image.mode in ("1", "P"):  # else thin lines get lost
        image = image.convert("RGBA")
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    image = ImageOps.exif_transpose(image).convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image)
    return white


def data_urls(path: Path) -> Iterator[tuple[str, str]]:
    """(place, data URL) of each frame: its pixels, without what else the file holds."""
    with media.opened_picture(path) as file:
        kind = "JPEG" if file.format in LOSSY else "PNG"
    for place, picture in pictures(path):
        yield place, data_url(picture, kind)


def data_url(picture: Image.Image, kind: str) -> str:
    """A picture as a vision model is sent it. `kind`: "JPEG" or "PNG"."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, quality=90)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def read_text(image: Image.Image) -> list[str]:
    """The lines of text in a picture, top to bottom, by RapidOCR (the extra `local`)."""
    least = max(image.size) // MAX_RATIO  # the engine enlarges the short side, whatever the other
    if min(image.size) < least:
        size = max(image.width, least), max(image.height, least)
        image = ImageOps.pad(image, size, color="white")
    array = numpy.ascontiguousarray(numpy.asarray(image)[:, :, ::-1])  # (height, width, BGR)
    with _ocr_turn:
        engine = _ocr(image.width * image.height > LARGE_SIDE**2)
        return [str(line) for line in engine(array).txts or ()]


@cache
def _ocr(large: bool) -> Any:
    try:
        from rapidocr import RapidOCR
    except ImportError:
        raise ToolError(say("notes", "no_engine", what="RapidOCR")) from None
    return RapidOCR(params={"Global.log_level": "error", **(LARGE if large else {})})
