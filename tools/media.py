"""The media of a task: checked before the first paid call, copied into the run folder under plain
names, opened for the tools.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from orchestra.runtime.pool import Pool, analysed
from orchestra.runtime.prompts import say
from orchestra.runtime.run_folder import sha256_of, unwritable
from orchestra.runtime.secrets import Secrets
from orchestra.toolkit import ToolError
from orchestra.vocabulary import ConfigError, Media, Modality

MAX_BYTES: dict[Modality, int] = {
    "image": 100 << 20,
    "audio": 1 << 30,
    "video": 4 << 30,
}
MAX_PIXELS = 64 << 20  # of one picture or frame: 256 MiB in memory
GUESSED = re.compile(
    "tty|mjpeg|.*_pipe"
)  # formats FFmpeg detects in texts, PDF and office files
PICTURES = "PNG JPEG WEBP GIF MPO HEIF AVIF BMP DIB TIFF JPEG2000 ICO PPM TGA PCX"
ENGINES: dict[Any, list[str]] = {
    "image": ["rapidocr", "onnxruntime"],
    "audio": ["faster_whisper"],
}
Window = tuple[
    float, float | None
]  # start and end in seconds; None: the end of the file
WHOLE: Window = 0.0, None
WHISPER = "WHISPER_MODEL"  # a name, to be downloaded once, or a folder


def check(files: Iterable[Any]) -> list[tuple[Modality, Path]]:
    """Check each file, a path or (modality, path). Raises ConfigError: unreadable, too large or
    not of its modality.
    """
    files = [files] if isinstance(files, str | Path) else files
    return [_checked(*(("", f) if isinstance(f, str | Path) else f)) for f in files]


def _checked(modality: Any, file: str | Path) -> tuple[Modality, Path]:
    path = Path(file)
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise OSError(0, "not a regular file")  # opening a pipe would block
        path.open("rb").close()
    except OSError as error:
        problem = f"cannot be read ({error.strerror}); check the path"
        raise ConfigError(f"--{modality or 'image'} {path}: {problem}") from None
    kinds = _kinds(path)
    modality = modality or max(
        kinds, default="image"
    )  # video before image before audio
    limit = MAX_BYTES.get(modality, 0)
    if not limit:
        problem = f"unknown kind of media; use one of {', '.join(MAX_BYTES)}"
    elif size > limit:
        problem = (
            f"{size >> 20} MiB is over the limit of {limit >> 20} MiB; cut or shrink it"
        )
    elif not kinds:
        problem = "not a media file: no picture and no sound can be read from it"
    elif modality not in kinds:
        problem = (
            f"is {' and '.join(sorted(kinds))}, not {modality}: use --{max(kinds)}"
        )
    else:
        return modality, path
    raise ConfigError(f"--{modality} {path}: {problem}")


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
        guessed = GUESSED.fullmatch(source.format.name)
        return not guessed and next(source.decode(stream), None) is not None
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
        reason = getattr(error, "strerror", None) or str(error).replace(
            str(path), path.name
        )
        raise ToolError(
            say("notes", "unreadable", name=path.name, reason=reason)
        ) from None


@contextlib.contextmanager
def opened_picture(path: Path) -> Iterator[Any]:
    """A picture file, read by Pillow. Errors in the block, as of damaged data, become ToolError."""
    from PIL import Image

    with contextlib.suppress(ImportError):  # then HEIC is not read
        from pillow_heif import register_heif_opener

        register_heif_opener()
    Image.init()
    formats = [
        name for name in PICTURES.split() if name in Image.OPEN
    ]  # others run programs
    with _as_tool_error(path), Image.open(path, formats=formats) as picture:
        yield picture


@contextlib.contextmanager
def opened(path: Path, kind: str) -> Iterator[tuple[Any, Any]]:
    """A sound or video file, read by FFmpeg, and its first stream of a kind. Playlists that name
    files or URLs are not followed. Errors in the block become ToolError.
    """
    import av

    limit = {
        "max_pixels": str(MAX_PIXELS)
    }  # also of frames decoded to detect the format
    options = {"protocol_whitelist": "none", **limit}
    with (
        _as_tool_error(path),
        path.open("rb") as file,
        av.open(file, options=options) as source,
    ):
        cover = av.stream.Disposition.attached_pic  # album art is not a video
        found: list[Any] = [
            s for s in source.streams if s.type == kind and s.codec_context
        ]
        streams = [s for s in found if not s.disposition & cover]
        if not streams:
            raise ToolError(say("tools/notes", f"no_{kind}", name=path.name))
        streams[0].codec_context.options = limit
        yield source, streams[0]


def copy_into(
    folder: Path, files: Sequence[tuple[Modality, Path]]
) -> tuple[Media, ...]:
    """Copy the media into the run folder, under names that a model can repeat without mistakes."""
    media: list[Media] = []
    for modality, path in files:
        name = _plain_name(path, {m.name.casefold() for m in media})
        target = folder / "media" / name
        try:
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)
        except OSError as error:
            raise unwritable(target, error) from None
        media.append(Media(modality, name, target, sha256_of(target)))
    return tuple(media)


def _plain_name(path: Path, taken: set[str]) -> str:
    stem = re.sub(r"[^\w-]+", "_", path.stem).strip("_-")[:60]
    stem = stem if stem and Secrets().text(stem) == stem else "media"  # models read it
    suffix = re.sub(r"[^\w.]+", "", path.suffix)[:10]
    numbers = ("", *(f"_{n}" for n in range(2, len(taken) + 2)))
    return next(
        name for n in numbers if (name := f"{stem}{n}{suffix}").casefold() not in taken
    )


def check_engines(modalities: Iterable[Modality], pool: Pool) -> None:
    """Raises ConfigError if files of these kinds need a local engine that is not installed."""
    for kind in sorted(analysed(modalities)):
        missing = [name for name in ENGINES[kind] if find_spec(name) is None]
        if missing and pool.engine(kind).engine == "local":
            needs = f"the local engine for {kind} needs {missing[0]}"
            raise ConfigError(
                f"{needs}: pip install '.[local]', or --perception endpoint"
            )
    model = os.environ.get(WHISPER, "")
    if os.sep in model and not (Path(model) / "model.bin").is_file():
        raise ConfigError(
            f"{WHISPER}: no model.bin in {model}; name a faster-whisper folder"
        )
