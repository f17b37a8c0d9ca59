"""The engines of this machine: looked for before anything is paid, and behind all six tools in one recorded question."""

import sys

import pytest

import orchestra_min
from tests.attacks import hostile
from tests.conftest import ROOT, ConfigError, Options
from tests.scripted import Raw, act, complete, delegate, finish, is_main, last_text
from tests.tools.conftest import local_pool, rapidocr, whisper
from tests.tools.media import SPEECH, film, saved
from tools import ToolError, audio, engines, image, search

CLOCK = ROOT / "fixtures" / "media" / "clock.png"


@pytest.mark.parametrize(
    ("kind", "path", "module", "told"),
    [("image", CLOCK, "rapidocr", "RapidOCR"), ("audio", SPEECH, "faster_whisper", "faster-whisper")],
)  # fmt: skip
def test_an_engine_that_is_not_installed_is_told(kind, path, module, told, bench, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    image._ocr.cache_clear()
    audio._whisper_model.cache_clear()
    with pytest.raises(ToolError, match=f"{told} is not"):
        bench((kind, path)).analyse()


@pytest.mark.parametrize(("missing", "kind"), [("faster_whisper", "audio"), ("rapidocr", "video")])
def test_a_library_that_is_missing_ends_the_run_before_it_starts(
    missing, kind, tmp_path, monkeypatch
):
    monkeypatch.setattr(engines, "find_spec", lambda name: None if name == missing else object())
    monkeypatch.setattr("tools.media._problem", lambda modality, path: "")
    with pytest.raises(ConfigError, match=f"needs {missing}: pip install .orchestra-min"):
        orchestra_min.orchestrate("?", [(kind, SPEECH)], local_pool(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_without_a_model_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "find_spec", lambda name: object())
    monkeypatch.setenv("WHISPER_MODEL", str(tmp_path))
    with pytest.raises(ConfigError, match=r"WHISPER_MODEL: .* holds no model.bin"):
        orchestra_min.orchestrate("?", [("audio", SPEECH)], local_pool(), out=tmp_path / "run")


def test_a_text_needs_no_engine(monkeypatch):
    monkeypatch.setattr(engines, "find_spec", lambda name: pytest.fail(f"{name} is looked for"))
    engines.check((), local_pool())


TASKS = {  # a tool, what it is given, and what is then seen
    "ImageAnalysisAction": ({"query": "?", "image_path": "board.png"}, "Gate 12"),
    "ParseAudioAction": ({"query": "?", "audio_path": "equinox.wav"}, "September 23"),
    "VideoAnalysisAction": ({"query": "?", "video_path": "hall.mp4"}, "Gate 2"),
    "GoogleSearchAction": ({"query": "train times"}, "Timetable"),
    "ExtractUrlContentAction": ({"url": "{page}", "browse_query": "When?"}, "nine fifteen"),
    "ExecuteCodeAction": ({"code": "import os; sorted(os.listdir('media'))"}, "hall.mp4"),
}


@whisper
@rapidocr
def test_all_six_tools_answer_one_question_and_replay(endpoint, tmp_path, monkeypatch):
    media = [
        ("image", saved(tmp_path / "board.png", "Gate 12")),
        ("audio", SPEECH),
        ("video", film(tmp_path / "hall.mp4", sound="aac")),
    ]

    def respond(request):
        if "q" in request:  # a search, not a chat
            return Raw(200, {"organic": [{"title": "Timetable", "link": page}]})
        if is_main(request):
            rows = [{"id": t, "task_instruction": f"Do {t}.", "tools": [t]} for t in TASKS]
            return complete("9:15") if len(model.requests) > 1 else delegate(*rows)
        text = last_text(request)
        if "You are a sub-agent" not in request["messages"][0]["content"]:
            return "The train leaves at nine fifteen."
        tool = next(t for t in TASKS if f"Do {t}." in text)
        params = {k: v.replace("{page}", page) for k, v in TASKS[tool][0].items()}
        return finish(tool) if "Observation:" in text else act(tool, **params)

    with hostile.serving({"/times": hostile.page("The train: nine fifteen.", "text/plain")}) as web:
        page, model = web.url + "/times", endpoint(respond)
        monkeypatch.setenv("SERPER_API_KEY", "serper-key-1234567890")
        monkeypatch.setattr(search, "SERPER_URL", model.url)
        pool, options = local_pool(model.url), Options(allow_hosts=(web.host,))
        result = orchestra_min.orchestrate("When?", media, pool, options, tmp_path / "run")
    asked = len(model.requests)
    seen = {e["action"]: e["observation"].lower() for e in result.events if e["event"] == "step"}
    assert not {t: seen[t] for t, (_, words) in TASKS.items() if words.lower() not in seen[t]}
    monkeypatch.delenv("SERPER_API_KEY")
    again = orchestra_min.replay(tmp_path / "run")
    assert (again.answer, len(model.requests)) == (result.answer, asked) == ("9:15", asked)
