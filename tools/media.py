"""The media of a task: looked at before anything is paid, copied into the run folder, and told to
models by plain names.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import struct
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from orchestra.vocabulary import ConfigError, Media, Modality
from runtime.run_folder import sha256_of, unwritable
from runtime.secrets import Secrets

MAX_BYTES: dict[Modality, int] = {"image": 100 << 20, "audio": 1 << 30, "video": 4 << 30}
PICTURES = (  # what is taken for one: Pillow reads more, some by running other programs
    *("PNG", "JPEG", "WEBP", "GIF", "MPO", "HEIF", "AVIF", "BMP", "DIB", "TIFF", "JPEG2000"),
    *("ICO", "PPM", "TGA", "PCX"),
)
MAX_DECODED_BYTES = 256 << 20  # of one picture or frame in memory
DAMAGED = (  # what Pillow's parsers raise where the bytes make no sense
    *(OSError, ValueError, SyntaxError, RuntimeError, TypeError, LookupError, EOFError),
    *(ArithmeticError, MemoryError, struct.error, zlib.error),
)


def check(files: Iterable[Any]) -> list[tuple[Modality, Path]]:
    """Check each file, a path or (modality, path), before anything is paid. Raises ConfigError:
    missing, empty, too large, of another kind.
    """
    checked = []
    for file in files:
        modality, path = ("", Path(file)) if isinstance(file, str | Path) else file
        path = Path(path)
        if not modality:
            kinds = _kinds(path) if path.is_file() else {"image"}
            modality = max(kinds, default="image")  # video, image, audio
        if modality not in MAX_BYTES:
            raise ConfigError(f"{modality!r}: is no kind of media; one of {', '.join(MAX_BYTES)}")
        try:
            problem = _problem(modality, path)
        except OSError as error:
            problem = f"cannot be read ({error.strerror}); give another file"
        if problem:
            raise ConfigError(f"--{modality} {path}: {problem}")
        checked.append((modality, path))
    return checked


def _problem(modality: Modality, path: Path) -> str:
    """What is wrong with a media file and what to do; "" if nothing is."""
    if not path.exists():
        return "there is no such file; check the path"
    if not path.is_file():
        return "is not a file; name the file itself"
    size, most = path.stat().st_size, MAX_BYTES[modality]
    path.open("rb").close()
    if size == 0:
        return "is empty; give another file"
    if size > most:
        return f"{size >> 20} MiB is over the limit of {most >> 20} MiB; cut or shrink it"
    kinds = _kinds(path)
    if modality in kinds:
        return ""
    if not kinds:
        return f"is no {modality} file; no picture and no sound can be read from it"
    held = " and ".join(sorted(kinds))
    return f"is no {modality} file; it holds {held}: use --{max(kinds)}"


def _kinds(path: Path) -> set[str]:
    """What a file is by its content: image, audio, video (with or without sound)."""
    from PIL import Image

    try:
        # A warning about odd tags is not for the user.
        with (
            warnings.catch_warnings(action="ignore"),
            Image.open(path, formats=picture_formats()) as picture,
        ):
            picture.verify()
        return {"image"}
    except Image.DecompressionBombError:  # more pixels than memory
        return set()
    except DAMAGED:
        return {kind for kind in ("audio", "video") if _decodes(path, kind)}


def picture_formats() -> list[str]:
    """Those of PICTURES that can be read here: no other parser of Pillow's sees a file."""
    from PIL import Image

    with contextlib.suppress(ImportError):  # without it HEIC is no picture
        from pillow_heif import register_heif_opener

        register_heif_opener()
    Image.init()
    return [name for name in PICTURES if name in Image.OPEN]


def _decodes(path: Path, kind: str) -> bool:
    """Whether one frame of sound or picture comes out: FFmpeg takes some files by their name, and
    draws text as pictures of a terminal.
    """
    import av

    try:
        with opened(path) as source:
            stream = stream_of(source, kind)
            if stream is None or source.format.name == "tty":
                return False
            return next(source.decode(stream), None) is not None
    except (av.FFmpegError, OSError, ValueError):
        return False


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A sound or video file, read by FFmpeg. No list of other files or of URLs is followed, and no
    picture decoded, not even to look what it is, that takes more than MAX_DECODED_BYTES.
    """
    import av

    limit = {"max_pixels": str(MAX_DECODED_BYTES // 4)}
    options = {"protocol_whitelist": "none", **limit}
    with path.open("rb") as file, av.open(file, options=options) as source:
        for stream in source.streams:
            if stream.codec_context:
                stream.codec_context.options = limit
        yield source


def stream_of(source: Any, kind: str) -> Any:
    """The first stream of a kind that can be decoded; None where there is none."""
    return next((s for s in source.streams if s.type == kind and s.codec_context), None)


def copy_into(folder: Path, files: Sequence[tuple[Modality, Path]]) -> tuple[Media, ...]:
    """Copy the media into the run folder, under names a model can write without a slip."""
    media: list[Media] = []
    for modality, path in files:
        name = _plain_name(path, {m.name for m in media})
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
    return next(name for n in numbers if (name := f"{stem}{n}{suffix}") not in taken)


def read_errors() -> tuple[type[Exception], ...]:
    """What reading a damaged file raises."""
    import av

    return av.FFmpegError, OSError, ValueError
