from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model folder and a file of eight examples."""
    pytest.importorskip("torch", reason="torch is not installed: requirements-train.txt")
    from training.examples import write
    from training.tiny import examples, make_model

    home = tmp_path_factory.mktemp("tiny")
    data = examples(8)
    write(home / "train.jsonl", data)
    make_model(data, home / "model", words=384, width=16)
    return home / "model", home / "train.jsonl"
