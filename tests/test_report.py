"""report.py: what a page has in it, and that a model's text stays text."""

import base64
import hashlib
import itertools
import json
import os
import re
import shutil
import socket
import tomllib
import zlib
from pathlib import Path
from urllib.parse import unquote

import pytest

from orchestra.kernel.vocabulary import Price
from orchestra.report import command as report
from orchestra.report import explain, run_data
from orchestra.report.explain.panel import row_of
from orchestra.report.page import FOLDER, page, policy, template
from tests import browser
from tests.conftest import ROOT
from tests.scripted import complete, completion, delegate, finish

RUNS = ROOT / "fixtures" / "runs"
EVIL = "</script><script>alert(1)</script>"


def data_of(page: str) -> dict:
    """What a page shows, taken out of it again."""
    packed = re.findall(r'id="(?:data|texts)">([\w+/=]+)</script>', page)
    data, texts = (json.loads(zlib.decompress(base64.b64decode(text))) for text in packed)
    return {**data, "texts": texts}


def rows_of(folder: Path) -> list[dict]:
    """The rows on the page of a folder, which is written."""
    return data_of(report.write(folder).read_text())["runs"]


@pytest.mark.parametrize("name", ["equinox", "equinox-mas-orchestra", "lecture"])
def test_a_page_has_every_call_sub_task_and_file_of_a_run(name):
    data = data_of(report.report(RUNS / name))
    tape = (RUNS / name / "tape.jsonl").read_text().splitlines()
    run, texts = data["run"], data["texts"]
    assert [c["call"] for c in run["tape"]] == [json.loads(row)["call"] for row in tape]
    assert {e["event"] for e in run["events"]} >= {"decision", "subtask", "result"}
    assert data["media"] and all(m["url"].startswith("data:") for m in data["media"])
    shown = [n for c in run["tape"] for _, n in [*c["asked"], [0, c["got"]]]]
    assert all(isinstance(texts[n], str) for n in shown)


@pytest.mark.parametrize(("usage", "cost_usd"), [
    ({"prompt_tokens": 1000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 900}}, 0.0029),
    ("none", None), ({"prompt_tokens": "9"}, None),
])  # fmt: skip
def test_a_call_costs_what_the_run_paid_for_it(run, usage, cost_usd):
    answer = completion(finish("4"), usage=usage)
    ran = run(work=answer, price=Price(10.0, 100.0, 1.0), method="react")
    shown = data_of(report.report(run.folder))
    assert shown["run"]["tape"][0].get("cost_usd") == cost_usd
    assert cost_usd is None or ran.cost_usd == pytest.approx(cost_usd)


def test_the_costs_of_the_calls_add_up_to_the_total(run):
    look = delegate({"task_instruction": "look", "context": "", "model": "weak", "tools": []})
    run(look, complete("4"), work=finish("4"), names=("main", "weak"), price=Price(1.0, 2.0))
    shown = data_of(report.report(run.folder))["run"]
    assert sum(row["cost_usd"] for row in shown["tape"]) == pytest.approx(shown["cost_usd"])
    assert sum(row["tokens"] for row in shown["tape"]) == shown["tokens"] > 0
    assert [row["who"] for row in shown["tape"]] == ["main", "weak", "main"]


def test_a_page_has_the_panels_of_explain_and_the_code_behind_them():
    run = data_of(report.report(RUNS / "equinox"))["run"]
    panels = explain.panels(RUNS / "equinox")
    assert run["panels"] == json.loads(json.dumps([row_of(p) for p in panels]))
    assert {p["place"] for p in run["panels"]} >= {"r1", "r1/t1", "r2/t1"}
    for source, code in run["code"].items():
        line = int(source.rpartition(":")[2])
        assert code.startswith(f"{line:4} ") and "def " in code
    assert {*run["code"]} == {p.source for p in panels if p.source}


def test_a_run_whose_events_do_not_fit_still_has_a_page(tmp_path):
    shutil.copytree(RUNS / "equinox", tmp_path / "run")
    events = tmp_path / "run" / "trajectory.jsonl"
    events.write_text(events.read_text().replace('"waiting": {}', '"waiting": 7', 1))
    [panel] = data_of(report.report(tmp_path / "run"))["run"]["panels"]
    assert "cannot be computed again" in panel["title"]


def test_media_that_a_run_lacks_are_taken_from_a_folder_if_they_are_the_same(tmp_path):
    shutil.copytree(RUNS / "equinox", tmp_path / "run")
    shutil.move(tmp_path / "run" / "media", tmp_path / "media")
    (tmp_path / "media" / "clock.png").write_bytes(b"another picture")
    without = data_of(report.report(tmp_path / "run"))["media"]
    assert [m["url"] for m in without] == ["", ""] and "is missing" in without[0]["where"]
    picture, sound = data_of(report.report(tmp_path / "run", tmp_path / "media"))["media"]
    assert not picture["url"] and sound["url"].startswith("data:audio/")


# ---- a folder of runs ----------------------------------------------------------------------------


def sweep(folder: Path) -> Path:
    """Two runs of a sweep, and a question whose run did not begin."""
    for name in ("equinox", "lecture"):
        shutil.copytree(RUNS / name, folder / "runs" / name)
    done = {
        "status": "done",
        "right": "42",
        "category": "c",
        "level": "1",
        "exact": True,
        "match": True,
    }
    done |= {"answer": "42", "cost_usd": 0.0, "latency_s": 1.0, "calls": 2, "resumed": False}
    rows = [
        {"id": "1", "run": "equinox", **done},
        {"id": "2", "run": "lecture", **done, "exact": False, "match": False},
        {"id": "3", "run": "third", **done, "status": "failed", "why": "no such file"},
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_each_row_of_a_folder_links_to_the_page_of_its_run(tmp_path):
    folder = sweep(tmp_path / "a sweep")
    equinox, lecture, third = rows_of(folder)
    for row in (equinox, lecture):
        linked = folder / unquote(row["page"])
        assert data_of(linked.read_text())["run"]["question"] == row["question"]
    assert (equinox["state"], equinox["right"], lecture["right"]) == ("answered", True, False)
    assert (third["state"], third["why"], "page" in third) == ("unfinished", "no such file", False)


def test_a_run_of_an_unfinished_question_keeps_its_own_reason(tmp_path):
    folder = sweep(tmp_path / "sweep")
    rows = (folder / "rows.jsonl").read_text().replace('"done"', '"starved"')
    (folder / "rows.jsonl").write_text(rows)
    equinox, *_ = rows_of(folder)
    assert (equinox["state"], equinox["why"], equinox["unfinished"]) == ("answered", "", True)


def test_the_page_of_a_folder_has_no_prompts(tmp_path):
    """So it stays small, whatever the number of runs."""
    folder = sweep(tmp_path / "sweep")
    data = data_of(report.write(folder).read_text())
    assert data["texts"] == [] and "You are" not in json.dumps(data)
    tape = (RUNS / "equinox/tape.jsonl").read_text().splitlines()
    assert [call for call, *_ in data["runs"][0]["outline"]] == [
        json.loads(r)["call"] for r in tape
    ]


def test_a_damaged_run_is_left_out_of_a_folder(tmp_path, capsys):
    folder = sweep(tmp_path / "sweep")
    (folder / "runs/lecture/run.json").write_text("{")
    assert [row["name"] for row in rows_of(folder)] == ["runs/equinox", "runs/third"]
    assert "left out: runs/lecture: " in capsys.readouterr().err


# ---- no text is markup ---------------------------------------------------------------------------


def test_an_installed_program_has_all_files_of_the_page():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["*"]
    files = [f for f in FOLDER.iterdir() if f.is_file() and f.suffix != ".py"]
    assert files and {f"*{file.suffix}" for file in files} <= {*patterns}


def test_no_text_of_a_model_is_markup(tmp_path):
    text = page({"run": {"answer": EVIL, "name": EVIL}, "texts": [EVIL]})
    assert EVIL not in text and data_of(text)["run"]["answer"] == EVIL
    assert text.count("<script") == template().count("<script") == 3


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
OPEN_ALL = """[...document.querySelectorAll('.bar, .name, .node, input[type=checkbox]')].reduce((done, e) => done.then(() => {
  e.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true }));
  return new Promise((next) => setTimeout(next)); }), Promise.resolve())"""


def evil(value, texts):
    """The value with each text in it replaced by one of the texts, but for what the page needs."""
    if isinstance(value, dict):
        kept = ("event", "call", "kind", "action", "modality", "status")
        return {key: v if key in kept else evil(v, texts) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [evil(v, texts) for v in value]
    return next(texts) if isinstance(value, str) else value


def test_a_page_runs_only_its_own_script_and_sends_nothing():
    text = report.report(RUNS / "equinox")
    (stated,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    rules = dict(rule.split(" ", 1) for rule in stated.split("; "))
    (script,), (style,) = (
        re.findall(rf"(?s)<{tag}>(.*?)</{tag}>", text) for tag in ("script", "style")
    )
    for rule, text in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules.pop(rule) == f"'sha256-{digest}'"
    none = dict.fromkeys(("default-src", "base-uri", "form-action"), "'none'")
    assert rules == {**none, **dict.fromkeys(("img-src", "media-src"), "data: file:")}
    assert policy(live=True) == f"{policy()}; connect-src 'self'"


@needs_chromium
@pytest.mark.parametrize("shown", ["equinox", "lecture", "."])
def test_a_page_has_no_error_in_a_browser(shown, tmp_path):
    file = report.write(RUNS / shown, tmp_path / "page.html")
    with browser.opened(file) as opened:
        opened.evaluate(OPEN_ALL)
        opened.wait()
        assert opened.evaluate("document.querySelectorAll('.bar, td').length") > 5
        assert opened.errors == []


@needs_chromium
def test_nothing_in_a_run_is_executed_by_a_browser(tmp_path):
    data = run_data.data_of(run_data.read(RUNS / "equinox"))
    row, media = (evil(data[key], itertools.cycle(EVIL_TEXTS)) for key in ("run", "media"))
    texts = [f"{n}{EVIL_TEXTS[n % 9]}" for n in range(500)]
    (tmp_path / "page.html").write_text(page({"run": row, "media": media, "texts": texts}))
    with browser.opened(tmp_path / "page.html") as opened:
        opened.evaluate(OPEN_ALL)
        opened.evaluate("document.querySelectorAll('a').forEach(a => a.click())")
        opened.wait()
        assert opened.evaluate("document.querySelectorAll('.bar').length") > 5
        assert opened.evaluate("typeof got") == "undefined"


@needs_chromium
def test_what_would_be_executed_in_a_page_is_refused_by_the_browser(tmp_path):
    """As if the script of the page had a mistake, and set a text as markup."""
    file = report.write(RUNS / "lecture", tmp_path / "page.html")
    with socket.create_server(("127.0.0.1", 0)) as server, browser.opened(file) as opened:
        opened.evaluate(INJECTED.replace("URL", f"http://127.0.0.1:{server.getsockname()[1]}/"))
        opened.wait()
        server.setblocking(False)
        with pytest.raises(BlockingIOError):  # nothing has connected
            server.accept()
        assert opened.evaluate("typeof got") == "undefined"
        assert "Content Security Policy" in opened.errors[0]


def test_what_cannot_be_shown_is_one_line(tmp_path, capsys):
    assert report.main([str(tmp_path)]) == 2 and not list(tmp_path.iterdir())
    printed = capsys.readouterr().err
    assert "not a run folder" in printed and printed.count("\n") == 1


def test_a_folder_from_someone_else_overwrites_no_file_and_hangs_nothing(tmp_path, monkeypatch):
    shutil.copytree(RUNS / "lecture", tmp_path / "run")
    (tmp_path / "report.html").symlink_to(tmp_path / "mine")
    os.mkfifo(tmp_path / "rows.jsonl")
    argv = [str(tmp_path)]
    assert report.main(argv) == 2 and not (tmp_path / "mine").exists()
    (tmp_path / "report.html").unlink()
    assert rows_of(tmp_path)[0]["name"] == "run"


def test_the_pages_of_runs_are_not_written_through_a_link(tmp_path, capsys):
    shutil.copytree(RUNS / "lecture", tmp_path / "runs" / "lecture")
    (tmp_path / "mine").mkdir()
    (tmp_path / "runs/report-runs").symlink_to(tmp_path / "mine")
    assert report.main([str(tmp_path / "runs")]) == 2 and not list((tmp_path / "mine").iterdir())
    assert "report-runs is a link" in capsys.readouterr().err
