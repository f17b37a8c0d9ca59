"""All six tools in one recorded question over a picture, a recording and a video, with the real local engines."""

from __future__ import annotations

import pytest

import orchestra_min
from orchestra.pool import Engine, Pool
from orchestra.run_folder import Options
from tests.attacks import hostile
from tests.conftest import pool_at
from tests.scripted import Raw, act, complete, delegate, finish, is_main, last_text
from tests.tools.conftest import whisper
from tests.tools.media import drawn, film, speech
from tools import search

TASKS = {
    "look": ("ImageAnalysisAction", {"query": "?", "image_path": "board.png"}, "Gate 12"),
    "listen": ("ParseAudioAction", {"query": "?", "audio_path": "call.wav"}, "platform"),
    "watch": ("VideoAnalysisAction", {"query": "?", "video_path": "hall.mp4"}, "Gate 2"),
    "search": ("GoogleSearchAction", {"query": "train times"}, "Timetable"),
    "visit": (
        "ExtractUrlContentAction",
        {"url": "{page}", "browse_query": "When?"},
        "nine fifteen",
    ),
    "compute": (
        "ExecuteCodeAction",
        {"code": "import os; sorted(os.listdir('media'))"},
        "hall.mp4",
    ),
}


@whisper
def test_all_six_tools_answer_one_question_and_replay(endpoint, tmp_path, monkeypatch):
    pytest.importorskip("rapidocr")
    monkeypatch.delenv("JINA_API_KEY", raising=False)
    drawn("Gate 12").save(tmp_path / "board.png")
    speech(tmp_path / "call.wav")
    film(tmp_path / "hall.mp4", "libx264", "aac")
    media = [
        ("image", tmp_path / "board.png"),
        ("audio", tmp_path / "call.wav"),
        ("video", tmp_path / "hall.mp4"),
    ]

    def respond(request):
        if "q" in request:  # a search, not a chat
            return Raw(
                200, {"organic": [{"title": "Timetable", "link": page, "snippet": "all trains"}]}
            )
        if is_main(request):
            rows = [
                {"id": n, "task_instruction": f"Do {n}.", "tools": [t]}
                for n, (t, *_) in TASKS.items()
            ]
            return complete("9:15") if len(model.requests) > 1 else delegate(*rows)
        text = last_text(request)
        if "You are a sub-agent" not in request["messages"][0]["content"]:
            return "The train leaves at nine fifteen."
        name = next(n for n in TASKS if f"Do {n}." in text)
        tool, params, _ = TASKS[name]
        return (
            finish(name)
            if "Observation:" in text
            else act(tool, **{k: v.replace("{page}", page) for k, v in params.items()})
        )

    with hostile.serving({"/times": hostile.page("The train: nine fifteen.", "text/plain")}) as web:
        page = web.url + "/times"
        model = endpoint(respond)
        monkeypatch.setenv("SERPER_API_KEY", "serper-key-1234567890")
        monkeypatch.setattr(search, "SERPER_URL", model.url)
        pool = pool_at(model.url)
        pool = Pool(pool.backends, pool.main, {k: Engine("local") for k in ("image", "audio")})
        options = Options(allow_hosts=(web.host,))
        result = orchestra_min.orchestrate("When?", media, pool, options, tmp_path / "run")
    asked = len(model.requests)
    seen = {e["action"]: e["observation"] for e in result.events if e["event"] == "step"}
    missing = {t: seen[t] for t, _, words in TASKS.values() if words.lower() not in seen[t].lower()}
    assert not missing
    monkeypatch.delenv("SERPER_API_KEY")
    again = orchestra_min.replay(tmp_path / "run")
    assert (again.answer, len(model.requests)) == (result.answer, asked) == ("9:15", asked)
