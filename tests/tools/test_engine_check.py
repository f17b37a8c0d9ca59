"""The local engines are looked for before anything is paid."""

from __future__ import annotations

import pytest

import orchestra_min
from orchestra.pool import Engine, Pool
from orchestra.vocabulary import ConfigError
from tests.conftest import ROOT, pool_at
from tools import engines

SPEECH = ROOT / "fixtures" / "media" / "equinox.wav"


@pytest.fixture
def local() -> Pool:
    pool = pool_at("http://127.0.0.1:9/v1")
    return Pool(pool.backends, pool.main, {"image": Engine("local"), "audio": Engine("local")})


@pytest.mark.parametrize(("missing", "kind"), [("faster_whisper", "audio"), ("rapidocr", "video")])
def test_a_library_that_is_missing_ends_the_run_before_it_starts(
    missing, kind, local, tmp_path, monkeypatch
):
    def found(name: str) -> object:
        return None if name == missing else object()

    monkeypatch.setattr(engines, "find_spec", found)
    monkeypatch.setattr("orchestra.media._problem", lambda modality, path: "")
    with pytest.raises(ConfigError, match=f"needs {missing}: pip install -r requirements-local"):
        orchestra_min.orchestrate("?", [(kind, SPEECH)], local, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_without_a_model_is_said(local, tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "find_spec", lambda name: object())
    monkeypatch.setenv("WHISPER_MODEL", str(tmp_path))
    with pytest.raises(ConfigError, match=r"WHISPER_MODEL: .* holds no model.bin"):
        orchestra_min.orchestrate("?", [("audio", SPEECH)], local, out=tmp_path / "run")


def test_a_text_needs_no_engine(local, monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(engines, "find_spec", asked.append)
    engines.check((), local)
    assert asked == []
