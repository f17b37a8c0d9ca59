"""fixtures/results.py: sweeps are recorded, go on where they stopped, and replay to the tables of RESULTS.md."""

import shutil
import sys

import pytest

from fixtures import results
from orchestra.evaluation.questions import load
from orchestra.kernel.vocabulary import ConfigError
from tests.conftest import ROOT
from tests.program import any_method, pool_file


def test_two_methods_are_recorded_once_and_replay_without_their_media(tmp_path, endpoint, capsys):
    server, folder = endpoint(any_method), tmp_path / "results"
    pool = pool_file(tmp_path, server.url, m=(0, 0))
    for method in ("react", "orchestra-o1"):
        assert results.record(method, 1, pool, folder) == 0
    asked = len(server.requests)
    assert results.record("react", 1, pool, folder) == 0 and len(server.requests) == asked > 0
    for media in folder.glob("*/runs/*/media"):
        shutil.rmtree(media)  # git keeps none
    page = tmp_path / "RESULTS.md"
    page.write_text(f"# R\n{results.BEGIN}\nold\n{results.END}\nrest\n")
    results.show(folder, page)
    printed = capsys.readouterr().out
    assert "react: 1 runs replayed, 0 rows" in printed
    assert results.tables([folder / "orchestra-o1", folder / "react"]) in page.read_text()
    assert "old" not in page.read_text() and page.read_text().endswith("rest\n")
    rows = folder / "react" / "rows.jsonl"
    rows.write_text(rows.read_text().replace('"answer": "42"', '"answer": "6100"'))
    assert results.main(["--results", str(folder)]) == 2
    assert "answer is '6100' in the sweep, now '42'" in capsys.readouterr().err


def test_results_md_has_the_tables_of_the_recorded_sweeps():
    named = [results.RESULTS / name for name in results.FLAGS]
    sweeps = [sweep for sweep in named if sweep.is_dir()]
    assert sweeps
    assert f"```text\n{results.tables(sweeps)}\n```" in (ROOT / "docs/RESULTS.md").read_text()
    asked = {q.id: q for q in load(results.MINIGAIA / "questions.json")}
    assert all(results.replayed(sweep, asked) for sweep in sweeps)


def test_a_server_that_does_not_start_says_the_last_it_printed():
    command = [sys.executable, "-c", "print('no such model: x.gguf'); raise SystemExit(3)"]
    with pytest.raises(ConfigError, match=r"ended with 3.* no such model: x\.gguf"):
        with results.serving(command, "http://127.0.0.1:9/v1"):
            pass
