"""The three tools: code behind each wall, pictures and sounds by an endpoint or on this machine."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
import threading
import time
import types
import wave
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import av
import httpx2
import pytest
from PIL import Image

import tools.audio
import tools.image
from orchestra.backends import Chat
from orchestra.lines import read
from orchestra.money import Purse
from orchestra.pool import Engine
from orchestra.replay import Tape
from orchestra.run_folder import import_media
from orchestra.vocabulary import (
    BudgetExceeded,
    EndpointError,
    Modality,
    ModelMistake,
    Task,
)
from tests.conftest import ROOT, pool_at
from tests.scripted import Endpoint, Raw
from tools import Environment, ImageFile, Tool, ToolError, all_tools, code, tool
from tools.audio import audio_analysis
from tools.code import execute_code
from tools.image import image_analysis

MEDIA = ROOT / "fixtures" / "media"
CLOCK, SPEECH = MEDIA / "clock.png", MEDIA / "equinox.wav"
WHISPER = os.environ.get("WHISPER_MODEL") or "/tmp/w/models/whisper-tiny.en"
LOCAL = {"image": Engine("local"), "audio": Engine("local")}


class Bench:
    """A run folder with media, and an environment whose tools can be called."""

    def __init__(self, folder: Path, server: Endpoint | None, **engines: Engine) -> None:
        self.folder = folder
        pool = pool_at(server.url if server else "http://127.0.0.1:9/v1")
        self.pool = replace(pool, engines={**pool.engines, **engines})
        self.task = Task("When does Mabon fall?")
        self.purse = Purse()

    def hold(self, modality: Modality, *paths: Path) -> None:
        media = import_media(self.folder, [(modality, p) for p in paths])
        self.task = replace(self.task, media=(*self.task.media, *media))

    def __call__(
        self, used: Tool, mode: Literal["record", "replay"] = "record", **params: Any
    ) -> str:
        with closing(Tape(self.folder / "tape.jsonl", mode)) as tape, tape.logical_call("a"):
            work = self.folder / "work" / "r1-t1"
            chat = Chat(tape)
            backend = self.pool["small"]
            env = Environment(self.task, backend, self.pool, chat, tape, self.purse, work)
            return used(env, params)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, None)


@pytest.fixture(params=code.WALLS)
def wall(request: pytest.FixtureRequest) -> code.Wall:
    if not code.holds(request.param):
        pytest.skip(f"this machine does not let a program start behind {request.param}")
    return request.param


@pytest.fixture
def program(wall: code.Wall, tmp_path: Path) -> Callable[..., str]:
    """Run a program behind each wall, in the folder of one sub-agent."""

    def run(text: str, code_type: str = "python", timeout_s: float = 10) -> str:
        return code.run(text, code_type, timeout_s, tmp_path / "run" / "work" / "r1-t1", wall)

    return run


# ---- code ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, seen",
    [
        ("1 + 1", "2"),
        ("x = 2\nx * 3", "6"),
        ("print('a')\n'b'", "a\n'b'"),
        ("print('only')", "only"),
        ("'\u017elutý'", "'\u017elutý'"),
    ],
)
def test_what_is_printed_and_the_value_of_the_last_expression_are_seen(text, seen, program):
    assert program(text) == seen


@pytest.mark.parametrize("text", ["", "x = 1", "None"])
def test_a_program_that_shows_nothing_is_told_to_print(text, program):
    assert program(text) == "[the program ended well and printed nothing; use print()]"


def test_an_exception_is_seen_with_its_line_and_none_of_ours(program):
    seen = program("print('before')\n\n1 / 0")
    assert seen == (
        'before\nTraceback (most recent call last):\n  File "<code>", line 3, in <module>\n'
        "ZeroDivisionError: division by zero\n[the program failed with exit status 1]"
    )


@pytest.mark.parametrize("text", ["x = (", "  x = 1\ny", "a\0b"])
def test_text_that_is_no_python_is_an_observation(text, program):
    assert "Error" in program(text).splitlines()[-2]


def test_bash_runs_and_its_status_is_seen(program):
    assert program("echo hello; exit 3", "bash") == (
        "hello\n[the program failed with exit status 3]"
    )


def test_zone_names_are_known(program):
    noon = "datetime(2025, 9, 23, 7, 49, tzinfo=ZoneInfo('Europe/Prague'))"
    imports = "from datetime import *\nfrom zoneinfo import ZoneInfo\n"
    assert (
        program(f"{imports}print({noon}.astimezone(timezone.utc))") == "2025-09-23 05:49:00+00:00"
    )


def test_a_program_that_takes_too_long_is_stopped_and_what_it_printed_is_seen(program):
    started = time.monotonic()
    seen = program("print('so far')\nimport time\ntime.sleep(60)", timeout_s=0.5)
    assert seen == "so far\n[stopped: the program took longer than 0.5 s]"
    assert time.monotonic() - started < 2


def test_a_program_that_closes_its_output_and_goes_on_is_stopped_too(program):
    seen = program("import os, time\nos.close(1)\nos.close(2)\ntime.sleep(60)", timeout_s=0.5)
    assert seen == "-\n[stopped: the program took longer than 0.5 s]"


def test_a_flood_is_stopped(program):
    seen = program("while True: print('x' * 1000)")
    assert seen.endswith("[stopped: the program printed more than 200000 bytes]")
    assert len(seen) < 2100


def test_memory_is_limited(program):
    assert "MemoryError" in program("x = bytearray(3 << 30)")


def test_the_size_of_files_is_limited(program):
    assert "File too large" in program("f = open('f', 'wb')\nwhile True: f.write(bytes(1 << 20))")


def test_no_variable_of_ours_reaches_a_program(program, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "planted-secret")
    seen = program("import os\nprint(sorted(os.environ), open('/proc/self/environ').read())")
    assert "planted-secret" not in seen
    assert set(seen[1 : seen.index("]")].replace("'", "").split(", ")) <= {
        "HOME", "LANG", "PATH", "PWD",
    }  # fmt: skip


def test_a_folder_of_its_own_is_kept_between_steps(program):
    program("open('note.txt', 'w').write('kept')")
    assert program("cat note.txt", "bash") == "kept"


def test_the_folder_may_be_relative_as_runs_are_by_default(wall, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = code.run("open('f', 'w').write('1')", "python", 10, Path("runs/a/work/r1-t1"), wall)
    assert seen == "1"
    assert (tmp_path / "runs" / "a" / "work" / "r1-t1" / "f").exists()


def test_nothing_a_program_started_outlives_it(program, tmp_path):
    later = "import time; time.sleep(0.5); open('late.txt', 'w')"
    program(
        f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {later!r}])",
        "python",
        0.3,
    )
    time.sleep(0.7)
    assert not (tmp_path / "run" / "work" / "r1-t1" / "late.txt").exists()


ABANDONED = """
import os, sys, threading, time
from pathlib import Path
from tools import code
folder, wall = Path(sys.argv[1]), sys.argv[2]
program = "import time; open('on', 'w'); time.sleep(0.5); open('late.txt', 'w')"
threading.Thread(target=code.run, args=(program, "python", 10, folder, wall), daemon=True).start()
while not (folder / "on").exists():
    time.sleep(0.01)
os._exit(0)  # as after Ctrl-C
"""


def test_a_program_does_not_outlive_an_interrupted_run(wall, tmp_path):
    command = [sys.executable, "-c", ABANDONED, str(tmp_path / "run" / "work" / "t"), wall]
    subprocess.run(command, cwd=ROOT, check=True)
    time.sleep(0.8)
    assert not (tmp_path / "run" / "work" / "t" / "late.txt").exists()


def test_input_is_at_its_end(program):
    assert "EOFError" in program("input()")


@pytest.mark.parametrize("wall", ["bubblewrap", "unshare"], indirect=True)
def test_no_network_behind_a_wall(program):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        seen = program(f"import socket\nsocket.create_connection({server.getsockname()!r}, 1)")
        with pytest.raises(TimeoutError):
            server.accept()
    assert "Error" in seen


@pytest.mark.parametrize("wall", ["bubblewrap"], indirect=True)
def test_no_file_of_the_user_behind_bubblewrap(program, tmp_path):
    (tmp_path / "diary.txt").write_text("dear diary")
    assert "FileNotFoundError" in program(f"open({str(tmp_path / 'diary.txt')!r}).read()")
    assert "Read-only file system" in program("open('/usr/x', 'w')")


@pytest.mark.parametrize("wall", ["bubblewrap"], indirect=True)
def test_the_media_of_the_task_can_be_read_behind_bubblewrap(program, tmp_path):
    (tmp_path / "run" / "media").mkdir(parents=True)
    (tmp_path / "run" / "media" / "a.txt").write_text("seen")
    assert program("open('media/a.txt').read()") == "'seen'"
    assert "Error" in program("open('media/a.txt', 'w')")


def test_a_bubblewrap_that_can_not_mount_is_not_chosen(tmp_path, monkeypatch):
    """As in containers where it starts, but /proc can not be mounted."""
    fake = tmp_path / "bwrap"
    fake.write_text('#!/bin/sh\ncase "$*" in *--proc*) exit 1;; esac\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert not code.holds("bubblewrap")


def test_a_wall_that_is_not_installed_does_not_hold(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not code.holds("bubblewrap")
    assert code.holds("bare")


@pytest.mark.parametrize("asked, allowed", [(0, 1), (-5, 1), (7, 7), (9999, 60)])
def test_the_time_a_model_asks_for_has_bounds(asked, allowed, bench):
    bench(execute_code, code="1", timeout_sec=asked)
    assert f'\\"timeout_s\\": {allowed}' in (bench.folder / "tape.jsonl").read_text()


def test_a_program_runs_once_and_is_replayed(bench):
    counted = "open('runs', 'a').write('x')\nprint(open('runs').read())"
    first = bench(execute_code, code=counted)
    assert first == "x"
    assert bench(execute_code, "replay", code=counted) == first
    assert (bench.folder / "work" / "r1-t1" / "runs").read_text() == "x"


@pytest.mark.parametrize("text", ["print('\\ud800')", "print('a\\0b')", "print('\\xff')"])
def test_odd_characters_go_through_the_tape(text, bench):
    assert bench(execute_code, "record", code=text) == bench(execute_code, "replay", code=text)


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "other.png",
        "../run.json",
        "media/../../run.json",
        "/etc/passwd",
        "~/.ssh/id_rsa",
        "http://127.0.0.1/clock.png",
        "file:///etc/passwd",
        "",
        "CLOCK.PNG",
        "a\0b",
    ],
)
def test_no_file_but_those_of_the_task_can_be_opened(name, bench):
    bench.hold("image", CLOCK)
    with pytest.raises(ToolError, match="The image files are: clock.png. No other file"):
        bench(image_analysis, query="?", image_path=name)


@pytest.mark.parametrize("name", ["clock.png", " clock.png ", "./clock.png", "media/clock.png"])
def test_a_file_of_the_task_is_found_under_the_spellings_models_use(name, endpoint, tmp_path):
    bench = Bench(tmp_path, endpoint(lambda request: "a clock"))
    bench.hold("image", CLOCK)
    assert bench(image_analysis, query="?", image_path=name) == "a clock"


def test_a_file_of_another_kind_is_told_so(bench):
    bench.hold("image", CLOCK)
    with pytest.raises(ToolError, match="clock.png is image, not audio"):
        bench(audio_analysis, query="?", audio_path="clock.png")


# ---- pictures ------------------------------------------------------------------------------------


def test_a_vision_model_gets_the_query_and_the_very_picture(endpoint, tmp_path):
    server = endpoint(lambda request: "Prague")
    bench = Bench(tmp_path, server)
    bench.hold("image", CLOCK)
    assert bench(image_analysis, query="Which city?", image_path="clock.png") == "Prague"
    text, picture = server.requests[0]["messages"][0]["content"]
    assert text["type"] == "text" and "Which city?" in text["text"]
    kind, data = picture["image_url"]["url"].split(",")
    assert (picture["type"], kind) == ("image_url", "data:image/png;base64")
    assert base64.b64decode(data) == CLOCK.read_bytes()


def test_a_picture_is_sent_as_what_it_is_whatever_its_name_says(endpoint, tmp_path):
    server = endpoint(lambda request: "x")
    bench = Bench(tmp_path / "run", server)
    (tmp_path / "run").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "photo.png", "JPEG")
    bench.hold("image", tmp_path / "photo.png")
    bench(image_analysis, query="?", image_path="photo.png")
    picture = server.requests[0]["messages"][0]["content"][1]
    assert picture["image_url"]["url"].startswith("data:image/jpeg;base64,")


@pytest.mark.parametrize("used", ["image", "audio"])
def test_a_file_that_is_too_big_for_an_endpoint_is_told_and_not_sent(
    used, endpoint, tmp_path, monkeypatch
):
    server = endpoint(lambda request: "x")
    bench = Bench(tmp_path, server)
    monkeypatch.setattr(getattr(tools, used), "MAX_ENDPOINT_BYTES", 1 << 10)
    path = CLOCK if used == "image" else SPEECH
    bench.hold(used, path)
    function = image_analysis if used == "image" else audio_analysis
    with pytest.raises(ToolError, match=rf"{path.name} has \d+ MiB, more than"):
        bench(function, query="?", **{f"{used}_path": path.name})
    assert server.requests == []


def test_rapidocr_reads_every_line_and_a_replay_needs_neither_it_nor_the_picture(tmp_path):
    pytest.importorskip("rapidocr", reason="requirements-local.txt is not installed")
    bench = Bench(tmp_path, None, **LOCAL)
    bench.hold("image", CLOCK)
    seen = bench(image_analysis, query="?", image_path="clock.png")
    assert "Prague Astronomical Clock\nOld Town Hall, Prague, Czech Republic" in seen
    (tmp_path / "media" / "clock.png").unlink()
    assert bench(image_analysis, "replay", query="other words", image_path="clock.png") == seen


@pytest.mark.parametrize(
    "used, module, said",
    [
        (image_analysis, "rapidocr", "RapidOCR is not installed"),
        (audio_analysis, "faster_whisper", "faster-whisper is not installed"),
    ],
)
def test_a_local_engine_that_is_not_installed_is_told(used, module, said, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    tools.image._ocr.cache_clear()
    tools.audio._whisper.cache_clear()
    bench = Bench(tmp_path, None, **LOCAL)
    bench.hold("image", CLOCK)
    bench.hold("audio", SPEECH)
    with pytest.raises(ToolError, match=said):
        bench(used, query="?", image_path="clock.png", audio_path="equinox.wav")


# ---- sounds --------------------------------------------------------------------------------------


def encoded(target: Path, codec: str, seconds: float = 1.0, picture: bool = False) -> Path:
    """A short sound in another format, with a picture before it in a video."""
    with av.open(str(target), "w") as container:
        if picture:
            video = container.add_stream("mpeg4", rate=5)
            video.width = video.height = 32
            video.pix_fmt = "yuv420p"
        stream = container.add_stream(codec, rate=48000, layout="mono") if codec else None
        if picture:
            image = Image.new("RGB", (32, 32))
            for _ in range(int(5 * seconds)):
                container.mux(video.encode(av.VideoFrame.from_image(image)))
            container.mux(video.encode(None))
        if stream:
            size = stream.codec_context.frame_size or 1024
            silence = bytes(int(48000 * seconds) * 2)
            frame = av.AudioFrame(format="s16", layout="mono", samples=len(silence) // 2)
            frame.planes[0].update(silence)
            frame.rate = 48000
            kind = stream.codec_context.format
            resampler = av.AudioResampler(kind, "mono", 48000, frame_size=size)
            for piece in (*resampler.resample(frame), *resampler.resample(None)):
                container.mux(stream.encode(piece))
            container.mux(stream.encode(None))
    return target


@pytest.fixture
def listener(endpoint: Callable[..., Endpoint], tmp_path: Path) -> Iterator[tuple[Bench, Endpoint]]:
    server = endpoint(lambda request: "I heard it")
    (tmp_path / "run").mkdir()
    yield Bench(tmp_path / "run", server), server


def heard(server: Endpoint) -> tuple[str, bytes]:
    """Format and bytes of the input_audio part that the endpoint got."""
    part = server.requests[0]["messages"][0]["content"][1]
    assert part["type"] == "input_audio"
    return part["input_audio"]["format"], base64.b64decode(part["input_audio"]["data"])


def test_an_audio_model_gets_the_query_and_answers_it(listener):
    bench, server = listener
    bench.hold("audio", SPEECH)
    assert bench(audio_analysis, query="Which day?", audio_path="equinox.wav") == "I heard it"
    assert "Which day?" in server.requests[0]["messages"][0]["content"][0]["text"]


def test_wav_is_sent_as_it_is(listener):
    bench, server = listener
    bench.hold("audio", SPEECH)
    bench(audio_analysis, query="?", audio_path="equinox.wav")
    assert heard(server) == ("wav", SPEECH.read_bytes())


def test_mp3_is_sent_as_it_is_whatever_its_name_says(listener, tmp_path):
    bench, server = listener
    sound = encoded(tmp_path / "sound.mp3", "mp3").rename(tmp_path / "sound.wav")
    bench.hold("audio", sound)
    bench(audio_analysis, query="?", audio_path="sound.wav")
    assert heard(server) == ("mp3", sound.read_bytes())


@pytest.mark.parametrize(
    "name, codec", [("a.flac", "flac"), ("a.webm", "libopus"), ("a.aac", "aac"), ("a.mkv", "aac")]
)
def test_any_other_sound_is_sent_as_16_khz_mono_wav(name, codec, listener, tmp_path):
    bench, server = listener
    bench.hold("audio", encoded(tmp_path / name, codec))
    bench(audio_analysis, query="?", audio_path=name)
    kind, data = heard(server)
    (tmp_path / "got.wav").write_bytes(data)
    with wave.open(str(tmp_path / "got.wav")) as got:
        assert (kind, got.getframerate(), got.getnchannels()) == ("wav", 16000, 1)
        assert got.getnframes() == pytest.approx(16000, rel=0.1)


def test_the_sound_of_a_video_can_be_heard(listener, tmp_path):
    bench, server = listener
    bench.hold("video", encoded(tmp_path / "film.mp4", "aac", picture=True))
    bench(audio_analysis, query="?", audio_path="film.mp4")
    assert heard(server)[0] == "wav"


def test_a_video_without_sound_is_told_so(listener, tmp_path):
    bench, server = listener
    bench.hold("video", encoded(tmp_path / "film.mp4", "", picture=True))
    with pytest.raises(ToolError, match="film.mp4 can not be read: no sound"):
        bench(audio_analysis, query="?", audio_path="film.mp4")


def test_a_sound_that_can_not_be_read_is_told(listener, tmp_path):
    bench, server = listener
    (tmp_path / "noise.ogg").write_bytes(b"OggS" + bytes(100))
    bench.hold("audio", tmp_path / "noise.ogg")
    with pytest.raises(ToolError, match="noise.ogg can not be read: "):
        bench(audio_analysis, query="?", audio_path="noise.ogg")


TRANSCRIBING = Engine("endpoint", "small", "whisper-1", usd_per_minute=0.6)


def test_a_transcription_endpoint_gets_model_question_and_the_very_sound(endpoint, tmp_path):
    server = endpoint(lambda request: Raw(200, {"text": "September 23"}))
    bench = Bench(tmp_path, server, audio=TRANSCRIBING)
    bench.hold("audio", SPEECH)
    seen = bench(audio_analysis, query="Which day?", audio_path="equinox.wav")
    assert seen == "Transcript of equinox.wav:\nSeptember 23"
    assert server.paths == ["/v1/audio/transcriptions"]
    headers = {name.lower(): value for name, value in server.headers[0].items()}
    assert headers["content-type"].startswith("multipart/form-data; boundary=")
    body = server.requests[0]["body"]
    assert SPEECH.read_bytes() in body
    assert b'filename="audio.wav"' in body
    for name, value in (("model", "whisper-1"), ("prompt", "When does Mabon fall?")):
        assert f'name="{name}"\r\n\r\n{value}\r\n'.encode() in body


def test_a_transcription_costs_by_the_minute_and_nothing_when_played(endpoint, tmp_path):
    server = endpoint(lambda request: Raw(200, {"text": "x"}))
    bench = Bench(tmp_path, server, audio=TRANSCRIBING)
    bench.hold("audio", SPEECH)
    for mode in ("record", "replay"):
        bench(audio_analysis, mode, query="?", audio_path="equinox.wav")
    once = 7.842313 / 60 * 0.6
    assert bench.purse.spent_usd == pytest.approx(2 * once)
    assert bench.purse.paid_usd == pytest.approx(once)
    assert len(server.requests) == 1


def test_the_length_of_a_sound_that_does_not_say_it_is_paid_for_too(endpoint, tmp_path):
    server = endpoint(lambda request: Raw(200, {"text": "x"}))
    bench = Bench(tmp_path, server, audio=TRANSCRIBING)
    sound = encoded(tmp_path / "a.mkv", "aac", seconds=6)
    sound.write_bytes(sound.read_bytes().replace(b"\x44\x89", b"\xec\x89", 1))  # no Duration
    bench.hold("audio", sound)
    bench(audio_analysis, query="?", audio_path="a.mkv")
    assert bench.purse.spent_usd == pytest.approx(0.06, rel=0.05)


def test_a_transcription_that_could_pass_the_budget_is_not_started(endpoint, tmp_path):
    server = endpoint(lambda request: Raw(200, {"text": "x"}))
    bench = Bench(tmp_path, server, audio=TRANSCRIBING)
    bench.hold("audio", SPEECH)
    bench.purse = Purse(0.05)
    with pytest.raises(BudgetExceeded, match="a call of 0.078423 USD would pass the limit"):
        bench(audio_analysis, query="?", audio_path="equinox.wav")
    assert server.requests == []


@pytest.mark.parametrize("body", ["<html>\n", {"error": "no"}, "[]", {}])
def test_a_transcription_that_is_none_is_an_endpoint_error_in_one_line(body, endpoint, tmp_path):
    bench = Bench(tmp_path, endpoint(lambda request: Raw(200, body)), audio=TRANSCRIBING)
    bench.hold("audio", SPEECH)
    with pytest.raises(EndpointError, match="no transcription but") as failure:
        bench(audio_analysis, query="?", audio_path="equinox.wav")
    assert "\n" not in str(failure.value)


def test_faster_whisper_hears_the_date_and_a_replay_needs_neither_it_nor_the_sound(
    tmp_path, monkeypatch
):
    pytest.importorskip("faster_whisper", reason="requirements-local.txt is not installed")
    if not Path(WHISPER).is_dir():
        pytest.skip("WHISPER_MODEL names no folder with a faster-whisper model")
    monkeypatch.setenv("WHISPER_MODEL", WHISPER)
    tools.audio._whisper.cache_clear()
    bench = Bench(tmp_path, None, **LOCAL)
    bench.hold("audio", SPEECH)
    seen = bench(audio_analysis, query="?", audio_path="equinox.wav")
    assert "september 23" in seen.lower()
    (tmp_path / "media" / "equinox.wav").unlink()
    assert bench(audio_analysis, "replay", query="?", audio_path="equinox.wav") == seen


@pytest.fixture
def slow_whisper(monkeypatch: pytest.MonkeyPatch, endpoint: Any) -> Iterator[list[Endpoint]]:
    """A stand-in for faster-whisper whose model takes its time and comes over the network. Returns
    the loads.
    """
    loads: list[Endpoint] = []
    hub = endpoint(lambda request: "")

    class WhisperModel:
        def __init__(self, name: str, **_: Any) -> None:
            loads.append(hub)
            time.sleep(0.05)
            with httpx2.Client() as client:
                assert client.get(f"{hub.url}/model.bin").status_code == 200

        def transcribe(self, path: str, **_: Any) -> Any:
            return [], None

    module = types.ModuleType("faster_whisper")
    module.WhisperModel = WhisperModel  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "faster_whisper", module)
    tools.audio._whisper.cache_clear()
    yield loads
    tools.audio._whisper.cache_clear()


def test_sub_agents_that_start_together_share_one_whisper(slow_whisper):
    threads = [threading.Thread(target=tools.audio.transcribe, args=(SPEECH, "")) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(slow_whisper) == 1


def test_the_download_of_a_local_model_is_not_on_the_tape(slow_whisper, tmp_path):
    bench = Bench(tmp_path, None, **LOCAL)
    bench.hold("audio", SPEECH)
    bench(audio_analysis, query="?", audio_path="equinox.wav")
    assert len(slow_whisper) == 1
    assert [row["request"]["method"] for row in read(tmp_path / "tape.jsonl")] == ["LOCAL"]


# ---- what a model reads of a tool ----------------------------------------------------------------


@tool("PaintAction", "img", "code")
def paint(env: Environment, picture: ImageFile, colour: Literal["red", "blue"] = "red") -> str:
    """Paint it
    all over.

    picture: which one
    colour: of the paint
    """
    return f"{picture} {colour}"


def test_name_and_capabilities_come_from_the_decorator():
    assert (paint.name, paint.capabilities) == ("PaintAction", {"img", "code"})


def test_the_manual_comes_from_signature_and_docstring():
    assert paint.manual == (
        "PaintAction(picture: string, colour: string = 'red')\n"
        "    Paint it all over.\n"
        "    picture: which one\n"
        "    colour: of the paint"
    )


def test_the_schema_comes_from_the_signature_and_lists_the_files_there_are(bench):
    bench.hold("image", CLOCK)
    bench.hold("audio", SPEECH)
    assert paint.schema(bench.task) == {
        "type": "object",
        "properties": {
            "picture": {"type": "string", "enum": ["clock.png"]},
            "colour": {"type": "string", "enum": ["red", "blue"]},
        },
        "required": ["picture"],
        "additionalProperties": False,
    }


def test_a_choice_that_is_none_is_a_mistake_that_names_the_choices(bench):
    with pytest.raises(ModelMistake, match="colour: Input should be 'red' or 'blue'"):
        bench(paint, picture="clock.png", colour="green")


@pytest.mark.parametrize(
    "name, parameters, required",
    [
        ("ImageAnalysisAction", ["query", "image_path"], ["query", "image_path"]),
        ("ParseAudioAction", ["query", "audio_path"], ["query", "audio_path"]),
        ("ExecuteCodeAction", ["code", "code_type", "timeout_sec"], ["code"]),
    ],
)
def test_names_and_parameters_are_those_of_the_released_code(name, parameters, required):
    schema = all_tools()[name].schema(Task("?"))
    assert list(schema["properties"]) == parameters
    assert schema["required"] == required


@pytest.mark.parametrize("name", ["ImageAnalysisAction", "ParseAudioAction", "ExecuteCodeAction"])
def test_every_parameter_of_a_tool_is_explained(name):
    known = all_tools()[name]
    fields = known.parameters.model_fields.values()
    assert known.description and all(f.description for f in fields)
