"""report.py: what stands in a page, and that a model's text stays text."""

import base64
import json
import os
import re
import shutil
import sys
import zlib
from itertools import combinations

import pytest

import report
from evaluation.trace import perfetto
from orchestra.vocabulary import Price
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


def test_the_runs_of_a_folder_are_its_rows():
    data = data_of(report.report(RUNS))
    assert [r["name"] for r in data["runs"]] == sorted(p.name for p in RUNS.iterdir())


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


@pytest.mark.parametrize(("words", "line"), [
    (["{}"], "not a run folder"), ([f"{RUNS}/lecture", "--perfetto", "{}/trace.json"], "no times"),
])  # fmt: skip
def test_what_cannot_be_shown_is_one_line(words, line, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["report.py", *(w.format(tmp_path) for w in words)])
    assert report.main() == 2 and not list(tmp_path.iterdir())
    printed = capsys.readouterr().err
    assert line in printed and printed.count("\n") == 1


def test_a_folder_from_someone_else_overwrites_no_file_and_hangs_nothing(tmp_path, monkeypatch):
    shutil.copytree(RUNS / "lecture", tmp_path / "run")
    (tmp_path / "report.html").symlink_to(tmp_path / "mine")
    os.mkfifo(tmp_path / "rows.jsonl")
    monkeypatch.setattr(sys, "argv", ["report.py", str(tmp_path)])
    assert report.main() == 2 and not (tmp_path / "mine").exists()
    assert data_of(report.report(tmp_path))["runs"][0]["name"] == "run"


# ---- traces --------------------------------------------------------------------------------------


def call(name, began_s, took_s, kind="chat", **more):
    timing = {"began_s": began_s, "took_s": took_s}
    return {"call": name, "kind": kind, "model": "m", "failed": False, **timing, **more}


def parallel():
    """A run whose first sub-task makes three calls at once; the second one makes none."""
    tasks = {j: {"id": f"t{j}", "agent": "sc"} for j in (1, 2)}
    subtasks = [{"event": "subtask", "at": [1, j, 0], "subtask": u} for j, u in tasks.items()]
    samples = [call(f"r1/t1/s1/p{n}", 5 + n / 10, 2.0) for n in range(3)]
    tape = [call("r1/main/a1", 1, 4.0), *samples, call("r1/t1/s2/Look", 7.2, 1.0, "ocr")]
    return {"name": "run", "method": "react", "events": subtasks, "tape": tape}


RECORDED = [report.run_row(RUNS / f"equinox{x}", {}) for x in ("", "-mas-orchestra")]


@pytest.mark.parametrize("run", [parallel(), *RECORDED], ids=lambda run: run["name"])
def test_the_slices_of_a_trace_follow_the_rules_of_its_format(run):
    """Times in order and not negative; two slices of a track overlap only if one is inside."""
    events = json.loads(json.dumps(perfetto(run)))["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    ends = [e["ts"] + e["dur"] for e in slices]
    assert slices == sorted(slices, key=lambda e: e["ts"]) and all(e["dur"] >= 0 for e in slices)
    for (a, a_end), (b, b_end) in combinations(zip(slices, ends, strict=True), 2):
        assert a["tid"] != b["tid"] or b["ts"] >= a_end or b_end <= a_end
    around = {tracks[e["tid"]]: e for e in slices if e["cat"] == "sub-task"}
    calls = [e for e in slices if "call" in e["args"]]
    if run == parallel():
        assert [*tracks.values()] == ["main", "r1/t1", "r1/t1 (2)", "r1/t1 (3)"]
    assert len(calls) == len(run["tape"]) and {e["tid"] for e in slices} == {*tracks}
    for e in calls:
        task = around.get("/".join(e["args"]["call"].split("/")[:2]))
        inside = task and task["ts"] <= e["ts"] <= e["ts"] + e["dur"] <= task["ts"] + task["dur"]
        assert inside if task else tracks[e["tid"]] == "main"
