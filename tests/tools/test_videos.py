"""Videos of every kind, odd ones and damaged ones: which frames are taken, their times, and the sound."""

import re

import pytest
from PIL import Image

from orchestra.kernel.vocabulary import ToolError
from orchestra.tools import frames, media, sound
from tests.conftest import ConfigError
from tests.scripted import Raw
from tests.tools.conftest import rapidocr, whisper
from tests.tools.media import drawn, film, filmed, read_damaged, scenes, toned

FILMS = {"mp4": ("libx264", "aac"), "webm": ("libvpx", "libopus"), "mkv": ("mpeg4", "libmp3lame")}


def seen(path, count=1, start_s=0.0, end_s=None) -> list[tuple[float, Image.Image]]:
    return list(frames.frames(path, count, (start_s, end_s)))


@whisper
@rapidocr
@pytest.mark.parametrize("suffix", FILMS)
def test_what_a_video_shows_and_says_is_read_with_its_times(suffix, tmp_path, bench):
    tools = bench(("video", film(tmp_path / f"a.{suffix}", *FILMS[suffix])))
    text = tools.analyse()
    assert re.search(r"\[0:00-0:01\] Gate 1\n\[0:0\d-0:0\d\] Gate 2", text)
    assert "september" in text.lower() and tools.analyse("replay") == text


def test_the_model_is_given_the_time_of_each_frame_and_new_scene(tmp_path, bench):
    tools = bench(("video", scenes(tmp_path / "a.mp4", 7.3, 1.1, 20)), says="two colours")
    text = tools.analyse(max_frames=99, start_time=1, end_time="0:12")
    assert "two colours" in text and "has no sound" in text
    request, *shown = tools.model.requests[0]["messages"][-1]["content"]
    times = [part["text"] for part in shown[::2]]
    assert 12 <= len(times) <= 16 and times[0] == "0:01" and times[-1] == "0:11"
    assert {"0:07", "0:08"} <= set(times) and ", ".join(times) in request["text"]


def test_the_report_of_the_frames_is_kept_where_the_sound_is_refused(tmp_path, bench):
    def says(request):
        return Raw(400, "no sound") if "input_audio" in str(request) else "two colours"

    text = bench(("video", film(tmp_path / "a.mp4", *FILMS["mp4"])), says=says).analyse()
    assert "two colours" in text and "status 400" in text


def test_a_scanned_text_is_not_a_video(tmp_path):
    Image.new("RGB", (99, 99)).save(tmp_path / "a.pdf", save_all=True, append_images=[drawn("x")])
    (tmp_path / "a.pdf").rename(tmp_path / "a.mp4")  # a PDF by its own name is a file to read
    with pytest.raises(ConfigError, match="no (audio|video) can be read"):
        media.check([tmp_path / "a.mp4"])


@pytest.mark.parametrize("suffix", FILMS)
def test_short_scenes_are_seen_at_their_beginning(suffix, tmp_path):
    path = scenes(tmp_path / f"a.{suffix}", 7.3, 1.1, 8, 1.3, 4, codec=FILMS[suffix][0])
    shown = seen(path.rename(tmp_path / "a.avi"), 8)  # whatever its name
    rows = [(round(t, 1), picture.getpixel((9, 9))) for t, picture in shown]
    colours = [tuple(v > 64 for v in colour) for _, colour in rows]
    assert len(rows) <= 8 and 7.3 in dict(rows) and any(16.4 <= t < 17.7 for t, _ in rows)
    assert (True, True, True) in colours and (True, True, False) in colours  # white and yellow


TURNED = {(0, 1, -1, 0): 4, (-1, 0, 0, -1): 3, (0, -1, 1, 0): 2}  # of Image.Transpose


@pytest.mark.parametrize("matrix", TURNED)
def test_a_video_is_turned_as_its_header_says(matrix, tmp_path):
    path = film(tmp_path / "a.mp4")
    ((_, plain),) = seen(path)
    data, (a, b, c, d) = bytearray(path.read_bytes()), matrix
    at = data.index(b"tkhd") + 44  # version 0: 4 of the name, 40 to the matrix
    numbers = a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30
    data[at : at + 36] = b"".join(n.to_bytes(4, "big", signed=True) for n in numbers)
    path.write_bytes(data)
    ((_, again),) = seen(path)
    assert again.tobytes() == plain.transpose(Image.Transpose(TURNED[matrix])).tobytes()


def test_a_video_of_huge_frames_is_not_decoded(tmp_path, monkeypatch):
    path = filmed(tmp_path / "a.mov", [Image.new("RGB", (600, 600))], "png")
    assert media.check([("video", path)]) and len(seen(path)) == 1
    monkeypatch.setattr(media, "MAX_PIXELS", 600 * 600 - 1)
    with pytest.raises(ConfigError, match="no video can be read"):
        media.check([("video", path)])
    with pytest.raises(ToolError, match="cannot be read: .*million pixels"):
        seen(path)


def test_a_large_frame_keeps_its_ratio(tmp_path):
    path = filmed(tmp_path / "a.mkv", [drawn("x", (2560, 640))], "mpeg4")
    assert [p.size for _, p in seen(path)] == [(1280, 320)]


def test_a_stream_that_starts_between_key_frames_shows_no_grey(tmp_path):
    rows = seen(scenes(tmp_path / "a.ts", 3, 3, 3, codec="mpeg4"), 6)
    shown = [picture.getpixel((9, 9)) for _, picture in rows]
    assert len(shown) >= 3 and not [c for c in shown if min(c) > 100 and max(c) < 160]


def test_frames_of_a_codec_that_marks_no_key_frames_are_decoded(tmp_path):
    assert len(seen(scenes(tmp_path / "a.mov", 1, 1, codec="qtrle"), 4)) >= 3


def test_frames_at_irregular_times_are_reported_at_their_times(tmp_path):
    at_s = [0, 0.1, 0.2, 4, 4.1, 9.5]
    rows = seen(scenes(tmp_path / "a.mkv", 0.6, at_s=at_s), 16)
    times = [round(t, 1) for t, _ in rows]
    assert set(times) <= set(at_s) and 4.1 in times and len(times) == len(set(times))


def test_pictures_and_sound_have_one_clock_and_lengths_of_their_own(tmp_path):
    late = scenes(tmp_path / "late.mkv", 1, 1, sound="aac", sound_s=1.5)
    assert next(sound.parts(late, 30))[0] == pytest.approx(1.5, abs=0.1)
    short = scenes(tmp_path / "short.mp4", 0.5, 0.5, sound="aac")
    assert [round(t, 1) for t, _ in seen(short, 4)] == [0.1, 0.3, 0.6, 0.8]


@pytest.mark.parametrize(("make", "kind", "asked", "words"), [
    (lambda folder: film(folder / "a.mp4"), "audio", {}, "a.mp4 has no sound"),
    (lambda folder: toned(folder / "a.mp4", "aac"), "video", {}, "no moving pictures"),
    (lambda folder: film(folder / "a.mp4"), "video", {"start_time": "9"}, "starts after the end"),
    (lambda folder: film(folder / "a.mp4"), "video", {"start_time": "3", "end_time": "2"}, "empty"),
    *((lambda folder: film(folder / "a.mp4"), "video", {"start_time": t}, "not a time") for t in ("soon", "1:-30", "nan")),
], ids=range(7))  # fmt: skip
def test_odd_media_and_times_are_an_observation(make, kind, asked, words, tmp_path, bench):
    with pytest.raises(ToolError, match=words):
        bench((kind, make(tmp_path)), says="x").analyse(**asked)


@pytest.mark.parametrize("suffix", FILMS)
def test_damage_to_a_video_is_an_observation(suffix, tmp_path):
    path = film(tmp_path / f"a.{suffix}", *FILMS[suffix])
    assert read_damaged(path, 8, lambda p: seen(p, 2), lambda p: sound.parts(p, 2)) == {True, False}  # fmt: skip
