"""Sounds of every kind, odd ones and damaged ones: what an endpoint is sent and what it costs."""

import base64
import io
import re
import shutil
import sys
import wave
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest

from orchestra.kernel.vocabulary import BudgetExceeded, ToolError
from orchestra.tools import hearing, media, pictures, sound
from tests.conftest import ConfigError, EndpointError, Purse
from tests.program import CLOCK
from tests.scripted import Raw
from tests.tools.conftest import rapidocr, whisper
from tests.tools.media import RATE, SPEECH, film, saved, tone, toned


def decoded_s(path, *window) -> float:
    return sum(len(samples) for _, samples in sound.parts(path, 30, *window)) / RATE


@pytest.mark.parametrize("sound_of", ["audio", "video"])
def test_an_audio_model_gets_the_query_and_16_khz_mono_wav(sound_of, bench, tmp_path):
    path = SPEECH if sound_of == "audio" else film(tmp_path / "a.mp4", sound="aac")
    tools = bench((sound_of, path), says="I heard it")
    assert "[0:00] I heard it" in tools.analyse(kind="audio", query="Which day?")
    text, sound = tools.model.requests[0]["messages"][0]["content"]
    given = sound["input_audio"]
    with wave.open(io.BytesIO(base64.b64decode(given["data"]))) as got:
        assert (given["format"], got.getframerate(), got.getnchannels()) == ("wav", RATE, 1)
    assert "Which day?" in text["text"]


def test_music_with_album_art_is_sound(tmp_path):
    music = toned(tmp_path / "t.mp3", "libmp3lame", 44100, "stereo", seconds=3).read_bytes()
    saved(tmp_path / "cover.jpg", "album")
    picture = b"\0image/jpeg\0\x03\0" + (tmp_path / "cover.jpg").read_bytes()
    frame = b"APIC" + len(picture).to_bytes(4, "big") + b"\0\0" + picture
    size = bytes(len(frame) >> shift & 127 for shift in (21, 14, 7, 0))
    (song := tmp_path / "song.mp3").write_bytes(b"ID3\x03\0\0" + size + frame + music)
    assert media.check([song]) == [("audio", song)]


@pytest.mark.parametrize(("level", "seconds"), [(0, 3), (8000, 0), (8000, 0.001), (8000, 0.09)])
def test_silence_is_not_sent(level, seconds, tmp_path, bench):
    (path := tmp_path / "a.wav").write_bytes(sound.as_wav(tone(seconds, level)))
    tools = bench(("audio", path), says="thanks for watching")
    assert "nothing is said" in tools.analyse() and not tools.model.requests


def test_a_long_sound_goes_to_the_endpoint_in_parts_with_times(tmp_path, bench, monkeypatch):
    monkeypatch.setattr(hearing, "ENDPOINT_S", 20.0)
    (path := tmp_path / "a.wav").write_bytes(sound.as_wav(tone(50)))
    tools = bench(("audio", path), says="a tone")
    seen = tools.analyse()
    assert seen.count("a tone") == len(tools.model.requests) == 3 and "[0:" in seen
    assert tools.analyse("replay") == seen


def test_a_long_sound_is_cut_where_it_is_quiet(tmp_path):
    ten_s = numpy.concatenate([tone(8.5), tone(0.5, 0), tone(1)])
    (path := tmp_path / "a.wav").write_bytes(sound.as_wav(numpy.tile(ten_s, 60)))
    parts = [(at, len(samples) / RATE) for at, samples in sound.parts(path, 10)]
    assert 8.5 < parts[1][0] < 9 and max(length for _, length in parts) <= 10
    assert sum(length for _, length in parts) == pytest.approx(600)


FORMS = {
    "8k.wav": ("pcm_s16le", 8000, "mono"), "telephone.wav": ("pcm_mulaw", 8000, "mono"), "studio.wav": ("pcm_s24le", 96000, "stereo"),
    "seven_and_one.flac": ("flac", 48000, "7.1"), "disc.mp3": ("libmp3lame", 44100, "stereo"), "broadcast.ts": ("mp2", 48000, "stereo"),
    "a.webm": ("libopus",), "a.aac": ("aac",), "a.mkv": ("aac",), "a.m4a": ("aac",), "a.ogg": ("libopus",),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_every_format_is_decoded_whole_whatever_its_name(name, tmp_path):
    path = toned(tmp_path / name, *FORMS[name], seconds=2).rename(tmp_path / "a.bin")
    ((_, samples),) = sound.parts(path, 30)
    assert 2 <= len(samples) / RATE < 2.1  # the resampler is flushed; encoders pad the end
    assert 7000 < numpy.percentile(samples, 99) < 10500


@pytest.mark.parametrize(("name", "codec"), [("a.ts", "mp2"), ("a.mkv", "libopus"), ("a.m4a", "aac")])  # fmt: skip
@pytest.mark.parametrize("offset_s", [0, 5000])
def test_a_window_is_found_wherever_the_clock_starts(name, codec, offset_s, tmp_path):
    """Recordings of broadcasts do not start at 0."""
    path = toned(tmp_path / name, codec, 48000, "stereo", seconds=9, offset_s=offset_s)
    assert 2.9 < decoded_s(path, (2.0, 5.0)) < 3.2


def test_joined_sounds_of_different_rates_are_decoded_to_the_end(tmp_path):
    one = toned(tmp_path / "a.mp3", "libmp3lame", 44100, "stereo", seconds=3).read_bytes()
    path = toned(tmp_path / "a.mp3", "libmp3lame", 22050, seconds=3)
    path.write_bytes(one + path.read_bytes())
    ((_, samples),) = sound.parts(path, 30)
    assert 5.9 < len(samples) / RATE < 6.3
    assert samples[int(5.5 * RATE) :].max() > 7000


def test_what_comes_before_the_damage_is_decoded(tmp_path):
    path = toned(tmp_path / "a.flac", "flac", seconds=4.6)
    half = path.stat().st_size // 2
    path.write_bytes(path.read_bytes()[:half] + b"\xff" * half)
    assert 1.5 < decoded_s(path) < 4.7


LISTS = {
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{other}\n#EXT-X-ENDLIST\n",
    "concat": "ffconcat version 1.0\nfile {name}\n",
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
    "text": "no sound at all",
}


@pytest.mark.parametrize("suffix", ["wav", "m3u8"])
@pytest.mark.parametrize("kind", LISTS)
def test_a_list_of_other_files_or_urls_is_not_followed(kind, suffix, tmp_path):
    other, path = toned(tmp_path / "private.mp3", "libmp3lame"), tmp_path / f"a.{suffix}"
    path.write_text(LISTS[kind].format(other=f"file://{other}", name=other.name))
    with pytest.raises(ToolError, match="cannot be read"):
        decoded_s(path)
    with pytest.raises(ConfigError, match="no (audio|video) can be read"):
        media.check([("audio", path)])


@pytest.fixture
def transcribing(bench):
    """Tools whose sounds go to a transcription endpoint."""

    def make(answer={"text": "September 23"}, **fields):  # noqa: B006
        says = answer if callable(answer) else Raw(200, answer)
        tools = bench(("audio", SPEECH), says=says, **fields)
        engine = {"engine": "endpoint", "backend": "small", "transcription_model": "whisper-1"}
        tools.pool = replace(tools.pool, engines={"audio": {**engine, "usd_per_minute": 0.6}})
        return tools

    return make


def test_a_transcription_costs_by_the_minute_and_nothing_in_a_replay(transcribing):
    tools, once = transcribing(purse=(purse := Purse())), pytest.approx(7.842375 / 60 * 0.6)
    for mode in ("record", "replay"):
        assert "[0:00] September 23" in tools.analyse(mode)
    assert (purse.costs, purse.paid, len(tools.model.requests)) == ([once, once], [once], 1)


def test_a_transcription_of_unknown_price_is_not_started_once_the_budget_is_exceeded(transcribing):
    tools = transcribing(purse=(purse := Purse(0.1)))
    tools.pool.engines["audio"]["usd_per_minute"] = None
    purse.charge(0.2)
    with pytest.raises(BudgetExceeded, match="costs an unknown amount"):
        tools.analyse()
    assert not tools.model.requests


@pytest.mark.parametrize(("limit_usd", "uploads", "ends"), [
    (0.2, 2, nullcontext()), (0.1, 1, pytest.raises(EndpointError)), (0.05, 0, pytest.raises(BudgetExceeded, match="transcription costs 0.0784")),
])  # fmt: skip
def test_a_lost_upload_is_booked_and_repeated_within_budget(limit_usd, uploads, ends, transcribing):
    answers = [{"text": "September 23"}, BrokenPipeError()]
    tools = transcribing(lambda request: answers.pop(), purse=(purse := Purse(limit_usd)))
    with ends:
        tools.analyse()
    assert len(tools.model.requests) == uploads
    assert purse.spent_usd == pytest.approx(uploads * 7.842375 / 60 * 0.6)


@pytest.mark.parametrize("body", ["<html>\n", {"error": "no"}, "[]", {}])
def test_an_unusable_transcription_is_an_endpoint_error_of_one_line(body, transcribing):
    with pytest.raises(
        EndpointError, match="the answer (is not JSON|has no choice)|: no$"
    ) as failure:
        transcribing(body).analyse()
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(("kind", "source", "words"), [
    pytest.param("image", CLOCK, "Prague Astronomical Clock\nOld Town Hall, Prague, Czech Republic", marks=rapidocr),
    pytest.param("audio", SPEECH, r"(?i)\[0:00\].*september 23", marks=whisper),
])  # fmt: skip
def test_a_replay_needs_neither_local_engine_nor_file(kind, source, words, tmp_path, bench):
    path = Path(shutil.copy(source, tmp_path))
    seen = (tools := bench((kind, path))).analyse()
    assert re.search(words, seen)
    path.unlink()
    assert tools.analyse("replay", query="other words") == seen


@pytest.mark.parametrize(("kind", "path", "missing"), [("image", CLOCK, "rapidocr"), ("audio", SPEECH, "faster_whisper")])  # fmt: skip
def test_an_engine_that_is_not_installed_is_named_where_it_is_needed_first(
    kind, path, missing, bench, monkeypatch
):
    monkeypatch.setitem(sys.modules, missing, None)
    pictures._ocr.cache_clear()
    hearing._whisper.cache_clear()
    with pytest.raises(ConfigError, match=f"needs {missing}: pip install"):
        bench((kind, path)).analyse()


def test_the_download_of_a_speech_model_is_announced_with_its_size(monkeypatch):
    def download_model(name, local_files_only):
        assert local_files_only
        if name == "tiny.en":
            raise FileNotFoundError("not on this machine")

    library = SimpleNamespace(download_model=download_model)
    monkeypatch.setitem(sys.modules, "faster_whisper", library)
    told = []
    for name in ("tiny.en", "base.en", "/models/tiny"):
        hearing._announce(name, told.append)
    assert told == ["the speech model tiny.en (75 MB) is downloaded, once"]
