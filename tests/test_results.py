"""fixtures/results.py: sweeps are recorded, go on where they stopped, and replay to the tables of RESULTS.md."""

import shutil
import sys

import pytest

from fixtures import results
from orchestra.evaluation import comparison
from orchestra.evaluation.questions import load
from orchestra.kernel.vocabulary import ConfigError
from tests.conftest import ROOT
from tests.program import any_method, pool_file
from tests.scripted import last_text


def test_rows_are_recorded_once_packed_and_replay_without_their_media(tmp_path, endpoint, capsys):
    is_bare = lambda r: "The answer in the reply, alone" in last_text(r)  # noqa: E731
    server = endpoint(lambda r: "42" if is_bare(r) else any_method(r))
    out, packed = tmp_path / "out", tmp_path / "packed"
    pool = pool_file(tmp_path, server.url, m=(0, 0))
    for name in ("react", "one-call"):
        assert results.record(name, ["1-01"], pool, out) == 0
        results.pack(out / name, packed)
    asked = len(server.requests)
    assert results.record("react", ["1-01"], pool, out) == 0 and len(server.requests) == asked > 0
    shutil.rmtree(out)
    page = tmp_path / "tables.txt"
    results.show(packed, out, page)
    assert "react: 2 runs replayed, 0 rows" in capsys.readouterr().out
    assert page.read_text() == f"{results.tables([out / 'one-call', out / 'react'])}\n"
    rows = out / "react" / "rows.jsonl"
    rows.write_text(rows.read_text().replace('"answer": "42"', '"answer": "6100"'))
    results.pack(out / "react", packed)
    assert results.main(["--packed", str(packed), "--out", str(out)]) == 2
    assert "answer is '6100' in the sweep, now '42'" in capsys.readouterr().err


def test_the_tasks_are_split_once():
    develop, held_out = results.PLAN["develop"], results.PLAN["held_out"]
    assert len({*develop}) == len({*held_out}) == 30
    assert {*develop, *held_out} == {q.id for q in load(results.MINIGAIA / "questions.json")}


def test_the_tables_are_those_of_the_recorded_sweeps(tmp_path):
    sweeps = results.unpack(results.PACKED, tmp_path)
    assert f"{results.tables(sweeps)}\n" == (results.PACKED / "tables.txt").read_text()
    asked = {q.id: q for q in load(results.MINIGAIA / "questions.json")}
    for sweep in sweeps:
        rows = results.replayed(sweep, asked, **results.own_python(sweep.name))
        assert {row["id"] for row in rows} <= {*results.PLAN["held_out"]}


def test_the_first_table_of_results_md_is_that_of_the_recorded_sweeps(tmp_path):
    sweeps = results.unpack(results.PACKED, tmp_path)
    methods = comparison.report(sweeps, None)["methods"].values()
    found = []
    for sweep, method in zip(sweeps, methods, strict=True):
        right = results.forms(sweep)
        cells = [right["match_bare"], right["gaia_bare"], right["gaia"], f"{method['tokens']:,.0f}"]
        cells += [f"{method['calls']:.1f}", round(method["fallback"] * method["answered"])]
        found.append("| " + " | ".join(map(str, cells)) + " |")
    page = (ROOT / "docs/RESULTS.md").read_text().splitlines()
    rows = [line for line in page if line.startswith("| ")][2:]
    assert [row[row.index("|", 1) :] for row in rows[: len(found)]] == found


def test_a_server_that_does_not_start_says_the_last_it_printed():
    command = [sys.executable, "-c", "print('no such model: x.gguf'); raise SystemExit(3)"]
    with pytest.raises(ConfigError, match=r"ended with 3.* no such model: x\.gguf"):
        with results.serving(command, "http://127.0.0.1:9/v1"):
            pass
