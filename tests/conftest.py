# ruff: noqa: F401  what tests take from the program is imported here: one place to change when that moves
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from orchestra.money import Purse
from orchestra.vocabulary import Backend, ConfigError, EndpointError, Media, Price, Task
from runtime.chat import Chat
from runtime.options import Options
from runtime.pool import Engine, Pool
from runtime.tape import Cancelled, Tape, TapeMiss, TapeWriteError
from tests.scripted import Endpoint
from tools import media

FREE = Price(0, 0)
ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-cassettes", action="store_true", help="record tests/cassettes again")


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "SERPER_API_KEY", "JINA_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "ddgs", None)  # as if not installed: tests use no network


@pytest.fixture
def endpoint() -> Iterator[Callable[..., Endpoint]]:
    """Start scripted endpoints; each is closed when the test ends."""
    with ExitStack() as started:
        yield lambda *how, **more: started.enter_context(closing(Endpoint(*how, **more)))


@pytest.fixture
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def pool_at(url: str, *names: str, price: Price | None = FREE, **fields: Any) -> Pool:
    """A pool of scripted backends, free of charge unless said otherwise."""
    fields = {"skills": dict.fromkeys(("txt", "img", "aud", "code"), 1.0), **fields}
    fields |= {"price_usd_per_mtok": price}
    backends = (Backend(name=n, model=n, base_url=url, **fields) for n in names or ("small",))
    return Pool(backends=tuple(backends))
