"""Pictures of every kind, odd ones and damaged ones: what a vision model is sent, what OCR reads."""

import base64
import io

import numpy
import pytest
from PIL import Image, ImageChops, ImageDraw, ImageFont, ImageStat, PngImagePlugin

from orchestra.kernel.vocabulary import ToolError
from orchestra.tools import media, pictures
from tests.conftest import EndpointError
from tests.scripted import Raw
from tests.tools.conftest import rapidocr
from tests.tools.media import drawn, read_damaged, saved


@pytest.mark.parametrize(("kind", "sent"), [("PNG", "png"), ("GIF", "png"), ("JPEG", "jpeg"), ("WEBP", "jpeg")])  # fmt: skip
def test_a_vision_model_gets_the_query_and_the_picture(kind, sent, bench, tmp_path):
    path = saved(tmp_path / "a.png", "Gate 12", format=kind)
    tools = bench(("image", path), says=f"<think>{'a castle? ' * 2000}</think>Prague")
    assert tools.analyse(query="Which city?") == "Prague"
    text, picture = tools.model.requests[0]["messages"][0]["content"]
    head, data = picture["image_url"]["url"].split(",")
    assert "Which city?" in text["text"] and head == f"data:image/{sent};base64"
    shown = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")
    assert ImageStat.Stat(ImageChops.difference(shown, drawn("Gate 12"))).mean[0] < 1


def test_an_animation_is_sent_by_frame(tmp_path, bench):
    path = saved(tmp_path / "a.gif", *map(drawn, "abcdefghijklmnopqrst"))
    (tools := bench(("image", path), says="seen")).analyse()
    places = [p["text"] for p in tools.model.requests[0]["messages"][0]["content"][1::2]]
    assert len(places) == 8 and places[0] == "1 of 20" and places[-1] == "20 of 20"


def test_metadata_is_not_sent(tmp_path):
    info = PngImagePlugin.PngInfo()
    info.add(b"juNk", bytes(5000))
    path = saved(tmp_path / "a.png", drawn("x", (40, 20)), pnginfo=info)
    ((_, url),) = pictures.data_urls(path)
    assert len(url) < 2000


@rapidocr
def test_a_document_of_several_pages_is_read_by_page(tmp_path, bench):
    path = saved(tmp_path / "a.tiff", "Apple", drawn("Banana"))
    seen = bench(("image", path)).analyse()
    assert seen.index("(1 of 2)") < seen.index("Apple") < seen.index("Banana")


@rapidocr
def test_a_narrow_picture_is_read_and_one_of_a_pixel_is_empty():
    assert pictures.read_text(Image.new("RGB", (1, 2048), "white")) == []
    assert "Salt" in pictures.read_text(drawn("Salt", (1600, 100)))


def only(path):
    """The picture of a file that has one."""
    (shown,) = pictures.pictures(path)
    return shown.image


def row(*values: float, kind: str = "float32") -> Image.Image:
    return Image.fromarray(numpy.array([values], kind))


SHOWN = {  # a picture, how it is saved, and the grey of its last row
    **{mode: ("a.png", Image.new(mode, (3, 1), "white"), {}, [255] * 3) for mode in ("1", "L", "P", "RGBA", "LA")},
    "CMYK": ("a.jpg", Image.new("CMYK", (8, 8)), {}, [255] * 8),
    "16_bits": ("a.png", Image.new("I;16", (2, 600), 40000), {}, [156] * 2),
    "16_bits_in_the_other_order": ("a.tif", Image.new("I;16B", (2, 600), 40000), {}, [156] * 2),
    "transparent_on_white": ("a.png", Image.new("P", (2, 2), 0), {"transparency": 0}, [255] * 2),
    "whole_numbers": ("a.tif", row(-500, 0, 500, kind="int32"), {}, [0, 127, 255]),
    "floating_numbers": ("a.tif", row(0.25, 0.5, 0.75), {}, [0, 127, 255]),
}  # fmt: skip


@pytest.mark.parametrize("kind", SHOWN)
def test_every_kind_of_pixel_becomes_rgb_of_its_brightness(kind, tmp_path):
    name, source, how, grey = SHOWN[kind]
    shown = only(saved(tmp_path / name, source, **how))
    pixels = [shown.getpixel((n, shown.height - 1)) for n in range(shown.width)]
    assert pixels == [(value, value, value) for value in grey]


@pytest.mark.parametrize("mode", ["1", "P"])
def test_a_large_page_of_black_and_white_is_shrunk_to_grey(mode, tmp_path):
    """Else thin lines get lost."""
    rows = numpy.tile(numpy.uint8([[0], [255]]), (2250, 2250))
    picture = only(saved(tmp_path / "a.png", Image.fromarray(rows).convert(mode)))
    low, high = picture.convert("L").crop((8, 8, 1000, 2040)).getextrema()
    assert picture.size == (1024, 2048) and low > 100 and high < 160


@pytest.mark.parametrize(("name", "pages"), [("a.png", 1), ("a.tif", 2)])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_turned_upright(orientation, name, pages, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = orientation
    shown = Image.new("RGB", (80, 40), "white")
    shown.paste("black", (0, 0, 40, 20))
    back = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # of Image.Transpose: what undoes it
    source = shown.transpose(Image.Transpose(back[orientation])) if orientation > 1 else shown
    upright = list(pictures.pictures(saved(tmp_path / name, *[source] * pages, exif=exif)))
    assert [(p.image.size, p.image.tobytes()) for p in upright] == [((80, 40), shown.tobytes())] * pages  # fmt: skip


@pytest.mark.parametrize(("name", "size"), [("a.jpg", (8000, 6000)), ("a.png", (2500, 1250))])
def test_a_large_picture_is_shrunk_and_a_larger_one_refused(name, size, tmp_path, monkeypatch):
    path = saved(tmp_path / name, drawn("x", size))
    monkeypatch.setattr(media, "MAX_PIXELS", 15 << 20)  # the JPEG has 48 million if whole
    assert only(path).size == (2048, 2048 * size[1] // size[0])
    monkeypatch.setattr(media, "MAX_PIXELS", 2500 * 1250 - 1)
    with pytest.raises(ToolError, match="too large to be opened"):
        pictures.data_urls(path)


# ---- long pictures -------------------------------------------------------------------------------


def numbered(width, height):
    """A picture in which each pixel has the number of its place on the long side."""
    along = numpy.arange(max(width, height))
    grid = numpy.stack([along % 256, along // 256, 0 * along], axis=1).astype(numpy.uint8)
    if height > width:
        return Image.fromarray(numpy.repeat(grid[:, None], width, axis=1))
    return Image.fromarray(numpy.repeat(grid[None], height, axis=0))


@pytest.mark.parametrize(("size", "parts"), [
    ((400, 8000), 5), ((8000, 400), 5), ((30, 2049), 2), ((760, 2048), 1), ((780, 2080), 1), ((700, 2080), 2), ((2, 20_000), 12),
])  # fmt: skip
def test_the_parts_of_a_long_picture_show_each_of_its_rows_as_it_is(size, parts, tmp_path):
    shown = list(pictures.pictures(saved(tmp_path / "a.png", numbered(*size))))
    assert len(shown) == parts and max(max(p.image.size) for p in shown) <= pictures.MAX_SIDE
    if parts > 1:
        rows, axis = [], int(size[1] > size[0])
        for picture in shown:
            line = numpy.asarray(picture.image).take(0, axis=axis).astype(int)
            numbers = (line[:, 0] + 256 * line[:, 1]).tolist()
            assert rows[len(rows) - picture.overlap :] == numbers[: picture.overlap]
            rows += numbers[picture.overlap :]
        assert rows == [*range(max(size))] and shown[1].overlap >= 250


def test_a_wide_panorama_is_cut_into_parts_as_large_as_can_be_sent(tmp_path):
    shown = list(pictures.pictures(saved(tmp_path / "a.png", numbered(9000, 3000))))
    assert [p.image.height for p in shown] == [2048] * 4
    assert min(p.overlap for p in shown[1:]) >= 255


def test_what_is_left_out_of_a_very_long_picture_is_said(tmp_path, bench):
    tools = bench(("image", saved(tmp_path / "a.png", numbered(8, 60_000))), says="seen")
    seen = tools.analyse()
    assert tools.analyse("replay") == seen
    asked, *rest = tools.model.requests[0]["messages"][0]["content"]
    places = [part["text"] for part in rest[::2]]
    assert "count what two parts show only once" in asked["text"] and len(places) == 24
    assert places[0] == "part 1 of 34"
    assert places[-1] == "part 24 of 34 (the parts after it are left out)"
    assert "a.png is too long for one piece" in seen and places[-1] in seen


def test_long_pages_are_cut_one_by_one(tmp_path):
    path = saved(tmp_path / "a.tif", drawn("a"), drawn("b", (300, 3000)))
    places = [picture.place for picture in pictures.pictures(path)]
    assert places == ["1 of 2", "2 of 2, part 1 of 2", "2 of 2, part 2 of 2"]


def test_a_line_that_two_parts_show_is_in_one_of_them():
    def lines(*texts_at):
        return [pictures.Line(text, at - 10, at + 10) for text, at in texts_at]

    first = lines(("Salt", 1000), ("4.50", 1100), ("4.50", 1150), ("Rye", 1200), ("cu", 1248))
    second = lines(("cut", 4), ("4.50", 101), ("4.50", 149), ("Rye", 200), ("Oil", 250))
    once = pictures._once(first, second, 1000, 256)
    texts = [[line.text for line in part] for part in once]
    assert texts == [["Salt", "4.50"], ["4.50", "Rye", "Oil"]]


@rapidocr
@pytest.mark.parametrize("size", [(400, 8000), (8000, 400)])
def test_each_price_of_a_long_picture_is_read_once(size, tmp_path):
    picture, font = Image.new("RGB", size, "white"), ImageFont.load_default(20)
    width, height = size
    places = [(x, y) for x in range(20, width - 80, 200) for y in range(8, height - 30, 40)]
    prices = [f"{n * 37 % 90 + 10}.{n * 61 % 90 + 10}" for n in range(len(places))]
    for place, price in zip(places, prices, strict=True):
        ImageDraw.Draw(picture).text(place, price, fill="black", font=font)
    pages = pictures.read_pages(saved(tmp_path / "a.png", picture))
    read = [line for _, lines in pages for line in lines]
    assert sorted(read) == sorted(prices)


@pytest.mark.parametrize("kind", ["EPS", "PDF", "ICNS"])
def test_an_uncommon_picture_is_an_observation(kind, tmp_path):
    """EPS is a program, which Pillow would run in Ghostscript."""
    path = saved(tmp_path / "a.png", drawn("x", (64, 64)), format=kind)
    with pytest.raises(ToolError, match="cannot identify"):
        pictures.data_urls(path)


KINDS = ["GIF", "TIFF", "PNG", "WEBP", "JPEG", "BMP", "AVIF", "JPEG2000", "ICO", "TGA", "PPM", "HEIF"]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_of_every_kind_is_read_and_damage_is_an_observation(kind, tmp_path, recwarn):
    if kind == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    pages = [drawn(text, (90, 60)) for text in "12"][: 2 if kind in KINDS[:4] else 1]
    path = saved(tmp_path / "a.bin", *pages, format=kind)
    assert media.check([("image", path)]) == [("image", path)]
    shown = [picture.image.getpixel((1, 1)) for picture in pictures.pictures(path)]
    assert shown == [pytest.approx((255, 255, 255), abs=3)] * len(pages)
    assert read_damaged(path, 100, pictures.data_urls) == {True, False}


@pytest.mark.parametrize("status", [400, 404, 500])
def test_an_endpoint_that_refuses_a_picture_is_an_error_that_says_so(status, bench, tmp_path):
    told = Raw(status, {"error": {"message": "image input is not supported"}})
    tools = bench(("image", saved(tmp_path / "a.png", "Gate 12")), says=told)
    for mode in ("record", "replay"):
        with pytest.raises(EndpointError, match=f"status {status}: image input is not supported"):
            tools.analyse(mode)
    assert len(tools.model.requests) == 1


def test_the_library_reads_a_picture_where_the_pool_says_so(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "read_pages", lambda path: [["", ["Gate 12"]]])
    tools = bench(("image", saved(tmp_path / "a.png", "Gate 12")))
    assert "Gate 12" in tools.analyse() and tools.analyse("replay") == tools.analyse("replay")
