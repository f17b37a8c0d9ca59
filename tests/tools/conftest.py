from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestra.backends import Chat
from orchestra.money import Purse
from orchestra.pool import Engine, Pool
from orchestra.replay import Tape
from orchestra.vocabulary import Media, Task
from tests.conftest import pool_at
from tools import Environment, all_tools

MODEL = os.environ.get("WHISPER_MODEL", "")
whisper = pytest.mark.skipif(
    not Path(MODEL or "-").is_dir(), reason="WHISPER_MODEL names no folder"
)


class Bench:
    """One sub-agent's environment over given files, and a tape that can be played again."""

    def __init__(self, folder: Path, pool: Pool, *files: tuple[str, Path], **fields: Any) -> None:
        media = tuple(
            Media(kind, p.name, p, hashlib.sha256(p.read_bytes()).hexdigest()) for kind, p in files
        )
        self.folder, self.pool, self.fields = folder, pool, fields
        self.task = Task("Which platform does the train leave from?", media)

    def use(self, tool: str, mode: str = "record", **params: Any) -> str:
        tape = Tape(self.folder / "tape.jsonl", mode)
        given = {"purse": Purse(), "folder": self.folder / "work", **self.fields}
        env = Environment(
            self.task, self.pool["small"], self.pool, Chat(tape), tape, **given
        )  # fmt: skip
        try:
            with tape.logical_call("r1", "t1", "s1", tool):
                return all_tools()[tool](env, params)
        finally:
            tape.close()


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Bench]:
    """Environments with local engines, or with those of a scripted endpoint."""
    (tmp_path / "run").mkdir()

    def make(*files: tuple[str, Path], endpoint: Any = None, **fields: Any) -> Bench:
        pool = pool_at(endpoint.url if endpoint else "http://127.0.0.1:9/v1")
        if endpoint is None:
            pool = Pool(pool.backends, pool.main, {k: Engine("local") for k in ("image", "audio")})
        return Bench(tmp_path / "run", pool, *files, **fields)

    return make


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("SERPER_API_KEY", "JINA_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    yield
