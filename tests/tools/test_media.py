from __future__ import annotations

import base64
import io

import numpy
import pytest
from PIL import Image

from tests.tools.conftest import whisper
from tests.tools.media import drawn, film, speech, truncated
from tools import ToolError, audio, frames, image, sound


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
    monkeypatch.setattr(image, "MAX_DECODED_BYTES", 100_000)
    with pytest.raises(ToolError, match="too large to be opened"):
        list(image.pictures(path))


def test_a_large_jpeg_is_decoded_small(tmp_path, monkeypatch):
    path = tmp_path / "a.jpg"
    drawn("x", (8000, 6000)).save(path)
    monkeypatch.setattr(image, "MAX_DECODED_BYTES", 60 << 20)  # 183 MiB if decoded whole
    assert next(image.pictures(path)).image.size == (2048, 1536)


# ---- sound


def tone(seconds: float, level: int = 8000) -> numpy.ndarray:
    wave = numpy.sin(numpy.arange(int(seconds * sound.RATE)) / 10) * level
    return wave.astype(numpy.int16)


def test_a_long_sound_is_cut_where_it_is_quiet(tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(sound.as_wav(numpy.concatenate([tone(8.5), tone(0.5, 0), tone(8)])))
    first, second = sound.parts(path, 10)
    assert 8.5 < second.start_s < 9 and len(first.samples) + len(second.samples) == 17 * sound.RATE


def test_the_parts_of_a_sound_are_never_in_memory_together(tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(sound.as_wav(numpy.tile(tone(10), 60)))
    sizes = [len(p.samples) / sound.RATE for p in sound.parts(path, 30)]
    assert max(sizes) <= 30 and round(sum(sizes)) == 600


@whisper
@pytest.mark.parametrize("suffix", ["wav", "mp3", "ogg", "flac", "m4a", "webm"])
def test_speech_of_each_kind_is_heard(suffix, tmp_path, bench):
    import av

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
    [("9", "", "behind its end"), ("3", "2", "empty"), ("soon", "", "no time")],
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


def test_a_video_under_another_name_is_read(tmp_path):
    path = film(tmp_path / "a.mp4", "libx264").rename(tmp_path / "a.avi")
    assert len(list(frames.frames(path, 2, 0.0, None))) == 2
