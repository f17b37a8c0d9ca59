"""ImageAnalysisAction: a model looks at a picture, or a library reads the text in it.

The pool says which. tools/pictures.py opens the file, when no tape has what it showed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from orchestra.kernel.prompts import fenced, named, quoted, render, say
from orchestra.kernel.tool import Environment, ImageFile, tool
from orchestra.kernel.vocabulary import Engine


@tool("ImageAnalysisAction", "img")
def image_analysis(env: Environment, query: str, image_path: ImageFile) -> str:
    """Look at one picture of the task: the things, persons and places it shows, and all text in it.

    query: what your task wants to know about the picture, in the words of the task
    image_path: the file name of the picture, exactly as the task lists it
    """
    file = env.media(image_path, "image")
    request = {"sha256": file.sha256}
    engine = env.pool.engine_of("image")

    def show() -> Any:
        from orchestra.tools import pictures

        return pictures.data_urls(file.path)

    def read() -> Any:
        from orchestra.tools import pictures

        return pictures.read_pages(file.path)

    note = "parts_read"
    if engine.engine == "endpoint":
        shown = env.local("picture", request, show)
        asked = render("tools/image.md", query=query)
        if parts_of(shown):
            asked += "\n\n" + say("tools/notes", "picture_parts")
            note = "parts_seen"
        seen = look(env, engine, asked, shown)
    else:
        shown = env.local("ocr", request, read)
        seen = say("notes", "ocr", name=named(file.name), lines=fenced(text_of(shown)))
    parts = parts_of(shown)
    if parts:
        told = {"seen": seen, "name": named(file.name), "last": parts[-1]}
        return say("tools/notes", note, **told)
    return seen


def parts_of(shown: Iterable[Any]) -> list[str]:
    """The places of those pictures that are parts of a long one."""
    return [place for place, _ in shown if "part" in place]


def text_of(pages: Iterable[Any]) -> str:
    """The lines of text in each picture, after its place."""
    texts = ["\n".join([f"({place})"] * bool(place) + lines) for place, lines in pages]
    return "\n\n".join(texts).strip() or "-"


def look(
    env: Environment, engine: Engine, request: str, shown: Iterable[tuple[str, str]]
) -> str:
    """The answer of a vision model, quoted. `shown`: (place or time, data URL) of each picture."""
    from orchestra.tools import reading

    content: list[dict[str, Any]] = [{"type": "text", "text": request}]
    for place, url in shown:
        if place:
            content.append({"type": "text", "text": place})
        content.append({"type": "image_url", "image_url": {"url": url}})
    return quoted(reading.ask(env, env.pool[engine.backend], content))
