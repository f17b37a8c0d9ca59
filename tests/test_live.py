"""--live: a page on this machine that follows a run while it grows."""

import http.client
import os
import threading
import time
from contextlib import closing
from functools import partial
from urllib.parse import urlsplit

import pytest

import orchestra_min
from orchestra.report import command as report
from orchestra.report.live import serve
from orchestra.report.page import page as page_of
from orchestra.report.totals import is_running
from tests import browser
from tests.conftest import Options, pool_at
from tests.scripted import complete, delegate, finish, is_main, last_text
from tests.test_report import needs_chromium


@pytest.fixture
def server():
    """A server of a page whose data is n; `grow` makes it newer."""
    data = {"n": 0, "texts": []}
    with serve(lambda: dict(data), lambda: str(data["n"])) as url:
        yield urlsplit(url), lambda: data.update(n=data["n"] + 1)


def get(url, path, host=None):
    with closing(http.client.HTTPConnection(url.hostname, url.port, timeout=10)) as connection:
        connection.request("GET", path, headers={"Host": host or url.netloc})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_the_page_is_only_for_who_knows_its_path_and_names_this_host(server):
    url, _ = server
    assert url.hostname == "127.0.0.1" and len(url.path) > 20
    assert get(url, url.path)[0] == 200
    for path in ("/", "/data", url.path[:-2] + "/", url.path + "../etc/passwd"):
        assert get(url, path)[0] == 404
    for host in ("evil.test", f"evil.test:{url.port}", f"localhost:{url.port}", "127.0.0.1"):
        status, text = get(url, url.path, host)
        assert status == 403 and "<script" not in text


def test_a_page_may_ask_only_its_own_server(server):
    url, _ = server
    assert "connect-src 'self'" in get(url, url.path)[1]
    assert "connect-src" not in page_of({})


def test_data_that_a_page_has_is_not_sent_again(server):
    url, grow = server
    assert get(url, f"{url.path}data?0") == (204, "")
    grow()
    status, text = get(url, f"{url.path}data?0")
    assert status == 200 and text
    assert get(url, f"{url.path}data?1") == (204, "")


def respond(request):
    if is_main(request):
        done = "it is 42" in last_text(request)
        return complete("42") if done else delegate("look", "look again")
    return finish("it is 42")


@pytest.fixture
def growing(endpoint, tmp_path, request):
    """The folder of a run that is in progress. The parameters: how many sub-tasks run at a time,
    and how many seconds a call takes; a browser needs some to start.
    """
    parallel, call_s = getattr(request, "param", (8, 1.0))
    server = endpoint(lambda request: time.sleep(call_s) or respond(request))
    pool, options = pool_at(server.url), Options.of(parallel=parallel)
    how = {"pool": pool, "options": options, "out": tmp_path / "run"}
    thread = threading.Thread(target=orchestra_min.orchestrate, args=("?",), kwargs=how)
    thread.start()
    while thread.is_alive() and not (server.requests and is_running(tmp_path / "run")):
        time.sleep(0.02)
    yield tmp_path / "run"
    thread.join()


@needs_chromium
@pytest.mark.parametrize("growing", [(8, 4.0)], indirect=True)
def test_a_live_page_grows_with_its_run_and_ends_with_it(growing, capsys):
    following = threading.Thread(target=report.follow, args=(growing,))
    following.start()
    printed = ""
    while "http" not in printed and following.is_alive():
        printed += capsys.readouterr().out
    assert "http" in printed, (printed, is_running(growing))
    with browser.opened(printed.split()[-1]) as page:
        page.until("document.querySelector('.state')?.innerText.includes('In progress')")
        page.until("document.querySelectorAll('.bar:not(.open)').length >= 1")
        in_flight = (
            "[...document.querySelectorAll('.bar.open')].map(e => e.getAttribute('aria-label'))"
        )
        page.until(f"{in_flight}.some(s => / s: r1.t1, a call is in flight$/.test(s))")
        page.until("/^[0-9]+ s$/.test(document.querySelector('.bar.open').textContent)")
        page.until(f"{in_flight}.some(s => / s: r2.deciding, a call is in flight$/.test(s))")
        page.evaluate("location.hash = 'r1/main/a1'; 0")
        page.until("document.querySelector('.state').innerText.includes('Answered')")
        assert page.evaluate("document.querySelector('#place').innerText") == "r1/main/a1"
        page.until("document.querySelector('#live').innerText.startsWith('No longer live')")
        assert page.evaluate("document.querySelectorAll('.bar.open').length") == 0
        assert page.errors == []
    following.join()


@needs_chromium
@pytest.mark.parametrize("growing, drawn", [((1, 3.0), 1), ((2, 3.0), 2)], indirect=["growing"])
def test_sub_tasks_that_wait_for_a_thread_are_not_drawn_as_in_flight(growing, drawn):
    data = (partial(report._growing, growing), partial(report._stamp, growing))
    with serve(*data) as url, browser.opened(url) as page:
        page.until("[...document.querySelectorAll('.bar.open')].some(e => e.hash === '#r1/t1')")
        assert page.evaluate("document.querySelectorAll('.bar.open').length") == drawn
        assert page.evaluate("document.querySelectorAll('.lane .subtask').length") == 2
        left = page.evaluate("parseFloat(document.querySelector('.bar.open').style.left)")
        assert 0 <= left < 1000


def test_report_live_follows_a_run_to_its_end_and_writes_its_page(growing, capsys):
    assert report.main([str(growing), "--live"]) == 0
    url, page = capsys.readouterr().out.split()[-2:]
    assert url.startswith("http://127.0.0.1:") and page == f"{growing}/report.html"
    assert report.main([str(growing), "--live"]) == 2
    assert "not a run in progress" in capsys.readouterr().err


def test_a_pipe_in_place_of_a_tape_is_not_waited_for(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run/tape.jsonl")
    assert report.main([str(tmp_path / "run"), "--live"]) == 2
    assert "not a run in progress" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["out", "media"])
def test_a_flag_that_a_live_page_would_ignore_is_refused(flag, capsys):
    assert report.main(["run", "--live", f"--{flag}", "x"]) == 2
    assert "--live: does not go with --out or --media" in capsys.readouterr().err
