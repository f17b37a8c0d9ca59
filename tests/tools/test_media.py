from __future__ import annotations

import base64
import io
import random
import threading
import types
import wave

import av
import numpy
import pytest
from PIL import GifImagePlugin, Image, ImageDraw, PngImagePlugin, TiffImagePlugin, features

from orchestra import media
from orchestra.vocabulary import ConfigError
from tests.tools.conftest import whisper
from tests.tools.media import drawn, empty_film, film, scenes, speech, toned, truncated, turned
from tools import ToolError, audio, frames, image, pixels, sound, video
from tools.decoding import RATE

NONE = types.SimpleNamespace(txts=None)  # what RapidOCR gives where nothing is written


def sent(endpoint) -> list[dict]:
    """The parts of the last request that are no text."""
    return [p for p in endpoint.requests[-1]["messages"][-1]["content"] if p["type"] != "text"]


def opened(part) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(part["image_url"]["url"].partition(",")[2])))


# ---- pictures


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"])
def test_text_in_a_picture_of_each_kind_is_read(kind, tmp_path, bench):
    pytest.importorskip("rapidocr")
    path = tmp_path / f"gate.{kind.lower()}"
    drawn("Gate 12").save(path)
    observation = bench(("image", path)).use("ImageAnalysisAction", query="?", image_path=path.name)
    assert "Gate 12" in observation


def test_a_heic_picture_is_read_where_pillow_heif_is_installed(tmp_path):
    heif = pytest.importorskip("pillow_heif")
    path = tmp_path / "gate.heic"
    heif.register_heif_opener()
    drawn("Gate 12").save(path)
    assert [p.image.size for p in image.pictures(path)] == [(640, 360)]


def test_a_picture_is_turned_upright(tmp_path):
    path = tmp_path / "a.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright
    drawn("x", (400, 200)).save(path, exif=exif)
    assert next(image.pictures(path)).image.size == (200, 400)


def test_a_large_picture_is_sent_small(tmp_path, bench, endpoint):
    path = tmp_path / "a.png"
    drawn("x", (5000, 2500)).save(path)
    model = endpoint(lambda _: "seen")
    bench(("image", path), endpoint=model).use("ImageAnalysisAction", query="?", image_path="a.png")
    assert opened(sent(model)[0]).size == (2048, 1024)


def test_a_wrong_name_does_not_set_the_type(tmp_path):
    path = tmp_path / "a.png"
    drawn("x").save(path, "JPEG")
    assert next(image.data_urls(path))[1].startswith("data:image/jpeg;base64,")


def test_a_small_picture_is_sent_as_it_is(tmp_path):
    path = tmp_path / "a.webp"
    drawn("x").save(path)
    url = next(image.data_urls(path))[1]
    assert base64.b64decode(url.partition(",")[2]) == path.read_bytes()


def test_an_animation_is_sent_by_frame(tmp_path, bench, endpoint):
    path = tmp_path / "a.gif"
    first, *rest = (drawn(f"Frame {n}") for n in range(20))
    first.save(path, save_all=True, append_images=rest)
    model = endpoint(lambda _: "seen")
    bench(("image", path), endpoint=model).use("ImageAnalysisAction", query="?", image_path="a.gif")
    texts = [p["text"] for p in model.requests[0]["messages"][-1]["content"] if p["type"] == "text"]
    assert len(sent(model)) == 8 and texts[1] == "1 of 20" and texts[-1] == "20 of 20"


def test_a_document_of_several_pages_is_read_by_page(tmp_path, bench):
    pytest.importorskip("rapidocr")
    path = tmp_path / "a.tiff"
    drawn("Apple").save(path, save_all=True, append_images=[drawn("Banana")])
    observation = bench(("image", path)).use("ImageAnalysisAction", query="?", image_path="a.tiff")
    assert observation.index("(1 of 2)") < observation.index("Apple") < observation.index("Banana")


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "LA", "CMYK", "I;16"])
def test_every_kind_of_pixel_becomes_rgb(mode, tmp_path):
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    source = Image.new("I;16", (60, 40), 40000) if mode == "I;16" else drawn("x", (60, 40), mode)
    source.save(path)
    assert [p.image.mode for p in image.pictures(path)] == ["RGB"]


def test_a_picture_that_is_all_edge_is_read_as_a_small_one(monkeypatch):
    sizes = []
    monkeypatch.setattr(image, "_ocr", lambda _: lambda pixels: sizes.append(pixels.shape) or NONE)
    image.read_text(Image.new("RGB", (1, 2048)))
    assert sizes == [(2048, 512, 3)]  # the engine enlarges the short side to 736


@pytest.mark.parametrize(
    ("size", "kind"), [((2048, 2048), "page"), ((1536, 1536), "picture"), ((600, 2048), "picture")]
)
def test_the_detector_looks_at_a_large_page_made_small(size, kind, monkeypatch):
    kinds = []
    monkeypatch.setattr(image, "_ocr", lambda kind: kinds.append(kind) or (lambda _: NONE))
    image.read_text(Image.new("RGB", size))
    assert kinds == [kind]


def test_a_few_lines_on_a_large_page_are_read():
    pytest.importorskip("rapidocr")
    page = Image.new("RGB", (2048, 2048), "white")
    words = ["Salt costs four crowns", "The train leaves at nine", "Platform seven of twelve"]
    for n, text in enumerate(words):
        ImageDraw.Draw(page).text((100 + 600 * n, 700 * n + 50), text, fill="black", font_size=20)
    assert image.read_text(page) == words


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "gif", "tiff"])
def test_a_truncated_picture_is_an_observation(suffix, tmp_path, bench, endpoint):
    path = tmp_path / f"a.{suffix}"
    drawn("x").save(path)
    short = truncated(path)
    tools = bench(("image", short), endpoint=endpoint(lambda _: "seen"))
    with pytest.raises(ToolError, match="can not be read"):
        tools.use("ImageAnalysisAction", query="?", image_path=short.name)


def test_a_picture_that_would_fill_the_memory_is_an_observation(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    drawn("x").save(path)
    monkeypatch.setattr(pixels, "MAX_DECODED_BYTES", 100_000)
    with pytest.raises(ToolError, match="too large to be opened"):
        list(image.pictures(path))


def test_16_bits_a_pixel_keep_their_brightness(tmp_path):
    Image.new("I;16", (60, 40), 40000).save(tmp_path / "a.png")
    assert next(image.pictures(tmp_path / "a.png")).image.getpixel((9, 9)) == (156, 156, 156)


def test_what_is_transparent_is_shown_on_white(tmp_path):
    source = Image.new("P", (60, 40), 3)
    source.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255])
    source.save(tmp_path / "a.png", transparency=3)
    assert next(image.pictures(tmp_path / "a.png")).image.getpixel((9, 9)) == (255, 255, 255)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_turned_upright(orientation, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = orientation
    shown = Image.new("RGB", (80, 40), "white")
    shown.paste("black", (0, 0, 40, 20))
    back = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # of Image.Transpose: what undoes it
    source = shown.transpose(Image.Transpose(back[orientation])) if orientation > 1 else shown
    source.save(tmp_path / "a.png", exif=exif)
    upright = next(image.pictures(tmp_path / "a.png")).image
    assert upright.size == (80, 40) and upright.tobytes() == shown.tobytes()


def test_a_large_animation_is_an_observation(tmp_path, monkeypatch):
    path = tmp_path / "a.gif"
    drawn("1").save(path, save_all=True, append_images=[drawn("2")])
    monkeypatch.setattr(pixels, "MAX_DECODED_BYTES", 1_000_000)  # two canvases take more
    with pytest.raises(ToolError, match="too large to be opened"):
        list(image.pictures(path))


@pytest.mark.parametrize("kind", ["EPS", "PDF", "ICNS"])
def test_only_common_formats_are_parsed(kind, tmp_path):
    """EPS is a program that Pillow would have Ghostscript run."""
    drawn("x", (64, 64)).save(tmp_path / "a.png", kind)
    with pytest.raises(ToolError, match="cannot identify"):
        list(image.pictures(tmp_path / "a.png"))


DAMAGED = ["GIF", "TIFF", "PNG", "WEBP", "JPEG", "BMP", "AVIF", "JPEG2000", "ICO", "TGA", "PPM"]


@pytest.mark.parametrize("kind", DAMAGED)
def test_no_damage_to_a_picture_is_more_than_an_observation(kind, tmp_path, recwarn):
    """Bytes are changed by chance, with a fixed seed."""
    chance, path, buffer = random.Random(kind), tmp_path / "a.bin", io.BytesIO()
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("Pillow is built without AVIF")
    more = {"save_all": True, "append_images": [drawn("2", (90, 60))]}
    drawn("1", (90, 60)).save(buffer, kind, **(more if kind in DAMAGED[:4] else {}))
    outcomes = set()
    for _ in range(150):
        data = bytearray(buffer.getvalue())
        for _ in range(chance.choice([1, 2, 8])):
            data[chance.randrange(min(len(data), chance.choice([64, 1000])))] = chance.randrange(
                256
            )
        path.write_bytes(data[: chance.randrange(len(data))] if chance.random() < 0.3 else data)
        try:
            outcomes.add(len(list(image.data_urls(path))) > 0)
        except ToolError:
            outcomes.add(False)
    assert outcomes == {True, False}


def test_a_large_jpeg_is_decoded_small(tmp_path, monkeypatch):
    path = tmp_path / "a.jpg"
    drawn("x", (8000, 6000)).save(path)
    monkeypatch.setattr(pixels, "MAX_DECODED_BYTES", 60 << 20)  # 183 MiB if decoded whole
    assert next(image.pictures(path)).image.size == (2048, 1536)


@pytest.mark.parametrize("kind", ["GIF", "TIFF"])
def test_of_very_many_pages_the_first_are_counted_and_that_is_told(kind, tmp_path, monkeypatch):
    path, seeks = tmp_path / "a.bin", []
    pages = [Image.new("L", (8, 8), n) for n in range(60)]
    pages[0].save(path, kind, save_all=True, append_images=pages[1:])
    monkeypatch.setattr(image, "MOST_PAGES", 20)
    for parser in (GifImagePlugin.GifImageFile, TiffImagePlugin.TiffImageFile):
        seek = parser.seek
        monkeypatch.setattr(parser, "seek", lambda s, n, f=seek: seeks.append(n) or f(s, n))
    places = [p.place for p in image.pictures(path)]
    assert places[0] == "1 of more than 20" and places[-1] == "20 of more than 20"
    assert len(places) == 8 and max(seeks) == 20


def test_what_a_file_holds_beside_its_pixels_is_not_sent(tmp_path, monkeypatch):
    path, info = tmp_path / "a.png", PngImagePlugin.PngInfo()
    info.add(b"juNk", bytes(5000))
    drawn("x", (40, 20)).save(path, pnginfo=info)
    monkeypatch.setattr(image, "OWN_BYTES", 4000)
    kind, data = next(image.data_urls(path))[1].split(",")
    assert kind == "data:image/png;base64" and len(data) < 2000


def numbers(path, rows, kind):
    Image.fromarray(numpy.array(rows, kind)).save(path)
    return [p.image.getpixel((n, 0))[0] for p in image.pictures(path) for n in range(len(rows[0]))]


def test_whole_and_floating_numbers_are_shown_from_the_least_to_the_greatest(tmp_path):
    assert numbers(tmp_path / "a.tif", [[-500, 0, 500]], "int32") == [0, 127, 255]
    assert numbers(tmp_path / "a.tif", [[0.25, 0.5, 0.75]], "float32") == [0, 127, 255]
    inf, nan = float("inf"), float("nan")
    assert numbers(tmp_path / "a.tif", [[-inf, 1, 2, inf, nan]], "float32") == [0, 0, 255, 255, 0]
    assert numbers(tmp_path / "a.tif", [[0.7, 0.7]], "float32") == [255, 255]
    assert numbers(tmp_path / "a.tif", [[nan, nan]], "float32") == [0, 0]


def test_16_bits_in_the_other_order_are_read(tmp_path):
    path = tmp_path / "a.tif"
    Image.new("I;16B", (60, 600), 40000).save(path)
    assert {p.image.getpixel((9, 599)) for p in image.pictures(path)} == {(156, 156, 156)}


@pytest.mark.parametrize("mode", ["1", "P"])
def test_a_large_page_of_black_and_white_becomes_grey_when_it_is_made_small(mode, tmp_path):
    """Else thin lines get lost."""
    page = Image.new("L", (4500, 4500), "white")
    for at in range(0, 4500, 2):
        ImageDraw.Draw(page).line((0, at, 4500, at))
    page.convert(mode).save(tmp_path / "a.png")
    (picture,) = image.pictures(tmp_path / "a.png")
    assert picture.image.size == (2048, 2048)
    low, high = picture.image.convert("L").crop((8, 8, 2040, 2040)).getextrema()
    assert low > 100 and high < 160


def test_the_pages_of_a_document_are_turned_upright(tmp_path):
    path, tags = tmp_path / "a.tif", TiffImagePlugin.ImageFileDirectory_v2()
    tags[0x0112] = 6
    pages = [drawn(t, (400, 200), "1") for t in "ab"]
    pages[0].save(path, save_all=True, append_images=pages[1:], tiffinfo=tags)
    assert [p.image.size for p in image.pictures(path)] == [(200, 400)] * 2


# ---- sound


def tone(seconds: float, level: int = 8000) -> numpy.ndarray:
    samples = numpy.sin(numpy.arange(int(seconds * RATE)) / 10) * level
    return samples.astype(numpy.int16)


def test_a_long_sound_is_cut_where_it_is_quiet(tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(sound.as_wav(numpy.concatenate([tone(8.5), tone(0.5, 0), tone(8)])))
    first, second = sound.parts(path, 10)
    assert 8.5 < second.start_s < 9 and len(first.samples) + len(second.samples) == 17 * RATE


def test_the_parts_of_a_sound_are_never_in_memory_together(tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(sound.as_wav(numpy.tile(tone(10), 60)))
    sizes = [len(p.samples) / RATE for p in sound.parts(path, 30)]
    assert max(sizes) <= 30 and round(sum(sizes)) == 600


@whisper
@pytest.mark.parametrize("suffix", ["wav", "mp3", "ogg", "flac", "m4a", "webm"])
def test_speech_of_each_kind_is_heard(suffix, tmp_path, bench):
    path, wav = tmp_path / f"a.{suffix}", speech(tmp_path / "speech.wav")
    if suffix != "wav":
        codec = {"ogg": "libopus", "m4a": "aac", "webm": "libopus", "mp3": "mp3"}.get(
            suffix, suffix
        )
        with av.open(str(wav)) as source, av.open(str(path), "w") as target:
            stream = target.add_stream(codec, rate=48000, layout="stereo")
            resampler = av.AudioResampler(
                stream.format, stream.layout, 48000, stream.frame_size or None
            )
            for frame in [*source.decode(audio=0), None]:
                for piece in resampler.resample(frame):
                    target.mux(stream.encode(piece))
            target.mux(stream.encode(None))
    else:
        path = wav
    observation = bench(("audio", path)).use("ParseAudioAction", query="?", audio_path=path.name)
    assert "[0:00]" in observation and "platform" in observation.lower()


def test_a_long_sound_goes_to_the_endpoint_in_parts_with_times(
    tmp_path, bench, endpoint, monkeypatch
):
    path = tmp_path / "a.wav"
    path.write_bytes(sound.as_wav(tone(50)))
    monkeypatch.setattr(audio, "ENDPOINT_S", 20.0)
    model = endpoint(lambda _: "a tone")
    tools = bench(("audio", path), endpoint=model)
    observation = tools.use("ParseAudioAction", query="?", audio_path="a.wav")
    assert observation.count("a tone") == len(model.requests) == 3 and "[0:" in observation
    assert tools.use("ParseAudioAction", "replay", query="?", audio_path="a.wav") == observation


def test_silence_is_not_sent(tmp_path, bench, endpoint):
    path = tmp_path / "a.wav"
    path.write_bytes(sound.as_wav(tone(3, 0)))
    model = endpoint(lambda _: "thanks for watching")
    tools = bench(("audio", path), endpoint=model)
    observation = tools.use("ParseAudioAction", query="?", audio_path="a.wav")
    assert "nothing is said" in observation and not model.requests


FORMS = {
    "8k.wav": ("pcm_s16le", 8000, "mono"), "telephone.wav": ("pcm_mulaw", 8000, "mono"), "studio.wav": ("pcm_s24le", 96000, "stereo"),
    "seven_and_one.flac": ("flac", 48000, "7.1"), "disc.mp3": ("libmp3lame", 44100, "stereo"), "broadcast.ts": ("mp2", 48000, "stereo"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_sound_becomes_16_khz_mono(name, tmp_path):
    (part,) = sound.parts(toned(tmp_path / name, *FORMS[name], seconds=2), 30)
    assert 2 <= len(part.samples) / RATE < 2.1 and 7000 < part.samples.max() < 10500


def test_a_wrong_name_does_not_set_the_kind_of_a_sound(tmp_path):
    path = toned(tmp_path / "a.flac", "flac", seconds=2).rename(tmp_path / "a.mp3")
    assert sum(len(p.samples) for p in sound.parts(path, 30)) == 2 * RATE


@pytest.mark.parametrize("seconds", [0, 0.001, 0.09])
def test_a_sound_of_no_length_says_nothing(seconds, tmp_path, bench, endpoint):
    path = tmp_path / "a.wav"
    path.write_bytes(sound.as_wav(tone(seconds)))
    model = endpoint(lambda _: "thanks for watching")
    tools = bench(("audio", path), endpoint=model)
    observation = tools.use("ParseAudioAction", query="?", audio_path="a.wav")
    assert "nothing is said" in observation and not model.requests


@pytest.mark.parametrize("name", ["a.ts", "a.mkv", "a.m4a"])
@pytest.mark.parametrize("offset_s", [0, 5000])
def test_a_part_of_a_sound_is_found_wherever_its_clock_starts(name, offset_s, tmp_path):
    """Recordings of broadcasts do not start at 0."""
    codec = {"a.ts": "mp2", "a.mkv": "libopus", "a.m4a": "aac"}[name]
    path = toned(tmp_path / name, codec, 48000, "stereo", seconds=9, offset_s=offset_s)
    samples = sum(len(p.samples) for p in sound.parts(path, 30, 2.0, 5.0))
    assert 2.9 < samples / RATE < 3.2


def test_what_comes_before_the_damage_is_heard(tmp_path):
    path = toned(tmp_path / "a.flac", "flac", seconds=4.6)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + b"\xff" * (len(data) // 2))
    heard_s = sum(len(p.samples) for p in sound.parts(path, 30)) / RATE
    assert 1.5 < heard_s < 4.6


LISTS = {
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{other}\n#EXT-X-ENDLIST\n",
    "concat": "ffconcat version 1.0\nfile {name}\n",
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
}


@pytest.mark.parametrize("suffix", ["wav", "m3u8", "ffconcat", "sdp"])
@pytest.mark.parametrize("kind", LISTS)
def test_a_list_of_other_files_or_urls_is_not_followed(kind, suffix, tmp_path):
    other = toned(tmp_path / "private.mp3", "libmp3lame", seconds=2)
    path = tmp_path / f"a.{suffix}"
    path.write_text(LISTS[kind].format(other=f"file://{other}", name=other.name))
    with pytest.raises(ToolError):
        list(sound.parts(path, 30))


@pytest.mark.parametrize(
    ("name", "codec", "form"),
    [
        ("a.mp3", "libmp3lame", (22050, "mono")),
        ("a.mp3", "libmp3lame", (44100, "mono")),
        ("a.aac", "aac", (24000, "mono")),
    ],
)
def test_sounds_that_were_joined_are_heard_to_the_end(name, codec, form, tmp_path):
    one = toned(tmp_path / name, codec, 44100, "stereo", seconds=3).read_bytes()
    two = toned(tmp_path / name, codec, *form, seconds=3).read_bytes()
    (tmp_path / name).write_bytes(one + two)
    (part,) = sound.parts(tmp_path / name, 30)
    assert 5.9 < len(part.samples) / RATE < 6.3 and not part.broken
    assert part.samples[int(5.5 * RATE) :].max() > 7000


@pytest.mark.parametrize("channels", [9, 11, 13, 32, 64])
@pytest.mark.parametrize(("width", "loud"), [(1, 100), (2, 100 << 8), (4, 100 << 24)])
def test_the_mean_of_many_channels_is_heard(channels, width, loud, tmp_path):
    quiet = 128 if width == 1 else 0
    row = [quiet + loud] * (channels - 1) + [quiet]
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((channels, width, RATE, 0, "NONE", ""))
        file.writeframes(numpy.array(row * RATE, f"{'u' if width == 1 else 'i'}{width}"))
    (part,) = sound.parts(tmp_path / "a.wav", 30)
    assert part.samples[100:-100] == pytest.approx(25600 * (channels - 1) / channels, rel=0.01)


def test_a_sound_of_very_few_samples_a_second_is_not_stretched(tmp_path):
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, 2, 1, 0, "NONE", ""))
        file.writeframes(bytes(2000))
    with pytest.raises(ToolError, match="can not be read: 1 samples a second"):
        list(sound.parts(tmp_path / "a.wav", 30))


def test_a_sound_file_without_sound_is_an_observation(tmp_path):
    path = tmp_path / "a.wav"
    path.write_text("no sound at all")
    with pytest.raises(ToolError, match="can not be read"):
        list(sound.parts(path, 10))


# ---- video

FILMS = {"mp4": ("libx264", "aac"), "webm": ("libvpx", "libopus"), "mkv": ("mpeg4", "libmp3lame")}


@pytest.mark.parametrize("suffix", FILMS)
def test_what_a_video_shows_is_read_with_its_times(suffix, tmp_path, bench):
    pytest.importorskip("rapidocr")
    path = film(tmp_path / f"a.{suffix}", FILMS[suffix][0])
    observation = bench(("video", path)).use("VideoAnalysisAction", query="?", video_path=path.name)
    assert "[0:00-0:01] Gate 1\n[0:02-0:03] Gate 2" in observation
    assert "has no sound" in observation


def test_two_frames_are_read_side_by_side_and_no_third_waits_in_memory(monkeypatch):
    pair, decoded, read = threading.Barrier(2, timeout=5), [], []

    def shots():
        for n in range(6):
            decoded.append(n)
            assert len(decoded) - len(read) <= 3  # one more is decoded meanwhile
            yield float(n), Image.new("RGB", (8, 8), (n * 40, 0, 0))

    def read_text(picture, quick):
        pair.wait()
        read.append(picture)
        return [str(picture.getpixel((0, 0))[0])]

    monkeypatch.setattr(video, "frames", lambda *_: shots())
    monkeypatch.setattr(image, "read_text", read_text)
    assert [text for _, text in video.read_frames(None)] == ["0", "40", "80", "120", "160", "200"]


@whisper
@pytest.mark.parametrize("suffix", FILMS)
def test_what_a_video_says_stands_beside_what_it_shows(suffix, tmp_path, bench):
    pytest.importorskip("rapidocr")
    path = film(tmp_path / f"a.{suffix}", *FILMS[suffix])
    tools = bench(("video", path))
    observation = tools.use("VideoAnalysisAction", query="?", video_path=path.name)
    assert "Gate 2" in observation and "platform" in observation.lower()
    assert (
        tools.use("VideoAnalysisAction", "replay", query="?", video_path=path.name) == observation
    )


def test_the_model_is_told_when_each_frame_is(tmp_path, bench, endpoint):
    path = film(tmp_path / "a.mp4", "libx264")
    model = endpoint(lambda _: "two gates")
    tools = bench(("video", path), endpoint=model)
    asked = {
        "query": "?",
        "video_path": "a.mp4",
        "max_frames": 99,
        "start_time": 1,
        "end_time": "0:03",
    }
    observation = tools.use("VideoAnalysisAction", **asked, analyze_audio=False)
    texts = [p["text"] for p in model.requests[0]["messages"][-1]["content"] if p["type"] == "text"]
    assert texts[1] == "0:01" and texts[-1] == "0:02" and len(sent(model)) <= 16
    assert "two gates" in observation


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        ("9", "", "behind its end"),
        ("3", "2", "empty"),
        ("soon", "", "no time"),
        ("1:-30", "", "no time"),
        ("nan", "", "no time"),
    ],
)
def test_a_time_that_does_not_fit_is_an_observation(start, end, words, tmp_path, bench):
    path = film(tmp_path / "a.mp4", "libx264")
    asked = {"query": "?", "video_path": "a.mp4", "start_time": start, "end_time": end}
    with pytest.raises(ToolError, match=words):
        bench(("video", path)).use("VideoAnalysisAction", **asked)


@pytest.mark.parametrize("suffix", FILMS)
def test_a_truncated_video_is_read_as_far_as_it_goes_or_is_an_observation(suffix, tmp_path):
    short = truncated(film(tmp_path / f"a.{suffix}", FILMS[suffix][0]), 0.6)
    try:
        assert list(frames.frames(short, 4, 0.0, None))
    except ToolError as failure:
        assert "can not be read" in str(failure)


@pytest.mark.parametrize(("suffix", "codec"), [("mp4", "libx264"), ("webm", "libvpx"), ("mkv", "mpeg4")])  # fmt: skip
def test_short_scenes_are_seen_at_their_beginning(suffix, codec, tmp_path):
    path = scenes(tmp_path / f"a.{suffix}", 7.3, 1.1, 20, 1.3, 10, codec=codec)
    rows = [
        (round(t, 1), picture.getpixel((9, 9))) for t, picture in frames.frames(path, 8, 0, None)
    ]
    colours = [tuple(v > 64 for v in colour) for _, colour in rows]
    assert len(rows) <= 8 and 7.3 in dict(rows) and any(28.4 <= t < 29.7 for t, _ in rows)
    assert (True, True, True) in colours and (True, True, False) in colours


def test_the_times_of_scenes_are_told(tmp_path, bench, endpoint):
    path = scenes(tmp_path / "a.mp4", 7.3, 1.1, 20)
    model = endpoint(lambda _: "colours")
    bench(("video", path), endpoint=model).use(
        "VideoAnalysisAction", query="?", video_path="a.mp4", max_frames=4, analyze_audio=False
    )
    texts = [p["text"] for p in model.requests[0]["messages"][-1]["content"] if p["type"] == "text"]
    assert "0:07" in texts and "0:08" in texts and "0:07, 0:08" in texts[0]


def test_a_video_is_turned_as_its_header_says(tmp_path):
    plain = next(frames.frames(film(tmp_path / "a.mp4", "libx264"), 1, 0, None))[1]
    again = next(frames.frames(turned(tmp_path / "a.mp4"), 1, 0, None))[1]
    upright = plain.transpose(Image.Transpose.ROTATE_270)
    difference = numpy.abs(numpy.asarray(again, int) - numpy.asarray(upright, int))
    assert again.size == (360, 640) and difference.mean() < 2


MIRRORED = {(-1, 0, 0, 1): 0, (1, 0, 0, -1): 1, (-1, 0, 0, -1): 3, (0, 1, 1, 0): 5}


@pytest.mark.parametrize("matrix", MIRRORED)
def test_a_video_is_mirrored_as_its_header_says(matrix, tmp_path):
    plain = next(frames.frames(film(tmp_path / "a.mp4", "libx264"), 1, 0, None))[1]
    again = next(frames.frames(turned(tmp_path / "a.mp4", *matrix), 1, 0, None))[1]
    assert again.tobytes() == plain.transpose(Image.Transpose(MIRRORED[matrix])).tobytes()


def test_a_video_of_huge_frames_is_not_decoded(tmp_path, monkeypatch):
    path = empty_film(tmp_path / "a.mov", 600)
    media.check([("video", path)])
    assert len(list(frames.frames(path, 1, 0, None))) == 1
    monkeypatch.setattr(media, "MAX_DECODED_BYTES", 600 * 600 * 4 - 1)
    with pytest.raises(ConfigError, match="no picture"):
        media.check([("video", path)])
    with pytest.raises(ToolError, match="can not be read: .*million pixels"):
        list(frames.frames(path, 1, 0, None))


def test_of_a_damaged_video_nothing_is_said_of_its_size(tmp_path):
    path = film(tmp_path / "a.mp4", "libx264")
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ToolError, match="can not be read: ") as error:
        list(frames.frames(path, 1, 0, None))
    assert "pixels" not in str(error.value)


def test_a_large_frame_keeps_its_sides(tmp_path):
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as target:
        stream = target.add_stream("mpeg4", rate=1)
        stream.width, stream.height, stream.pix_fmt = 2560, 640, "yuv420p"
        source = av.VideoFrame.from_image(drawn("x", (2560, 640)))
        target.mux([*stream.encode(source), *stream.encode(None)])
    assert [p.size for _, p in frames.frames(path, 1, 0, None)] == [(1280, 320)]


def test_a_video_whose_clock_starts_before_0_is_seen_whole(tmp_path):
    path = scenes(tmp_path / "a.mkv", 3, 3, 3, fps=5, codec="mpeg4", start_s=-5)
    shown = list(frames.frames(path, 3, 0, None))
    assert [t for t, _ in shown] == pytest.approx([1.5, 4.5, 7.5], abs=0.21)
    assert [sum(picture.getpixel((9, 9))) > 600 for _, picture in shown] == [False, True, False]


def test_a_list_of_other_files_is_no_media(tmp_path):
    toned(tmp_path / "private.mp3", "libmp3lame", seconds=2)
    (tmp_path / "a.mp4").write_text("ffconcat version 1.0\nfile private.mp3\n")
    with pytest.raises(ConfigError, match="no picture and no sound"):
        media.check([("audio", tmp_path / "a.mp4")])


def test_a_stream_that_starts_between_key_frames_shows_no_grey(tmp_path):
    path = scenes(tmp_path / "a.ts", 3, 3, 3, codec="mpeg4")
    shown = [picture.getpixel((9, 9)) for _, picture in frames.frames(path, 6, 0, None)]
    assert len(shown) >= 3 and not [c for c in shown if min(c) > 100 and max(c) < 160]


def test_frames_that_do_not_come_evenly_have_their_own_times(tmp_path):
    path = tmp_path / "a.mkv"
    at_s = [0, 0.1, 0.2, 4, 4.1, 9.5]
    scenes(path, 0.6, at_s=at_s)
    times = [round(t, 1) for t, _ in frames.frames(path, 16, 0, None)]
    assert set(times) <= set(at_s) and 4.1 in times and len(times) == len(set(times))


@pytest.mark.parametrize(
    ("name", "codec"),
    [("a.ts", "libx264"), ("a.h264", "libx264"), ("a.hevc", "libx265"), ("a.m1v", "mpeg1video")],
)
def test_what_can_not_be_sought_is_read_in_one_pass(name, codec, tmp_path):
    """A stream without a container, and one with no key frame but its first."""
    path = scenes(tmp_path / name, 3, 3, 3, fps=25, codec=codec, one_key=name == "a.ts")
    shown = list(frames.frames(path, 3, 0, None))
    assert [t for t, _ in shown] == pytest.approx([1.5, 4.5, 7.5], abs=0.1)
    lights = [sum(picture.getpixel((9, 9))) for _, picture in shown]
    assert lights[0] < lights[2] < lights[1]  # black, white, navy
    window = [t for t, _ in frames.frames(path, 2, 3.0, 6.0)]
    assert window == pytest.approx([3.75, 5.25], abs=0.1)


def test_a_sound_without_pictures_is_no_video(tmp_path):
    with pytest.raises(ToolError, match="no moving pictures"):
        list(frames.frames(toned(tmp_path / "a.mp4", "aac"), 4, 0, None))


@pytest.mark.parametrize("suffix", FILMS)
def test_no_damage_to_a_video_is_more_than_an_observation(suffix, tmp_path):
    chance, path = random.Random(suffix), tmp_path / "a.bin"
    whole = film(tmp_path / f"a.{suffix}", *FILMS[suffix]).read_bytes()
    outcomes = set()
    for _ in range(30):
        data = bytearray(whole)
        for _ in range(chance.choice([1, 3, 30])):
            data[chance.randrange(min(len(data), chance.choice([64, 1000])))] = chance.randrange(
                256
            )
        path.write_bytes(data[: chance.randrange(len(data))] if chance.random() < 0.3 else data)
        for read in (lambda: frames.frames(path, 2, 0, None), lambda: sound.parts(path, 2)):
            try:
                outcomes.add(len(list(read())) > 0)
            except ToolError:
                outcomes.add(False)
    assert outcomes == {True, False}


def test_a_video_under_another_name_is_read(tmp_path):
    path = film(tmp_path / "a.mp4", "libx264").rename(tmp_path / "a.avi")
    assert len(list(frames.frames(path, 2, 0.0, None))) == 2


@pytest.mark.parametrize("kind", ["BMP", "TIFF", "PPM", "TGA", "ICO", "JPEG2000", "WEBP", "GIF"])
def test_a_picture_of_every_kind_is_taken(kind, tmp_path):
    path = tmp_path / "a.bin"
    Image.new("RGB", (64, 48), "navy").save(path, kind)
    assert media.check([("image", path)]) == [("image", path)]
    assert [p.image.mode for p in image.pictures(path)] == ["RGB"]
