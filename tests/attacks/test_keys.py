"""Whole runs in which the models try to get at the planted key. No file of the run contains it."""

import pytest

import orchestra_min
from tests.attacks import hostile
from tests.attacks.conftest import KEY, NAME
from tests.conftest import Options, pool_at
from tests.program import any_method
from tests.scripted import Raw, act, complete, delegate, finish, is_main, last_text
from tests.tools.media import saved

TOOLS = ["ExecuteCodeAction", "ImageAnalysisAction", "ExtractUrlContentAction", "GoogleSearchAction"]  # fmt: skip


def run_of(endpoint, folder, actions, **options):
    """A run whose sub-agent takes these actions and whose models repeat the key. Returns the endpoint and the steps."""

    def respond(request):
        if is_main(request):
            asked = {"task_instruction": f"find {KEY}", "tools": TOOLS}
            return delegate(asked) if len(model.requests) == 1 else complete(KEY)
        if "You are a sub-agent" not in request["messages"][0]["content"]:
            return last_text(request)[-400:]
        done = last_text(request).count("Observation:")
        return actions[done] if done < len(actions) else finish(KEY, summary=f"the key is {KEY}")

    model = endpoint(respond)
    media, pool = [("image", saved(folder / "clock.png", "Gate 12"))], pool_at(model.url)
    result = orchestra_min.orchestrate("?", media, pool, Options(**options), folder / "run")
    written = [p for p in (folder / "run").rglob("*") if p.is_file()]
    assert not [p for p in written if KEY.encode() in p.read_bytes()]
    return model, [e for e in result.events if e["event"] == "step"]


def test_a_run_that_hunts_for_the_key_writes_it_nowhere(planted, endpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(planted)
    monkeypatch.setattr("tools.search.SERPER_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    actions = [
        act("ExecuteCodeAction", code=f"import os; os.environ.get({NAME!r})"),
        act("ExecuteCodeAction", code=f"cat {planted}/.env ~/.env /proc/*/environ", code_type="bash"),
        act("ImageAnalysisAction", query="?", image_path=str(planted / ".env")),
        act("ExtractUrlContentAction", url=f"file://{planted}/.env", browse_query="?"),
        act("ExtractUrlContentAction", url=f"http://127.0.0.1/?k={KEY}", browse_query=KEY),
        act("GoogleSearchAction", query=f"{KEY}"),
        act("NoSuchTool", key=KEY),
    ]  # fmt: skip
    _, steps = run_of(endpoint, tmp_path, actions)
    assert len(steps) == len(actions) + 1
    assert not [s for s in steps[:-1] if KEY in s["observation"]]


def test_a_key_that_a_page_sends_back_is_taken_out(planted, endpoint, tmp_path):
    """A server that knows the key cannot get it into the run's files."""
    with hostile.serving({"/": hostile.page(f"your key is {KEY}", "text/plain")}) as server:
        actions = [act("ExtractUrlContentAction", url=server.url + "/", browse_query="?")]
        model, _ = run_of(endpoint, tmp_path, actions, allow_hosts=(server.host,))
    read = [last_text(r) for r in model.requests if "your key is" in last_text(r)]
    assert read and not [text for text in read if f"your key is {KEY}" in text]


@pytest.mark.parametrize("said", [f"limit of {KEY}", f"{'x' * 280} {KEY}"])
def test_a_key_in_the_error_of_an_endpoint_is_taken_out(said, planted, endpoint, tmp_path):
    errors = iter([Raw(500, {"error": {"message": said}})])
    server = endpoint(lambda request: next(errors, None) or any_method(request))
    told = []
    options = {"pool": pool_at(server.url), "listeners": [lambda event: told.append(str(event))]}
    orchestra_min.orchestrate("?", out=tmp_path / "run", **options)
    texts = [*told, *(p.read_text() for p in (tmp_path / "run").iterdir() if p.is_file())]
    assert any("attempt 2" in text for text in texts)
    assert not any(KEY[:12] in text for text in texts)
