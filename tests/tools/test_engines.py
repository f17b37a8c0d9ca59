"""What an endpoint gets of a picture and of a sound, what that costs, and the engines on this machine."""

from __future__ import annotations

import base64
import io
import sys
import threading
import time
import types
import wave
from dataclasses import replace
from pathlib import Path

import av
import httpx2
import numpy
import pytest

from orchestra.lines import read
from orchestra.money import Purse
from orchestra.pool import Engine
from orchestra.vocabulary import BudgetExceeded, EndpointError
from tests.conftest import ROOT
from tests.scripted import Raw
from tests.tools.conftest import whisper
from tests.tools.media import film, toned
from tools import ToolError, audio, image, sound
from tools.decoding import RATE

CLOCK = ROOT / "fixtures" / "media" / "clock.png"
SPEECH = ROOT / "fixtures" / "media" / "equinox.wav"
SPEECH_S = 7.842313
TRANSCRIBING = Engine("endpoint", "small", "whisper-1", usd_per_minute=0.6)


def looks(tools, name="clock.png", mode="record", query="Which city?"):
    return tools.use("ImageAnalysisAction", mode, query=query, image_path=name)


def listens(tools, name="equinox.wav", mode="record", query="Which day?"):
    return tools.use("ParseAudioAction", mode, query=query, audio_path=name)


@pytest.fixture
def transcribing(bench, endpoint):
    """Tools whose sounds go to a transcription endpoint, and that endpoint."""

    def make(path: Path = SPEECH, answer=None, kind="audio", **fields):
        server = endpoint(lambda _: answer or Raw(200, {"text": "September 23"}))
        tools = bench((kind, path), endpoint=server, **fields)
        tools.pool = replace(tools.pool, engines={**tools.pool.engines, "audio": TRANSCRIBING})
        return tools, server

    return make


# ---- pictures


def test_a_vision_model_gets_the_query_and_the_very_picture(bench, endpoint):
    server = endpoint(lambda _: "Prague")
    assert "Prague" in looks(bench(("image", CLOCK), endpoint=server))
    text, picture = server.requests[0]["messages"][0]["content"]
    assert text["type"] == "text" and "Which city?" in text["text"]
    kind, data = picture["image_url"]["url"].split(",")
    assert (picture["type"], kind) == ("image_url", "data:image/png;base64")
    assert base64.b64decode(data) == CLOCK.read_bytes()


def test_rapidocr_reads_every_line_and_a_replay_needs_neither_it_nor_the_picture(bench, tmp_path):
    pytest.importorskip("rapidocr", reason="requirements-local.txt is not installed")
    path = tmp_path / "clock.png"
    path.write_bytes(CLOCK.read_bytes())
    tools = bench(("image", path))
    seen = looks(tools)
    assert "Prague Astronomical Clock\nOld Town Hall, Prague, Czech Republic" in seen
    path.unlink()
    assert looks(tools, mode="replay", query="other words") == seen


@pytest.mark.parametrize(
    ("use", "module", "said"),
    [(looks, "rapidocr", "RapidOCR is not"), (listens, "faster_whisper", "faster-whisper is not")],
)
def test_a_local_engine_that_is_not_installed_is_told(use, module, said, bench, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    image._ocr.cache_clear()
    audio._whisper_model.cache_clear()
    with pytest.raises(ToolError, match=said):
        use(bench(("image", CLOCK), ("audio", SPEECH)))


# ---- sounds


def heard(server) -> tuple[str, bytes]:
    """Format and bytes of the input_audio part that the endpoint got."""
    part = server.requests[0]["messages"][0]["content"][1]
    assert part["type"] == "input_audio"
    return part["input_audio"]["format"], base64.b64decode(part["input_audio"]["data"])


def test_an_audio_model_gets_the_query_and_its_answer_is_the_transcript(bench, endpoint):
    server = endpoint(lambda _: "I heard it")
    assert "[0:00] I heard it" in listens(bench(("audio", SPEECH), endpoint=server))
    assert "Which day?" in server.requests[0]["messages"][0]["content"][0]["text"]


CODECS = {"a.wav": "pcm_s16le", "a.mp3": "libmp3lame", "a.flac": "flac", "a.webm": "libopus", "a.aac": "aac", "a.mkv": "aac", "a.ts": "mp2"}  # fmt: skip


@pytest.mark.parametrize("name", CODECS)
def test_any_sound_is_sent_whole_as_16_khz_mono_wav(name, bench, endpoint, tmp_path):
    server = endpoint(lambda _: "x")
    listens(bench(("audio", toned(tmp_path / name, CODECS[name])), endpoint=server), name)
    kind, data = heard(server)
    with wave.open(io.BytesIO(data)) as got:
        assert (kind, got.getframerate(), got.getnchannels()) == ("wav", 16000, 1)
        assert 16000 <= got.getnframes() < 17200  # no end is cut off; encoders pad it


def test_the_last_samples_of_a_sound_are_heard(tmp_path):
    """A resampler holds some back until it is told that no more come."""
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, 2, 44100, 0, "NONE", ""))
        file.writeframes(numpy.full(44100, 9000, numpy.int16).tobytes())
    (part,) = sound.parts(tmp_path / "a.wav", 10)
    assert len(part.samples) == RATE and part.samples[-5] > 8000


def test_the_sound_of_a_video_can_be_heard(bench, endpoint, tmp_path):
    server = endpoint(lambda _: "x")
    path = film(tmp_path / "film.mp4", "libx264", "aac")
    listens(bench(("video", path), endpoint=server), "film.mp4")
    assert heard(server)[0] == "wav"


def test_a_video_without_sound_is_told_so(bench, endpoint, tmp_path):
    path = film(tmp_path / "film.mp4", "libx264")
    with pytest.raises(ToolError, match="film.mp4 has no sound"):
        listens(bench(("video", path), endpoint=endpoint(lambda _: "x")), "film.mp4")


# ---- transcription


def test_a_transcription_endpoint_gets_model_question_and_sound(transcribing):
    tools, server = transcribing()
    assert "[0:00] September 23" in listens(tools)
    assert server.paths == ["/v1/audio/transcriptions"]
    headers = {name.lower(): value for name, value in server.headers[0].items()}
    assert headers["content-type"].startswith("multipart/form-data; boundary=")
    body = server.requests[0]["body"]
    (part,) = sound.parts(SPEECH, 60)
    assert part.samples.tobytes() in body and b'filename="audio.wav"' in body
    for name, value in (("model", "whisper-1"), ("prompt", tools.task.question)):
        assert f'name="{name}"\r\n\r\n{value}\r\n'.encode() in body


def test_a_transcription_costs_by_the_minute_and_nothing_when_played(transcribing):
    purse = Purse()
    tools, server = transcribing(purse=purse)
    for mode in ("record", "replay"):
        listens(tools, mode=mode)
    once = SPEECH_S / 60 * 0.6
    assert purse.spent_usd == pytest.approx(2 * once, rel=1e-4)
    assert purse.paid_usd == pytest.approx(once, rel=1e-4)
    assert len(server.requests) == 1


def test_the_length_of_a_sound_that_does_not_say_it_is_paid_for_too(transcribing, tmp_path):
    path = toned(tmp_path / "a.mkv", "aac", seconds=6)
    path.write_bytes(path.read_bytes().replace(b"\x44\x89", b"\xec\x89", 1))  # no Duration
    with av.open(str(path)) as file:
        assert not file.duration
    purse = Purse()
    listens(transcribing(path, purse=purse)[0], "a.mkv")
    assert purse.spent_usd == pytest.approx(0.06, rel=0.05)


def test_a_transcription_that_could_pass_the_budget_is_not_started(transcribing):
    tools, server = transcribing(purse=Purse(0.05))
    with pytest.raises(BudgetExceeded, match=r"a call of 0\.0784\d* USD would pass the limit"):
        listens(tools)
    assert server.requests == []


@pytest.mark.parametrize("body", ["<html>\n", {"error": "no"}, "[]", {}])
def test_a_transcription_that_is_none_is_an_endpoint_error_in_one_line(body, transcribing):
    tools, _ = transcribing(answer=Raw(200, body))
    with pytest.raises(EndpointError, match="no transcription but") as failure:
        listens(tools)
    assert "\n" not in str(failure.value)


@whisper
def test_faster_whisper_hears_the_date_and_a_replay_needs_neither_it_nor_the_sound(bench, tmp_path):
    pytest.importorskip("faster_whisper", reason="requirements-local.txt is not installed")
    path = tmp_path / "equinox.wav"
    path.write_bytes(SPEECH.read_bytes())
    audio._whisper_model.cache_clear()
    tools = bench(("audio", path))
    seen = listens(tools)
    assert "september 23" in seen.lower()
    path.unlink()
    assert listens(tools, mode="replay") == seen


@pytest.fixture
def slow_whisper(monkeypatch, endpoint):
    """A stand-in for faster-whisper whose model takes its time and comes over the network. Returns
    the loads.
    """
    loads: list[object] = []
    hub = endpoint(lambda _: "")

    class WhisperModel:
        def __init__(self, name, **_):
            loads.append(name)
            time.sleep(0.05)
            with httpx2.Client() as client:
                assert client.get(f"{hub.url}/model.bin").status_code == 200

        def transcribe(self, samples, **_):
            return [], None

    module = types.ModuleType("faster_whisper")
    module.WhisperModel = WhisperModel
    monkeypatch.setitem(sys.modules, "faster_whisper", module)
    audio._whisper_model.cache_clear()
    yield loads
    audio._whisper_model.cache_clear()


def test_sub_agents_that_start_together_share_one_whisper(slow_whisper):
    threads = [threading.Thread(target=audio.transcribe, args=(SPEECH, "")) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(slow_whisper) == 1


def test_the_download_of_a_local_model_is_not_on_the_tape(slow_whisper, bench):
    tools = bench(("audio", SPEECH))
    listens(tools)
    assert len(slow_whisper) == 1
    assert [row["request"]["method"] for row in read(tools.folder / "tape.jsonl")] == ["LOCAL"]
