"""No secret in any file of a run, however it came there."""

from __future__ import annotations

import json
import sys
from contextlib import closing

import pytest

import orchestra_min
from orchestra import secrets, trust
from orchestra.replay import Tape
from orchestra.run_folder import Manifest, Options, read_manifest, write_manifest
from orchestra.vocabulary import ConfigError, EndpointError, Task
from tests.asking import answering, ask
from tests.conftest import ROOT, pool_at
from tests.scripted import Raw, complete, completion


@pytest.mark.parametrize("before", ["\n", "\t", " ", '"', "\\n"])
def test_a_key_shaped_word_is_found_behind_any_space(before):
    assert "sk-abcdefghij0123456789" not in secrets.scrub(
        json.dumps(f"see{before}sk-abcdefghij0123456789")
    )


def test_a_secret_in_the_question_reaches_no_file(endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "top-secret-value-1")
    secrets.look_up()
    server = endpoint(answering(complete("42")))
    orchestra_min.orchestrate(
        "Is top-secret-value-1 safe?", pool=pool_at(server.url), out=tmp_path / "run"
    )
    written = [p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()]
    assert written and not any(b"top-secret-value-1" in data for data in written)
    monkeypatch.undo()
    secrets.look_up()
    assert orchestra_min.replay(tmp_path / "run").answer == "42"


def test_a_dummy_key_that_is_a_word_is_no_secret(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "anything")
    secrets.look_up()
    try:
        assert secrets.scrub("You can do anything here") == "You can do anything here"
    finally:
        monkeypatch.undo()
        secrets.look_up()


def test_a_search_key_follows_no_redirect(endpoint, monkeypatch, tmp_path):
    from tools import ToolError, search

    elsewhere = endpoint(answering({"organic": []}))
    server = endpoint(answering(Raw(302, b"", location=elsewhere.url)))
    monkeypatch.setenv("SERPER_API_KEY", "serper-key-1234567890")
    monkeypatch.setattr(search, "SERPER_URL", server.url)
    with pytest.raises(ToolError):
        search.serper({"q": "x", "num": 3})
    assert elsewhere.requests == []


def test_a_secret_of_digits_leaves_json_whole(endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", "20250923")
    said = {**completion("it is 20250923"), "created": 2025092312}
    server = endpoint(lambda request: said)
    for mode in ("record", "replay"):
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape:
            assert ask(tape, server.url) == "it is <DB_PASSWORD>"


def test_no_run_json_holds_a_secret_and_a_resume_has_it_again(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "a1b2c3d4e5f6")
    secrets.look_up()
    options = Options(mcp=("serve a1b2c3d4e5f6",))
    write_manifest(tmp_path, Manifest(Task("?", ()), pool_at("http://127.0.0.1:9/v1"), options))
    trust.claim(tmp_path)
    assert "a1b2c3d4e5f6" not in (tmp_path / "run.json").read_text()

    def resumed(*mcp: str) -> tuple[str, ...]:
        manifest = read_manifest(tmp_path)
        return trust.checked(tmp_path, manifest, trust.Named(mcp=mcp), resumed=True).options.mcp

    assert resumed() == ("serve a1b2c3d4e5f6",)
    (tmp_path / "owner").unlink()  # a stranger's: the user's key goes where the user sends it
    with pytest.raises(ConfigError, match="add --mcp 'serve <MY_TOKEN>'"):
        resumed()
    assert resumed("serve a1b2c3d4e5f6") == ("serve a1b2c3d4e5f6",)
    assert resumed("serve <MY_TOKEN>") == ("serve <MY_TOKEN>",)


@pytest.mark.parametrize("value", ["dummy", "", "short1", "a1b2c3d4e5f6"])
def test_a_replay_needs_no_secret_of_the_record(value, endpoint, tmp_path, monkeypatch):
    pytest.importorskip("mcp")
    (tmp_path / "server.py").write_text(
        "from mcp.server import MCPServer\nserver = MCPServer('x')\n\n\n@server.tool()\n"
        "def add(a: int) -> int:\n    'Add.'\n    return a\n\n\nserver.run()\n"
    )
    monkeypatch.setenv("MY_TOKEN", "a1b2c3d4e5f6")
    command = f"{sys.executable} {tmp_path}/server.py a1b2c3d4e5f6"
    pool = pool_at(endpoint(lambda request: complete("42")).url)
    orchestra_min.orchestrate("?", (), pool, Options(mcp=(command,)), tmp_path / "run")
    monkeypatch.setenv("MY_TOKEN", value)
    assert orchestra_min.replay(tmp_path / "run").answer == "42"


def test_a_redirect_leaves_no_key_on_the_tape(endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "a1b2c3d4e5f6")
    to = "http://127.0.0.1:9/v1?api_key=other-key-1234&x=a1b2c3d4e5f6"
    server = endpoint(lambda request: Raw(307, b"", location=to))
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape, pytest.raises(EndpointError):
        ask(tape, server.url)
    text = (tmp_path / "tape.jsonl").read_text()
    assert "other-key-1234" not in text and "a1b2c3d4e5f6" not in text and "<SECRET>" in text


def test_an_address_with_a_key_in_it_is_none(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "a1b2c3d4e5f6")
    secrets.look_up()
    assert secrets.url_problem("http://a/a1b2c3d4e5f6/v1").startswith("holds a key")


def test_a_file_named_like_a_key_has_another_name_in_the_run(endpoint, tmp_path):
    picture = tmp_path / "hf-20240612-evening-walk.png"
    picture.write_bytes((ROOT / "fixtures" / "media" / "clock.png").read_bytes())
    pool = pool_at(endpoint(lambda request: "no decision").url)
    orchestra_min.orchestrate("?", [("image", picture)], pool, Options(), tmp_path / "run")
    assert [p.name for p in (tmp_path / "run" / "media").iterdir()] == ["media.png"]
    orchestra_min.replay(tmp_path / "run")
