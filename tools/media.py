"""The media of a task, and its other files: checked before the first paid call, and opened."""

from __future__ import annotations

import contextlib
import mimetypes
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from orchestra import install
from orchestra.kernel.prompts import named, outside, say
from orchestra.kernel.vocabulary import (
    SKILL_OF,
    Analysis,
    ConfigError,
    Modality,
    Pool,
    ToolError,
)
from orchestra.tools import reader

MAX_BYTES: dict[Modality, int] = {  # of a file
    "image": 100 << 20,
    "audio": 1 << 30,
    "video": 4 << 30,
    "file": 64 << 20,
}
MAX_PIXELS = 64 << 20  # of one picture or frame: 256 MiB in memory
# Formats that FFmpeg detects in texts, PDF and office files.
GUESSED = re.compile("tty|mjpeg|.*_pipe")
PICTURES = "PNG JPEG WEBP GIF MPO HEIF AVIF BMP DIB TIFF JPEG2000 ICO PPM TGA PCX"
MIME_TYPES = mimetypes.MimeTypes(filenames=())  # the same on each machine
UNKNOWN = "application/octet-stream"
SVG = "image/svg+xml"  # a text
ENGINES: dict[Analysis, list[str]] = {  # packages of the libraries
    "image": ["rapidocr", "onnxruntime"],
    "audio": ["faster_whisper"],
}
WHISPER = "WHISPER_MODEL"  # a name, to be downloaded once, or a folder


def check(files: Iterable[Any]) -> list[tuple[Modality, Path]]:
    """Check each file, a path or (modality, path). Raises ConfigError: unreadable, too large or
    not of its modality.
    """
    if isinstance(files, str | Path):
        files = [files]
    named = [("", f) if isinstance(f, str | Path) else f for f in files]
    return [_checked(modality, Path(file)) for modality, file in named]


def _checked(modality: Any, path: Path) -> tuple[Modality, Path]:
    """The modality and path of one file. `modality` is "" if the user did not name it."""
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise OSError(0, "not a regular file")  # opening a pipe would block
        path.open("rb").close()
    except OSError as error:
        named = f"{modality}:{path}" if modality else path
        word, colon, _ = str(path).partition(":")
        hint = f"; {word} is no kind (image, audio, video, file)" if colon else ""
        told = (
            f"--file {named}: cannot be read ({error.strerror}); check the path{hint}"
        )
        raise ConfigError(told) from None
    modality, kinds = _recognised(modality, path)
    problem = _problem(modality, path, size, kinds)
    if problem:
        raise ConfigError(f"--file {path}: {problem}")
    return modality, path


def _recognised(modality: Any, path: Path) -> tuple[Any, set[str]]:
    """The modality of a file, if the user did not name it, and the kinds of media in the file. A
    file of another kind is not decoded here.
    """
    guessed = MIME_TYPES.guess_type(path.name)[0] or UNKNOWN
    by_name, _, _ = guessed.partition("/")
    is_media = by_name in SKILL_OF and guessed != SVG
    if modality == "file" or (not modality and not is_media and guessed != UNKNOWN):
        return "file", {"file"}
    kinds = _kinds(path)
    if modality:
        return modality, kinds
    if kinds:
        # The last in the alphabet is also the one we prefer: video, then image, then audio.
        return max(kinds), kinds
    # A picture, sound or video that cannot be decoded is damaged, not another kind of file.
    return (by_name, kinds) if is_media else ("file", {"file"})


def _problem(modality: Modality, path: Path, size: int, kinds: set[str]) -> str:
    """Why a file cannot be used as this modality, or "". `size`: in bytes; `kinds`: what it is."""
    limit = MAX_BYTES.get(modality)
    if limit is None:
        return f"unknown kind of media; use one of {', '.join(MAX_BYTES)}"
    if size > limit:
        return (
            f"{size >> 20} MiB is over the limit of {limit >> 20} MiB; cut or shrink it"
        )
    if not size:
        return "the file is empty"
    if not kinds:
        why = f"no {modality} can be read from it: it is damaged, or of another kind"
        return f"{why}; if it is text: --file file:{path}"
    if modality not in kinds:
        return f"is {' and '.join(sorted(kinds))}, not {modality}: use --file {max(kinds)}:PATH"
    suffix = path.suffix.lower()
    if modality == "file" and not reader.can_read(suffix):
        package = "pypdf" if suffix == ".pdf" else "markitdown"
        return f"needs {package} to be read as text: {install('files')}"
    return ""


def _kinds(path: Path) -> set[str]:
    """The kinds of media in a file: image, or audio and video."""
    with (
        contextlib.suppress(ToolError),
        warnings.catch_warnings(action="ignore"),  # about odd tags
        opened_picture(path) as picture,
    ):
        picture.verify()
        return {"image"}
    return {kind for kind in ("audio", "video") if _decodes(path, kind)}


def _decodes(path: Path, kind: str) -> bool:
    """Whether a frame of this kind can be decoded."""
    with contextlib.suppress(ToolError), opened(path, kind) as (source, stream):
        is_guessed = GUESSED.fullmatch(source.format.name)
        return not is_guessed and next(source.decode(stream), None) is not None
    return False


@contextlib.contextmanager
def _as_tool_error(path: Path) -> Iterator[None]:
    """Turns any error into a ToolError. Pillow and PyAV do not document what they raise for damaged
    files: thousands of them raised eight unrelated types, such as RuntimeError and SyntaxError.
    """
    try:
        yield
    except ToolError:
        raise
    except Exception as error:
        told = getattr(error, "strerror", None) or str(error).replace(
            str(path), path.name
        )
        why = {"name": named(path.name), "reason": outside(told)}
        raise ToolError(say("notes", "unreadable", **why)) from None


@contextlib.contextmanager
def opened_picture(path: Path) -> Iterator[Any]:
    """A picture file, read by Pillow. Errors in the block, as of damaged data, become ToolError."""
    from PIL import Image

    with contextlib.suppress(ImportError):  # then HEIC is not read
        from pillow_heif import register_heif_opener

        register_heif_opener()
    Image.init()
    # Other formats run programs.
    formats = [name for name in PICTURES.split() if name in Image.OPEN]
    with _as_tool_error(path), Image.open(path, formats=formats) as picture:
        yield picture


@contextlib.contextmanager
def opened(path: Path, kind: str) -> Iterator[tuple[Any, Any]]:
    """A sound or video file, read by FFmpeg, and its first stream of a kind. Playlists that name
    files or URLs are not followed. Errors in the block become ToolError.
    """
    import av

    limit = {"max_pixels": str(MAX_PIXELS)}
    # The limit is for the frames that are decoded to detect the format, too.
    options = {"protocol_whitelist": "none", **limit}
    with (
        _as_tool_error(path),
        path.open("rb") as file,
        av.open(file, options=options) as source,
    ):
        streams = [s for s in source.streams if s.type == kind and _is_media(s)]
        if not streams:
            raise ToolError(say("tools/notes", f"no_{kind}", name=named(path.name)))
        stream: Any = streams[0]
        stream.codec_context.options = limit
        yield source, stream


def _is_media(stream: Any) -> bool:
    """Whether a stream can be decoded and is not album art, which FFmpeg shows as a video."""
    from av.stream import Disposition

    is_art = stream.disposition & Disposition.attached_pic
    return bool(stream.codec_context and not is_art)


def origin_s(source: Any) -> float:
    """The timestamp of an opened file that a player shows as 0:00."""
    import av

    return float((source.start_time or 0) / av.time_base)


def missing_engine(kind: Analysis) -> str:
    """The first package that the library of this kind lacks; "" if it can be used."""
    missing = (name for name in ENGINES[kind] if find_spec(name) is None)
    return next(missing, "")


def check_engines(modalities: Iterable[Modality], pool: Pool) -> None:
    """Raises ConfigError if files of these kinds need a library that is not installed."""
    kinds = set(modalities)
    for kind in ENGINES:
        is_needed = not kinds.isdisjoint((kind, "video"))
        missing = missing_engine(kind)
        if is_needed and missing and pool.engine_of(kind).engine == "local":
            raise ConfigError(engine_needs(kind, missing))
    check_whisper()


def engine_needs(kind: str, package: str) -> str:
    """What to do about a library that is not installed."""
    return f"the local engine for {kind} needs {package}: {install('local')}"


def check_whisper() -> None:
    """Raises ConfigError if WHISPER_MODEL names a folder without a model."""
    model = os.environ.get(WHISPER, "")
    is_folder = os.sep in model
    if is_folder and not (Path(model) / "model.bin").is_file():
        raise ConfigError(
            f"{WHISPER}: no model.bin in {model}; name a faster-whisper folder"
        )
