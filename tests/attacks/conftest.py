"""Plants a key in the environment, a .env file and a home folder before the attacks. After them, searches everything
that was written for it: observations, tapes, trajectories, logs."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

KEY = "sk-planted-" + "7f3a9c21e8d04b56" * 2
NAME = "ORCHESTRA_TEST_API_KEY"


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home folder with the key, which is also in the environment."""
    home = tmp_path_factory.mktemp("home")
    for name in (".env", "notes.txt", ".netrc"):
        (home / name).write_text(f"{NAME}={KEY}\n")
    os.environ[NAME] = KEY
    yield home
    del os.environ[NAME]
    written = [p for p in tmp_path_factory.getbasetemp().rglob("*") if p.is_file()]
    leaks = [p for p in written if home not in p.parents and KEY.encode() in p.read_bytes()]
    assert not leaks, f"the planted key is in {leaks}"
