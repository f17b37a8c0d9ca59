"""Pixels of every kind as small upright RGB: of picture files, and of the frames of a video."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from runtime.prompts import say
from tools import ToolError
from tools.media import MAX_DECODED_BYTES

if TYPE_CHECKING:
    from PIL import Image

MAX_SIDE = 2048  # pixels; endpoints make larger ones smaller themselves
FRAME_SIDE = 1280  # pixels, of a frame of a video
STRIP = 256  # rows of pixels at a time
ORIENTATION = 0x0112  # of EXIF
BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2}  # a pixel; others take up to four
MIRROR, UPSIDE_DOWN, LEFT, HALF, RIGHT, DIAGONAL, ANTI = 0, 1, 2, 3, 4, 5, 6  # Image.Transpose
EXIF_TURNS = {2: MIRROR, 3: HALF, 4: UPSIDE_DOWN, 5: DIAGONAL, 6: RIGHT, 7: ANTI, 8: LEFT}
MATRIX_TURNS: dict[tuple[int, ...], int] = {  # by the signs of (a, b, c, d)
    (-1, 0, 0, 1): MIRROR, (-1, 0, 0, -1): HALF, (1, 0, 0, -1): UPSIDE_DOWN, (0, 1, 1, 0): DIAGONAL,
    (0, 1, -1, 0): RIGHT, (0, -1, -1, 0): ANTI, (0, -1, 1, 0): LEFT,
}  # fmt: skip


def small(file: Image.Image, again: bool) -> Image.Image:
    """The current frame: decoded, made small, upright, in RGB. `again`: more frames are to come.
    Raises ToolError: it would take too much memory.
    """
    from PIL import Image

    file.draft("RGB", (MAX_SIDE, MAX_SIDE))  # a JPEG is never decoded larger than needed
    depth = BYTES.get(file.mode, 4)
    if again:  # an animation holds two canvases
        depth = 2 * (depth if file.format == "TIFF" else 4)
    if file.width * file.height * depth > MAX_DECODED_BYTES:
        size = f"{file.width} x {file.height} {file.format}"
        limit = MAX_DECODED_BYTES >> 20
        raise ToolError(say("tools/notes", "too_many_pixels", size=size, limit=limit))
    file.load()  # which turns a TIFF
    turn = EXIF_TURNS.get(file.getexif().get(ORIENTATION, 1))
    image = file.copy() if again else file
    if image.mode in ("1", "P") or image.mode.startswith("I;16"):
        image = _in_strips(image)
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    if image.mode in ("I", "F"):
        image = _scaled(image)
    if turn is not None:
        image = image.transpose(Image.Transpose(turn))
    if image.mode in ("RGBA", "LA", "PA"):
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image.getchannel("A"))
        return white
    return image.convert("RGB")


def _in_strips(image: Image.Image) -> Image.Image:
    """Pixels that cannot be averaged, as some that can, at up to twice MAX_SIDE: strip by strip,
    for they may take four times the memory.
    """
    from PIL import Image

    share = -(-max(image.size) // (2 * MAX_SIDE))
    size = -(-image.width // share), -(-image.height // share)
    whole = Image.new("RGBA" if image.mode == "P" else "L", size)
    for top in range(0, image.height, STRIP * share):
        bottom = min(top + STRIP * share, image.height)
        strip = image.crop((0, top, image.width, bottom))
        if image.mode.startswith("I;16"):
            strip = strip.convert("I").point(lambda v: v / 256)
        whole.paste(strip.convert(whole.mode).reduce(share), (0, top // share))
    return whole


def _scaled(image: Image.Image) -> Image.Image:
    """Whole or floating numbers as grey: the least one black, the greatest one white."""
    import numpy
    from PIL import Image

    values = numpy.asarray(image, numpy.float64)  # (height, width)
    numbers = values[numpy.isfinite(values)]
    least, greatest = (numbers.min(), numbers.max()) if numbers.size else (0.0, 0.0)
    least = least if least < greatest else 0.0
    grey = (values - least) / ((greatest - least) or 1.0) * 255
    return Image.fromarray(numpy.nan_to_num(grey).clip(0, 255).astype(numpy.uint8))


def upright(frame: Any) -> Image.Image:
    """A frame as a picture: made small before it is one, and turned as its header says."""
    from PIL import Image

    matrix, share = _matrix(frame), FRAME_SIDE / max(frame.width, frame.height)
    if share < 1:
        width, height = (max(1, round(side * share)) for side in (frame.width, frame.height))
        frame = frame.reformat(width, height, "rgb24", interpolation="BICUBIC")
    picture: Image.Image = frame.to_image()
    turn = MATRIX_TURNS.get(tuple((v > 0) - (v < 0) for v in matrix))
    return picture if turn is None else picture.transpose(Image.Transpose(turn))


def _matrix(frame: Any) -> tuple[int, ...]:
    """Where the header of a file says that a frame is shown: (a, b, c, d) of x' = ax + cy and
    y' = bx + dy, y downwards (ISO/IEC 14496-12, 6.2.2).
    """
    data = frame.side_data.get("DISPLAYMATRIX")
    if data is None:
        return 1, 0, 0, 1
    a, b, _, c, d, *_ = struct.unpack("=9i", bytes(data))
    return a, b, c, d
