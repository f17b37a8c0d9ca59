from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestra.vocabulary import Backend, ConfigError, EndpointError, Price
from runtime.pool import Pool
from runtime.run_folder import Options
from runtime.tape import Cancelled, TapeMiss, TapeWriteError
from tests.scripted import Endpoint

__all__ = [
    "Backend", "Cancelled", "ConfigError", "EndpointError", "Options", "Pool", "Price", "TapeMiss",
    "TapeWriteError",
]  # fmt: skip
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "SERPER_API_KEY", "JINA_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "ddgs", None)  # as if not installed: tests use no network


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


def pool_at(url: str, *names: str, price: Price | None = Price(0, 0), **fields: Any) -> Pool:
    """A pool of scripted backends, free of charge unless said otherwise."""
    fields = {
        "skills": {"txt": 1.0, "img": 1.0, "aud": 1.0, "code": 1.0},
        "price_usd_per_mtok": price,
        **fields,
    }
    backends = (Backend(name=n, model=n, base_url=url, **fields) for n in names or ("small",))
    return Pool(backends=tuple(backends))
