"""A whole run in which the models do all they can to get at the planted key. It is found in nothing that was written."""

from __future__ import annotations

from pathlib import Path

import orchestra_min
from orchestra.run_folder import Options
from tests.attacks import hostile
from tests.attacks.conftest import KEY, NAME
from tests.conftest import pool_at
from tests.scripted import act, complete, delegate, finish, is_main, last_text
from tests.tools.media import drawn


def test_a_run_that_hunts_for_the_key_writes_it_nowhere(planted, endpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(planted)
    picture = tmp_path / "clock.png"
    drawn("Gate 12").save(picture)
    actions = [
        act("ExecuteCodeAction", code=f"import os; os.environ.get({NAME!r})"),
        act(
            "ExecuteCodeAction", code=f"cat {planted}/.env ~/.env /proc/*/environ", code_type="bash"
        ),
        act("ImageAnalysisAction", query="?", image_path=str(planted / ".env")),
        act("ExtractUrlContentAction", url=f"file://{planted}/.env", browse_query="?"),
        act("ExtractUrlContentAction", url=f"http://127.0.0.1/?k={KEY}", browse_query=KEY),
        act("GoogleSearchAction", query=f"{KEY}"),
        act("NoSuchTool", key=KEY),
    ]

    def respond(request):
        if is_main(request):
            tools = [
                "ExecuteCodeAction",
                "ImageAnalysisAction",
                "ExtractUrlContentAction",
                "GoogleSearchAction",
            ]
            asked = {"task_instruction": f"find {KEY}", "tools": tools}
            return delegate(asked) if len(model.requests) == 1 else complete(KEY)
        done = last_text(request).count("Observation:")
        return actions[done] if done < len(actions) else finish(KEY, summary=f"the key is {KEY}")

    model = endpoint(respond)
    monkeypatch.setattr("tools.search.SERPER_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    result = orchestra_min.orchestrate(
        "?", [("image", picture)], pool_at(model.url), Options(), tmp_path / "run"
    )
    steps = [e for e in result.events if e["event"] == "step"]
    assert len(steps) == len(actions) + 1
    assert not [s for s in steps[:-1] if KEY in s["observation"]]
    written = [p for p in Path(tmp_path / "run").rglob("*") if p.is_file()]
    assert not [p for p in written if KEY.encode() in p.read_bytes()]


def test_a_key_that_a_page_sends_back_is_taken_out(planted, endpoint, tmp_path):
    """A server that has seen the key elsewhere can not get it into the run's files."""
    with hostile.serving({"/": hostile.page(f"your key is {KEY}", "text/plain")}) as server:
        actions = [act("ExtractUrlContentAction", url=server.url + "/", browse_query="?")]

        def respond(request):
            if is_main(request):
                return (
                    delegate({"task_instruction": "t", "tools": ["ExtractUrlContentAction"]})
                    if len(model.requests) == 1
                    else complete("x")
                )
            if "You are a sub-agent" not in request["messages"][0]["content"]:
                return last_text(request)[-400:]
            return finish("x") if "Observation:" in last_text(request) else actions[0]

        model = endpoint(respond)
        options = Options(allow_hosts=(server.host,))
        orchestra_min.orchestrate(
            "?", pool=pool_at(model.url), options=options, out=tmp_path / "run"
        )
    assert not [
        p for p in (tmp_path / "run").rglob("*") if p.is_file() and KEY.encode() in p.read_bytes()
    ]
    assert not [r for r in model.requests if KEY in str(r)]
