"""report.py: what stands in a page, and that a model's text stays text."""

import base64
import json
import re
import subprocess
import sys
import zlib

import pytest

import report
from tests.conftest import ROOT, ConfigError

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
    assert all(
        isinstance(texts[n], str) for c in run["tape"] for _, n in [*c["asked"], [0, c["got"]]]
    )


def test_the_runs_of_a_folder_are_its_rows():
    data = data_of(report.report(RUNS))
    assert [r["name"] for r in data["runs"]] == sorted(p.name for p in RUNS.iterdir())


def test_no_text_of_a_model_is_markup(tmp_path):
    page = report.page({"run": {"answer": EVIL, "name": EVIL}}, report.Texts())
    assert EVIL not in page and data_of(page)["run"]["answer"] == EVIL
    assert page.count("<script") == report.PAGE.read_text().count("<script")


def test_a_folder_without_runs_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="not a run folder"):
        report.report(tmp_path)
    ran = subprocess.run(
        [sys.executable, ROOT / "report.py", tmp_path], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2 and ran.stderr.count("\n") == 1
