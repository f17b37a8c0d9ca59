"""ImageAnalysisAction: a vision model looks, or RapidOCR reads, behind one function."""

from __future__ import annotations

import base64
import threading
from functools import cache
from pathlib import Path
from typing import Any

from orchestra.prompts import render, say
from tools import Environment, ImageFile, ToolError, tool

MAX_ENDPOINT_BYTES = 20 << 20  # what endpoints take in one request


@tool("ImageAnalysisAction", "img")
def image_analysis(env: Environment, query: str, image_path: ImageFile) -> str:
    """Look at one picture of the task: the things, persons and places it shows, and all text in it.

    query: what your task wants to know about the picture, in the words of the task
    image_path: the file name of the picture, exactly as the task lists it
    """
    picture = env.media(image_path, "image")
    engine = env.pool.engines["image"]
    if engine.engine == "local":
        lines = env.local("ocr", {"sha256": picture.sha256}, lambda: read_text(picture.path))
        return say("notes", "ocr", name=picture.name, lines="\n".join(lines) or "-")
    data = picture.path.read_bytes()
    if len(data) > MAX_ENDPOINT_BYTES:
        raise ToolError(
            say(
                "notes",
                "too_big",
                name=picture.name,
                mib=len(data) >> 20,
                limit=MAX_ENDPOINT_BYTES >> 20,
            )
        )
    url = f"data:{mime_type(picture.path)};base64,{base64.b64encode(data).decode()}"
    content: list[dict[str, Any]] = [
        {"type": "text", "text": render("tools/image.md", query=query)},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    return env.chat(
        env.pool[engine.backend], [{"role": "user", "content": content}], env.purse
    ).text


def mime_type(path: Path) -> str:
    """By the content, not by the name."""
    from PIL import Image

    with Image.open(path) as picture:
        return Image.MIME.get(picture.format or "", "image/png")


def read_text(path: Path) -> list[str]:
    """The lines of text in a picture, top to bottom, by RapidOCR (requirements-local.txt)."""
    with _reading:  # one engine for all sub-agents; it is not made for threads
        result = _ocr()(str(path))
    return [str(line) for line in result.txts or ()]


_reading = threading.Lock()


@cache
def _ocr() -> Any:
    try:
        from rapidocr import RapidOCR
    except ImportError:
        raise ToolError(say("notes", "no_engine", what="RapidOCR")) from None
    return RapidOCR(params={"Global.log_level": "error"})
