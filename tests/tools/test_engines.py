"""Who analyses pictures and sound, and what is asked for before a run begins."""

import json
import shutil
from dataclasses import replace

import pytest

from orchestra.evaluation.command import main as evaluate
from orchestra.tools import media
from tests.conftest import ConfigError, Engine, pool_at
from tests.program import CLOCK, any_method, called, line_of
from tests.tools.conftest import local_pool

LOCAL = '[[backend]]\nname = "a"\nmodel = "a"\nbase_url = "{}"\n[engines]\nimage = {{ engine = "local" }}\n'
URL = "http://127.0.0.1:9/v1"
BLIND = pool_at(URL, skills={"txt": 1.0})
TWO = replace(
    BLIND, backends=(*BLIND.backends, *pool_at(URL, "eyes", skills={"img": 0.5}).backends)
)


def test_without_an_entry_the_first_backend_with_the_skill_looks_else_a_library():
    assert TWO.engine_of("image") == Engine("endpoint", "eyes")
    assert TWO.engine_of("audio") == BLIND.engine_of("image") == Engine("local")


def test_an_entry_of_the_pool_counts_first():
    assert replace(TWO, engines={"image": {"engine": "local"}}).engine_of("image") == Engine(
        "local"
    )
    heard = {"engine": "endpoint", "backend": "small", "transcription_model": "whisper-1"}
    heard["usd_per_minute"] = 0.6
    found = replace(TWO, engines={"audio": heard}).engine_of("audio")
    assert found == Engine("endpoint", "small", "whisper-1", 0.6)


@pytest.mark.parametrize(("kinds", "missing", "told"), [
    (["audio"], "faster_whisper", "audio needs faster_whisper"), (["image"], "onnxruntime", "image needs onnxruntime"),
    (["video"], "rapidocr", "image needs rapidocr"), (["video"], "faster_whisper", "audio needs faster_whisper"),
])  # fmt: skip
def test_a_library_that_is_not_installed_is_told_before_the_run(kinds, missing, told, monkeypatch):
    monkeypatch.setattr(media, "find_spec", lambda name: name != missing or None)
    with pytest.raises(ConfigError, match=f"the local engine for {told}: pip install"):
        media.check_engines(kinds, local_pool())
    media.check_engines(["file"], local_pool())
    media.check_engines(kinds, pool_at(URL))  # a model of the pool looks and listens


@pytest.mark.parametrize("is_sweep", [False, True])
def test_nothing_is_paid_before_a_library_is_found_to_be_missing(is_sweep, endpoint, tmp_path, monkeypatch, capsys):  # fmt: skip
    monkeypatch.setattr(media, "find_spec", lambda name: name != "rapidocr" or None)
    server = endpoint(any_method)
    (tmp_path / "pool.toml").write_text(LOCAL.format(server.url))
    flags = (
        "--method",
        "react",
        "--backends",
        str(tmp_path / "pool.toml"),
        "--out",
        str(tmp_path / "o"),
    )
    if is_sweep:
        row = {"question": "?", "answer": "42", "media": ["clock.png"]}
        shutil.copy(CLOCK, tmp_path)
        (tmp_path / "data.json").write_text(json.dumps([row]))
        evaluate(["run", "--data", str(tmp_path / "data.json"), *flags])
        told = capsys.readouterr().err
    else:
        told = line_of(called("?", CLOCK, *flags))
    assert "image needs rapidocr" in told
    assert not [r for r in server.requests if "messages" in r]


def test_a_folder_without_a_model_of_whisper_is_told_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WHISPER_MODEL", str(tmp_path))
    with pytest.raises(ConfigError, match="WHISPER_MODEL: no model.bin in"):
        media.check_engines([], pool_at(URL))
