"""The engines of this machine, looked for before anything is paid."""

import sys

import pytest

import orchestra_min
from tests.conftest import ConfigError
from tests.program import CLOCK, SPEECH
from tests.tools.conftest import local_pool
from tools import ToolError, audio, image
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
