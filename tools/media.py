"""The media of a task: checked before anything is paid, copied into the run folder under plain
names, and opened for the tools.
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

from orchestra.vocabulary import ConfigError, Media, Modality
from runtime.pool import Pool, analysed
from runtime.prompts import say
from runtime.run_folder import sha256_of, unwritable
from runtime.secrets import Secrets
from tools import ToolError

MAX_BYTES: dict[Modality, int] = {"image": 100 << 20, "audio": 1 << 30, "video": 4 << 30}
MAX_PIXELS = 64 << 20  # of one picture or frame: 256 MiB in memory
GUESSED = re.compile("tty|mjpeg|.*_pipe")  # what FFmpeg sees in texts, PDF and office files
PICTURES = "PNG JPEG WEBP GIF MPO HEIF AVIF BMP DIB TIFF JPEG2000 ICO PPM TGA PCX"
ENGINES: dict[Any, list[str]] = {"image": ["rapidocr", "onnxruntime"], "audio": ["faster_whisper"]}
Window = tuple[float, float | None]  # seconds from the start of a file; None: to its end
WHOLE: Window = 0.0, None
WHISPER = "WHISPER_MODEL"  # a name, downloaded once, or a folder


def check(files: Iterable[Any]) -> list[tuple[Modality, Path]]:
    """Check each file, a path or (modality, path), before anything is paid. Raises ConfigError:
    unreadable, empty, too large, of another kind.
    """
    files = [files] if isinstance(files, str | Path) else files
    return [_checked(*(("", f) if isinstance(f, str | Path) else f)) for f in files]


def _checked(modality: Any, file: str | Path) -> tuple[Modality, Path]:
    path = Path(file)
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise OSError(0, "not a regular file")  # to open a pipe would wait for its writer
        path.open("rb").close()
    except OSError as error:
        problem = f"cannot be read ({error.strerror}); check the path"
        raise ConfigError(f"--{modality or 'image'} {path}: {problem}") from None
    kinds = _kinds(path)
    modality = modality or max(kinds, default="image")  # video, image, audio
    most, held = MAX_BYTES.get(modality, 0), " and ".join(sorted(kinds))
    if not most:
        problem = f"is not a kind of media; one of {', '.join(MAX_BYTES)}"
    elif size > most:
        problem = f"{size >> 20} MiB is over the limit of {most >> 20} MiB; cut or shrink it"
    elif not kinds:
        problem = f"is no {modality} file; no picture and no sound can be read from it"
    elif modality not in kinds:
        problem = f"is no {modality} file; it holds {held}: use --{max(kinds)}"
    else:
        return modality, path
    raise ConfigError(f"--{modality} {path}: {problem}")


def _kinds(path: Path) -> set[str]:
    """What a file is by its content: image, audio, video (with or without sound)."""
    with (
        contextlib.suppress(ToolError),
        warnings.catch_warnings(action="ignore"),  # a warning about odd tags is not for the user
        opened_picture(path) as picture,
    ):
        picture.verify()
        return {"image"}
    return {kind for kind in ("audio", "video") if _decodes(path, kind)}


def _decodes(path: Path, kind: str) -> bool:
    """Whether one frame of sound or picture comes out."""
    with contextlib.suppress(ToolError), opened(path, kind) as (source, stream):
        sure = not GUESSED.fullmatch(source.format.name)
        return sure and next(source.decode(stream), None) is not None
    return False


@contextlib.contextmanager
def _as_tool_error(path: Path) -> Iterator[None]:
    """Any error inside as a ToolError. Pillow and PyAV do not list what damaged bytes raise: of
    thousands of damaged files, eight unrelated types came, RuntimeError and SyntaxError among them.
    """
    try:
        yield
    except ToolError:
        raise
    except Exception as error:
        reason = getattr(error, "strerror", None) or str(error).replace(str(path), path.name)
        raise ToolError(say("notes", "unreadable", name=path.name, reason=reason)) from None


@contextlib.contextmanager
def opened_picture(path: Path) -> Iterator[Any]:
    """A picture file, read by Pillow. Raises ToolError while it is open: damaged, or too large."""
    from PIL import Image

    # Pillow opens more formats, some by running other programs.
    with contextlib.suppress(ImportError):  # without it HEIC is no picture
        from pillow_heif import register_heif_opener

        register_heif_opener()
    Image.init()
    formats = [name for name in PICTURES.split() if name in Image.OPEN]
    with _as_tool_error(path), Image.open(path, formats=formats) as picture:
        yield picture


@contextlib.contextmanager
def opened(path: Path, kind: str) -> Iterator[tuple[Any, Any]]:
    """A sound or video file, read by FFmpeg, and its first stream of a kind. No list of other files
    or of URLs is followed. Raises ToolError while it is open: damaged, too large, no such stream.
    """
    import av

    limit = {"max_pixels": str(MAX_PIXELS)}  # also for those that are decoded to guess a format
    options = {"protocol_whitelist": "none", **limit}
    with _as_tool_error(path), path.open("rb") as file, av.open(file, options=options) as source:
        cover = av.stream.Disposition.attached_pic  # the picture of an album is no video
        found: list[Any] = [s for s in source.streams if s.type == kind and s.codec_context]
        streams = [s for s in found if not s.disposition & cover]
        if not streams:
            raise ToolError(say("tools/notes", f"no_{kind}", name=path.name))
        streams[0].codec_context.options = limit
        yield source, streams[0]


def copy_into(folder: Path, files: Sequence[tuple[Modality, Path]]) -> tuple[Media, ...]:
    """Copy the media into the run folder, under names a model can write without a slip."""
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
    return next(name for n in numbers if (name := f"{stem}{n}{suffix}").casefold() not in taken)


def check_engines(modalities: Iterable[Modality], pool: Pool) -> None:
    """Raises ConfigError where a file of such a kind needs a local engine that is not installed."""
    for kind in sorted(analysed(modalities)):
        missing = [name for name in ENGINES[kind] if find_spec(name) is None]
        if missing and pool.engine(kind).engine == "local":
            raise ConfigError(
                f"{kind} is analysed by the local engine, which needs {missing[0]}: "
                "pip install '.[local]', or --perception endpoint"
            )
    model = os.environ.get(WHISPER, "")
    if os.sep in model and not (Path(model) / "model.bin").is_file():
        raise ConfigError(f"{WHISPER}: {model} holds no model.bin; name a faster-whisper folder")
