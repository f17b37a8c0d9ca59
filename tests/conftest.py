from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestra.pool import Pool, default_engines
from orchestra.vocabulary import Backend, Price
from tests.scripted import Endpoint

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "SERPER_API_KEY", "JINA_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "ddgs", None)  # as if not installed: tests ask no network


@pytest.fixture
def endpoint() -> Iterator[Callable[..., Endpoint]]:
    """Start scripted endpoints; each is closed when the test ends."""
    started: list[Endpoint] = []

    def start(respond: Callable[[dict[str, Any]], Any], **options: Any) -> Endpoint:
        started.append(Endpoint(respond, **options))
        return started[-1]

    yield start
    for e in started:
        e.close()


def pool_at(url: str, *names: str, **fields: Any) -> Pool:
    """A pool of scripted backends, free of charge unless said otherwise."""
    fields = {
        "skills": {"txt": 1.0, "img": 1.0, "aud": 1.0, "code": 1.0},
        "price": Price(0, 0, 0),
        **fields,
    }
    backends = tuple(Backend(name=n, model=n, base_url=url, **fields) for n in names or ("small",))
    pool = Pool(backends, backends[0].name, {})
    return Pool(backends, pool.main, default_engines(pool))
