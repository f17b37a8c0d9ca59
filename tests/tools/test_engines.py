"""The engines of this machine, looked for before anything is paid, and all six tools in one recorded question."""

import os
import subprocess
import sys

import pytest

import orchestra_min
from tests.attacks import hostile
from tests.conftest import ConfigError, Options, pool_at
from tests.program import CLOCK, SPEECH
from tests.scripted import Raw, act, complete, delegate, finish, is_main, last_text
from tests.tools.conftest import local_pool
from tests.tools.media import film
from tools import ToolError, audio, image, search
from tools import media as media_files


@pytest.mark.parametrize(("kind", "path", "missing"), [("image", CLOCK, "rapidocr"), ("audio", SPEECH, "faster_whisper")])  # fmt: skip
def test_an_engine_that_is_not_installed_is_told(kind, path, missing, bench, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    image._ocr.cache_clear()
    audio._whisper.cache_clear()
    with pytest.raises(ToolError, match="not set up: .* is not installed"):
        bench((kind, path)).analyse()


@pytest.mark.parametrize(("missing", "kind"), [("faster_whisper", "audio"), ("rapidocr", "video")])
def test_a_missing_library_ends_a_run_before_it_starts(missing, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(media_files, "find_spec", lambda name: name != missing or None)
    monkeypatch.setattr("tools.media._checked", lambda *given: given)
    with pytest.raises(ConfigError, match=f"needs {missing}: pip install .orchestra-min"):
        orchestra_min.orchestrate("?", [(kind, SPEECH)], local_pool(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_without_a_model_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(media_files, "find_spec", lambda name: object())
    monkeypatch.setenv("WHISPER_MODEL", str(tmp_path))
    with pytest.raises(ConfigError, match=r"WHISPER_MODEL: .* holds no model.bin"):
        media_files.check_engines(["audio"], local_pool())


@pytest.mark.parametrize(("name", "words"), [
    ("none.png", "No such file"), ("folder", "not a regular file"), ("pipe", "not a regular file"), ("empty", "no picture and no sound"),
])  # fmt: skip
def test_what_is_no_file_of_media_is_told_before_a_run(name, words, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=words):
        media_files.check([tmp_path / name])


def test_a_text_loads_no_library_of_media():
    code = "import sys, orchestra_min; assert not {'av', 'PIL', 'numpy'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=CLOCK.parents[2])


def test_a_text_needs_no_engine(monkeypatch):
    monkeypatch.setattr(media_files, "find_spec", lambda name: pytest.fail(f"{name} is looked for"))
    media_files.check_engines((), local_pool())


TASKS = {  # a tool, what it is given, and what is then seen
    "ImageAnalysisAction": ({"query": "?", "image_path": "clock.png"}, "nine fifteen"),
    "ParseAudioAction": ({"query": "?", "audio_path": "equinox.wav"}, "[0:00] nine fifteen"),
    "VideoAnalysisAction": ({"query": "?", "video_path": "hall.mp4"}, "hall.mp4 has no sound"),
    "GoogleSearchAction": ({"query": "train times"}, "Timetable"),
    "ExtractUrlContentAction": ({"url": "{page}", "browse_query": "When?"}, "nine fifteen"),
    "ExecuteCodeAction": ({"code": "import os; sorted(os.listdir('media'))"}, "hall.mp4"),
}


def test_all_six_tools_answer_one_question_and_replay(endpoint, tmp_path, monkeypatch):
    def respond(request):
        if "q" in request:  # a search, not a chat
            return Raw(200, {"organic": [{"title": "Timetable"}]})
        if is_main(request):
            rows = [{"id": t, "task_instruction": f"Do {t}.", "tools": [t]} for t in TASKS]
            return complete("9:15") if len(model.requests) > 1 else delegate(*rows)
        if "You are a sub-agent" not in request["messages"][0]["content"]:
            return "nine fifteen"  # what a model sees, hears or reads
        tool = next(t for t in TASKS if f"Do {t}." in last_text(request))
        given = {k: v.replace("{page}", web.url + "/times") for k, v in TASKS[tool][0].items()}
        return finish(tool) if "Observation:" in last_text(request) else act(tool, **given)

    model, media = endpoint(respond), [CLOCK, SPEECH, film(tmp_path / "hall.mp4")]
    monkeypatch.setenv("SERPER_API_KEY", "serper-key-1234567890")
    monkeypatch.setattr(search, "SERPER_URL", model.url)
    with hostile.serving({"/times": hostile.page("The train: 9:15.", "text/plain")}) as web:
        options = Options(allow_hosts=(web.host,))
        run = orchestra_min.orchestrate("?", media, pool_at(model.url), options, tmp_path / "run")
    seen = {e["action"]: e["observation"] for e in run.events if e["event"] == "step"}
    assert not {t: seen[t] for t, (_, words) in TASKS.items() if words not in seen[t]}
    monkeypatch.delenv("SERPER_API_KEY")
    asked = len(model.requests)
    again = orchestra_min.replay(tmp_path / "run")
    assert (again.answer, len(model.requests)) == (run.answer, asked) == ("9:15", asked)
