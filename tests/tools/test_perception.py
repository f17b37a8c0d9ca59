"""An endpoint that takes only text is no dead end: the libraries on this machine analyse the media."""

import json
import sys
from pathlib import Path

import pytest

from orchestra.tools import audio, image, media, perception
from tests.program import CLOCK, SPEECH, called
from tests.scripted import Raw, act, complete, delegate, finish, is_main, last_text

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")
REFUSALS = {  # as the servers send them
    "llama.cpp": (500, "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"),
    "llama.cpp of 2025": (500, 'Failed to parse messages: Unsupported content part type: "image_url"'),
    "vLLM": (400, "m is not a multimodal model"),
    "Ollama": (500, "this model is missing data required for image input"),
    "Ollama cloud": (400, "this model does not support image input"),
    "OpenAI": (400, "Invalid content type. image_url is only supported by certain models."),
    "OpenRouter": (404, "No endpoints found that support image input"),
}  # fmt: skip
LOOK = {"task_instruction": "look", "tools": ["ImageAnalysisAction"]}
LISTEN = {"task_instruction": "listen", "tools": ["ParseAudioAction"]}


def install(monkeypatch, missing=""):
    """The libraries of this machine, or none."""
    for module in (perception, media):
        monkeypatch.setattr(module, "missing_engine", lambda kind: missing)
    monkeypatch.setattr(image, "read_pages", lambda path: [("", ["Gate 12"])])
    monkeypatch.setattr(audio, "transcribe", lambda path, hint, window: [(0.0, "at noon")])


def has_media(request):
    return "image_url" in json.dumps(request) or "input_audio" in json.dumps(request)


@pytest.fixture
def text_only(endpoint):
    """A server that takes only text. In both of its two rounds two sub-agents look, and one listens."""

    def start(status, message):
        rounds = iter([delegate(LOOK, LOOK, LISTEN)] * 2)

        def respond(request):
            if has_media(request):
                return Raw(status, {"error": {"code": status, "message": message}})
            if is_main(request):
                return next(rounds, complete("42"))
            if "Observation" in last_text(request):
                return finish("seen")
            if "Your task\nlisten" in last_text(request):
                return act("ParseAudioAction", query="?", audio_path=SPEECH.name)
            return act("ImageAnalysisAction", query="?", image_path=CLOCK.name)

        return endpoint(respond)

    return start


@pytest.mark.parametrize("server", REFUSALS)
def test_the_libraries_analyse_what_an_endpoint_refuses(server, text_only, monkeypatch):
    install(monkeypatch)
    small = text_only(*REFUSALS[server])
    done = called("What?", CLOCK, SPEECH, "--model", "m", "--out", "run", at=small.url)
    assert (done.returncode, done.stdout) == (0, "42\n") and "Gate 12" in str(small.requests)
    told = [line for line in done.stderr.splitlines() if "a library on this machine" in line]
    assert len(told) == 2 and "images" in "".join(told) and "sound" in "".join(told)
    # each sub-agent of the first round meets the refusal once, without further attempts
    assert sum(map(has_media, small.requests)) == 3 and "waiting for" not in done.stderr


def test_a_replay_of_it_needs_no_library(text_only, monkeypatch):
    install(monkeypatch)
    small = text_only(*REFUSALS["llama.cpp"])
    called("What?", CLOCK, SPEECH, "--model", "m", "--out", "run", at=small.url)
    install(monkeypatch, missing="rapidocr")
    assert called("--replay", "run").stdout == "42\n"


def test_a_replay_of_a_run_without_a_library_does_not_use_one(text_only, monkeypatch):
    install(monkeypatch, missing="rapidocr")
    small = text_only(*REFUSALS["llama.cpp"])
    done = called("What?", CLOCK, SPEECH, "--model", "m", "--out", "run", at=small.url)
    assert done.stderr.count("pip install '.[local]', then --resume the run with") == 2
    install(monkeypatch)
    assert called("--replay", "run").stdout == "42\n"


def test_a_resume_with_the_libraries_reads_the_media_and_replays(text_only, monkeypatch):
    install(monkeypatch, missing="rapidocr")
    small = text_only(*REFUSALS["llama.cpp"])
    done = called("What?", CLOCK, "--method", "react", "--model", "m", "--out", "run", at=small.url)
    assert done.returncode == 4 and "use --perception local" in done.stderr
    install(monkeypatch)
    again = called("--resume", "run", "--perception", "local", at=small.url)
    assert (again.returncode, again.stdout) == (0, "seen\n")
    assert (
        sum(map(has_media, small.requests)) == 1 and "Gate 12" in Path("run/tape.jsonl").read_text()
    )
    assert called("--replay", "run").stdout == "seen\n"


@pytest.fixture
def seen_locally(endpoint, monkeypatch):
    """A run whose last call failed; the library has read the picture."""
    answers = [
        delegate(LOOK),
        act("ImageAnalysisAction", query="?", image_path=CLOCK.name),
        finish("gate 12"),
        Raw(401, {}),
    ]
    left = iter(answers)
    server = endpoint(lambda request: next(left, complete("42")))
    words = "--perception", "local", "--model", "m", "--out", "run"
    with monkeypatch.context() as installed:
        install(installed)
        assert called("What?", CLOCK, *words, at=server.url).returncode == 4
    monkeypatch.setattr(media, "missing_engine", lambda kind: "rapidocr")
    monkeypatch.setattr(image, "_ocr", image._ocr.__wrapped__)
    monkeypatch.setitem(sys.modules, "rapidocr", None)
    return server


def test_a_resume_that_analyses_nothing_new_needs_no_library(seen_locally):
    again = called("--resume", "run", at=seen_locally.url)
    assert (again.returncode, again.stdout) == (0, "42\n")


def test_a_resume_that_must_read_a_picture_says_what_to_install(seen_locally):
    tape = Path("run/tape.jsonl")
    lines = tape.read_text().splitlines(keepends=True)
    tape.write_text("".join(line for line in lines if '"kind": "ocr"' not in line))
    again = called("--resume", "run", at=seen_locally.url)
    assert again.returncode == 2, again.stderr
    assert "the local engine for image needs rapidocr: pip install '.[local]'" in again.stderr


def test_a_resume_that_names_the_libraries_needs_them_at_once(seen_locally):
    asked = len(seen_locally.requests)
    again = called("--resume", "run", "--perception", "local", at=seen_locally.url)
    assert again.returncode == 2 and "needs rapidocr" in again.stderr
    assert len(seen_locally.requests) == asked
