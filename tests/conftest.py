# ruff: noqa: F401  what tests take from the program is imported here: one place to change when that moves
import inspect
import re
import shutil
import signal
import socket
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import orchestra_min
from orchestra.kernel import prompts
from orchestra.kernel.chat import Chat
from orchestra.kernel.folder import Options
from orchestra.kernel.money import Purse
from orchestra.kernel.tape import Cancelled, DiskFull, Tape, TapeMiss
from orchestra.kernel.vocabulary import (
    Backend,
    ConfigError,
    EndpointError,
    Engine,
    Media,
    Pool,
    Price,
    Task,
)
from tests.scripted import Endpoint

FREE = Price(0, 0)
settings.register_profile("any speed", deadline=None)
settings.load_profile("any speed")
ROOT = Path(__file__).resolve().parent.parent
needs_sandbox = pytest.mark.sandbox  # `make test-sandbox` runs these alone
needs_git = pytest.mark.git


@cache
def missing(program: str) -> str:
    """Why tests that need this program cannot run here, or ""."""
    if program == "git":
        return "" if shutil.which("git") else "needs git"
    from orchestra.tools import sandbox

    return "needs bubblewrap (apt install bubblewrap)" if sandbox.trouble() else ""


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a background job
        signal.signal(signal.SIGINT, signal.default_int_handler)  # and usual in our children
    for program in ("sandbox", "git"):
        config.addinivalue_line("markers", f"{program}: needs it, else skipped")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers():
        reason = missing(mark.name) if mark.name in ("sandbox", "git") else ""
        if reason:
            pytest.skip(reason)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-cassettes", action="store_true", help="record tests/cassettes again")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was skipped: one line for each reason."""
    skipped = terminalreporter.getreports("skipped")
    for reason in sorted({report.longrepr[2] for report in skipped}):
        terminalreporter.write_line(reason)


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "SERPER_API_KEY", "JINA_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "ddgs", None)  # as if not installed: tests use no network


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before another attempt."""
    monkeypatch.setattr("orchestra.kernel.attempts.PAUSE_S", 0.01)


@pytest.fixture
def endpoint() -> Iterator[Callable[..., Endpoint]]:
    """Start scripted endpoints; each is closed when the test ends."""
    with ExitStack() as started:
        yield lambda *how, **more: started.enter_context(closing(Endpoint(*how, **more)))


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments):
        raise AssertionError(f"a socket to {arguments[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def run(endpoint, tmp_path):
    """Runs of Orchestra-o1 or, with `method=`, of another: see tests/program.py."""
    from tests.program import Runs  # which imports this file

    return Runs(endpoint, tmp_path, "orchestra-o1")


@pytest.fixture
def edited(tmp_path_factory, monkeypatch):
    """`edited(file, old, new)` edits a prompt, until the test ends."""
    folder = tmp_path_factory.mktemp("prompts")

    def edited(file: str, old: str, new: str) -> None:
        shutil.copytree(ROOT / "prompts", folder, dirs_exist_ok=True)
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new))
        monkeypatch.setattr(prompts, "ROOT", folder)
        forget()

    def forget() -> None:
        prompts._template.cache_clear()
        prompts._sections.cache_clear()

    yield edited
    forget()


@pytest.fixture
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def pool_at(url: str, *names: str, price: Price | None = FREE, **fields: Any) -> Pool:
    """A pool of scripted backends, free of charge unless said otherwise."""
    fields = {"skills": dict.fromkeys(("txt", "img", "aud", "code"), 1.0), **fields}
    fields |= {"price_usd_per_mtok": price}
    names = names or ("small",)
    backends = (Backend(name=n, model=n, base_url=url, **fields) for n in names)
    return Pool(tuple(backends), main=names[0])


# ---- PAPERS.md: a test that it names calls a function of its row ---------------------------------

PAPERS = (ROOT / "docs/PAPERS.md").read_text()


def named_in(text: str) -> list[tuple[str, str]]:
    """(file, function) of each `file::function`; "" for a file alone."""
    return re.findall(r"`([\w/]+\.\w+)(?:::([\w.]+))?`", text)


@cache
def papers_rows() -> dict[tuple[str, str], set[tuple[str, str]]]:
    """The functions of the rows that name a test, by (file, test). Names of classes are left out."""
    rows = defaultdict(set)
    for row in PAPERS.splitlines():
        *_, where, tests, _ = ["", "", *row.split("|")]
        places = {place for place in named_in(where) if place[1].rpartition(".")[2].islower()}
        for test in named_in(tests) if places else ():
            rows[test] |= places
    return rows


@pytest.fixture(autouse=True)
def calls_what_papers_md_says(request):
    path = request.path.relative_to(ROOT).as_posix()
    name = ".".join(filter(None, [request.cls and request.cls.__name__, request.function.__name__]))
    rows = papers_rows().get((path, name), ())
    exist = all((ROOT / file).exists() for file, _ in rows)  # test_papers.py tells what does not
    places = {(str(ROOT / file), function) for file, function in rows if exist}

    def note(frame, *_):
        if not places or (frame.f_code.co_filename, frame.f_code.co_qualname) in places:
            places.clear()  # one is enough
            sys.setprofile(None)

    if places:
        threading.setprofile(note)
        sys.setprofile(note)
    yield
    threading.setprofile(None)
    sys.setprofile(None)
    assert not places, places


@pytest.fixture
def sweep(tmp_path, endpoint):
    """`sweep(*flags)` of the first questions: exit code and rows. `sweep.respond` answers."""

    from tests import sweeps  # which imports this module

    def sweep(*flags, count=6):
        if count:
            sweeps.data_file(tmp_path, count)
        return sweeps.sweep(tmp_path, sweep.url, *flags)

    sweep.respond, server = sweeps.number_asked, endpoint(lambda r: sweep.respond(r))
    sweep.url, sweep.requests = server.url, server.requests
    return sweep
