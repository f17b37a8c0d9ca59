"""report.py: what a page has in it, and that a model's text stays text."""

import base64
import hashlib
import itertools
import json
import os
import re
import shutil
import socket
import zlib

import pytest

from orchestra import report
from orchestra.evaluation.trace import perfetto
from orchestra.vocabulary import Price
from tests import browser
from tests.conftest import ROOT
from tests.scripted import completion, finish

RUNS = ROOT / "fixtures" / "runs"
EVIL = "</script><script>alert(1)</script>"


def data_of(page: str) -> dict:
    """What a page shows, taken out of it again."""
    (packed,) = re.findall(r'id="data">([\w+/=]+)</script>', page)
    return json.loads(zlib.decompress(base64.b64decode(packed)))


@pytest.mark.parametrize("name", ["equinox", "equinox-mas-orchestra", "lecture"])
def test_a_page_has_every_call_sub_task_and_file_of_a_run(name):
    data = data_of(report.report(RUNS / name))
    tape = (RUNS / name / "tape.jsonl").read_text().splitlines()
    run, texts = data["run"], data["texts"]
    assert [c["call"] for c in run["tape"]] == [json.loads(row)["call"] for row in tape]
    assert {e["event"] for e in run["events"]} >= {"decision", "subtask", "result"}
    assert run["media"] and all(m["url"].startswith("data:") for m in run["media"])
    shown = [n for c in run["tape"] for _, n in [*c["asked"], [0, c["got"]]]]
    assert all(isinstance(texts[n], str) for n in shown)


@pytest.mark.parametrize(("usage", "cost_usd"), [
    ({"prompt_tokens": 1000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 900}}, 0.0029),
    ("none", None), ({"prompt_tokens": "9"}, None),
])  # fmt: skip
def test_a_call_costs_what_the_run_paid_for_it(run, usage, cost_usd):
    answer = completion(finish("4"), usage=usage)
    ran = run(work=answer, price=Price(10.0, 100.0, 1.0), method="react")
    page = data_of(report.report(run.folder))
    assert page["run"]["tape"][0].get("cost_usd") == cost_usd
    assert cost_usd is None or ran.cost_usd == pytest.approx(cost_usd)


def test_no_text_of_a_model_is_markup(tmp_path):
    page = report.page({"run": {"answer": EVIL, "name": EVIL}}, {})
    assert EVIL not in page and data_of(page)["run"]["answer"] == EVIL
    assert page.count("<script") == report.PAGE.read_text().count("<script")


# ---- in a browser --------------------------------------------------------------------------------

needs_chromium = pytest.mark.skipif(
    not browser.CHROMIUM, reason="needs chromium (apt install chromium)"
)
EVIL_TEXTS = (
    EVIL, "<img src=x onerror=got=1>", "javascript:got=1", "data:text/html,<script>opener.got=1</script>",
    "\u2028got=1//\u2029", "{{DATA}}{{POLICY}}", "'\"`${got=1}", "<!--<script>", "</style><svg onload=got=1>",
)  # fmt: skip
INJECTED = """document.body.insertAdjacentHTML("beforeend", `
  <img src="data:," onerror="got = 1"> <iframe srcdoc="<script>parent.got = 2</script>"></iframe>
  <a id="link" href="javascript:got = 3">a</a> <img src="URL"> <base href="URL">`);
  link.click(); fetch("URL").catch(() => 0); 0"""
CLICK_ALL = "document.querySelectorAll('.bar, .lane, .node').forEach(e => e.dispatchEvent(new Event('click')))"


def evil(value, texts):
    """The value with each text in it replaced by one of the texts, but for what the page needs."""
    if isinstance(value, dict):
        kept = ("event", "call", "kind", "action", "modality", "status")
        return {key: v if key in kept else evil(v, texts) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [evil(v, texts) for v in value]
    return next(texts) if isinstance(value, str) else value


def test_a_page_runs_only_its_own_script_and_sends_nothing():
    page = report.report(RUNS / "equinox")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    (script,), (style,) = (
        re.findall(rf"(?s)<{tag}>(.*?)</{tag}>", page) for tag in ("script", "style")
    )
    for rule, text in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules.pop(rule) == f"'sha256-{digest}'"
    none = dict.fromkeys(("default-src", "base-uri", "form-action"), "'none'")
    assert rules == {**none, **dict.fromkeys(("img-src", "media-src"), "data: file:")}


@needs_chromium
@pytest.mark.parametrize("shown", ["equinox", "lecture", "."])
def test_a_page_has_no_error_in_a_browser(shown, tmp_path):
    file = report.write(RUNS / shown, tmp_path / "page.html", None)
    with browser.opened(file, tmp_path) as page:
        page.evaluate(CLICK_ALL)
        page.wait()
        assert page.evaluate("document.querySelectorAll('.bar, td').length") > 5
        assert page.errors == []


@needs_chromium
def test_nothing_in_a_run_is_executed_by_a_browser(tmp_path):
    row = evil(report.run_row(RUNS / "equinox", report.Texts()), itertools.cycle(EVIL_TEXTS))
    numbers = {text: n for n, text in enumerate(f"{n}{EVIL_TEXTS[n % 9]}" for n in range(500))}
    (tmp_path / "page.html").write_text(report.page({"run": row}, numbers))
    with browser.opened(tmp_path / "page.html", tmp_path) as page:
        page.evaluate(CLICK_ALL)
        page.evaluate("document.querySelectorAll('a').forEach(a => a.click())")
        page.wait()
        assert page.evaluate("document.querySelectorAll('.bar').length") > 5
        assert page.evaluate("typeof got") == "undefined"


@needs_chromium
def test_what_would_be_executed_in_a_page_is_refused_by_the_browser(tmp_path):
    """As if the script of the page had a mistake, and set a text as markup."""
    file = report.write(RUNS / "lecture", tmp_path / "page.html", None)
    with socket.create_server(("127.0.0.1", 0)) as server, browser.opened(file, tmp_path) as page:
        page.evaluate(INJECTED.replace("URL", f"http://127.0.0.1:{server.getsockname()[1]}/"))
        page.wait()
        server.setblocking(False)
        with pytest.raises(BlockingIOError):  # nothing has connected
            server.accept()
        assert page.evaluate("typeof got") == "undefined"
        assert "Content Security Policy" in page.errors[0]


@pytest.mark.parametrize(("words", "line"), [
    (["{}"], "not a run folder"), ([f"{RUNS}/lecture", "--perfetto", "{}/trace.json"], "no times"),
])  # fmt: skip
def test_what_cannot_be_shown_is_one_line(words, line, tmp_path, monkeypatch, capsys):
    argv = [w.format(tmp_path) for w in words]
    assert report.main(argv) == 2 and not list(tmp_path.iterdir())
    printed = capsys.readouterr().err
    assert line in printed and printed.count("\n") == 1


def test_a_folder_from_someone_else_overwrites_no_file_and_hangs_nothing(tmp_path, monkeypatch):
    shutil.copytree(RUNS / "lecture", tmp_path / "run")
    (tmp_path / "report.html").symlink_to(tmp_path / "mine")
    os.mkfifo(tmp_path / "rows.jsonl")
    argv = [str(tmp_path)]
    assert report.main(argv) == 2 and not (tmp_path / "mine").exists()
    assert data_of(report.report(tmp_path))["runs"][0]["name"] == "run"


# ---- traces --------------------------------------------------------------------------------------


def call(name, began_s, took_s, kind="chat", **more):
    timing = {"began_s": began_s, "took_s": took_s}
    return {"call": name, "kind": kind, "model": "m", "failed": False, **timing, **more}


def slices_of(run):
    """Track, name, begin and end in seconds of each slice."""
    events = json.loads(json.dumps(perfetto(run)))["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    slices = [(e, e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6) for e in events if e["ph"] == "X"]
    return [(tracks[e["tid"]], e["name"], begin, round(end, 3)) for e, begin, end in slices]


def test_a_trace_has_calls_inside_their_sub_task_and_overlapping_ones_on_tracks_of_their_own():
    """The first sub-task makes three calls at once; the second one makes none."""
    tasks = {j: {"id": f"t{j}", "agent": "sc"} for j in (1, 2)}
    subtasks = [{"event": "subtask", "at": [1, j, 0], "subtask": u} for j, u in tasks.items()]
    samples = [call(f"r1/t1/s1/p{n}", 5 + n, 2.0) for n in range(3)]
    tape = [call("r1/main/a1", 1, 4.0), *samples, call("r1/t1/s2/Look", 9, 1.0, "ocr")]
    assert slices_of({"name": "run", "events": subtasks, "tape": tape}) == [
        ("main", "m", 1.0, 5.0), ("r1/t1", "t1", 5.0, 10.0), ("r1/t1", "m", 5.0, 7.0), ("r1/t1 (2)", "m", 6.0, 8.0),
        ("r1/t1", "m", 7.0, 9.0), ("r1/t1", "Look", 9.0, 10.0),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["equinox", "equinox-mas-orchestra"])
def test_a_trace_of_a_recorded_run_has_its_calls_in_order(name):
    run = report.run_row(RUNS / name, report.Texts())
    begins = [begin for _, _, begin, _ in slices_of(run)]
    assert begins == sorted(begins) and len(begins) > len(run["tape"])
