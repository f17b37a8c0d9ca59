"""evaluation/gaia.py: its folder as it is, the official scorer's rule, and the submission file."""

import json
import re
import shutil

import pytest

from orchestra.evaluation import command as evaluate
from orchestra.evaluation.scores import gaia as is_right
from tests.program import CLOCK
from tests.scripted import act, complete, delegate, finish, is_main, last_text


@pytest.mark.parametrize(("given", "right", "expected"), [
    ("17", "17", True), ("17.0", "17", True), ("$1,234.50", "1234.5", True), ("42 %", "42", True), ("17 km", "17", False), ("seventeen", "17", False), ("", "17", False), ("1e3", "1000", True),
    ("Paris", "paris", True), ("St. Petersburg", "St Petersburg", True), ("sea gull", "Seagull", True), ("the Seagull", "Seagull", False), ("", "Paris", False), ("None", "Paris", False),
    ("a, b", "a,b", True), ("b, a", "a,b", False), ("a; b", "a,b", True), ("a, b, c", "a,b", False), ("1, 2.0", "1,2", True), ("$1, 2%", "1;2", True), ("a.b, c", "ab,c", False),
    ("New York, USA", "New York, USA", True), ("1,000", "1000", True), ("1000", "1,000", False), ("nan", "nan", False), ("a\n b", "AB", True),
])  # fmt: skip
def test_an_answer_is_right_by_the_rule_of_the_official_scorer(given, right, expected):
    assert is_right(given, right) is expected


@pytest.fixture
def folder(tmp_path):
    """A folder of GAIA with a question about a table, one about a picture, and one without a file."""
    root = tmp_path / "validation"
    root.mkdir()
    notes = {"Annotator Metadata": {"Steps": "1. Open it.", "Number of tools": "1"}}
    rows = [
        {"task_id": "c61d-1", "Question": "How many people live in Brno?", "Level": 1, "Final answer": "379,526", "file_name": "c61d-1.csv", **notes},
        {"task_id": "c61d-2", "Question": "What time is it?", "Level": 2, "Final answer": "7:49", "file_name": "c61d-2.png", **notes},
        {"task_id": "c61d-3", "Question": "What is 6 times 7?", "Level": 1, "Final answer": "42", "file_name": "", **notes},
    ]  # fmt: skip
    (root / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (root / "c61d-1.csv").write_text("city,people\nBrno,379526\n")
    shutil.copy(CLOCK, root / "c61d-2.png")
    return root


def respond(request):
    text = json.dumps(request["messages"])
    if "6 times 7" in text:
        return complete("$42")
    if "What time" in text:
        return (
            complete("7:49")
            if is_main(request) and "Round 1 of" not in text
            else delegate({"task_instruction": "Read c61d-2.png"})
            if is_main(request)
            else finish("7:49")
        )
    if is_main(request):
        found = re.findall(r"=> (\d+)", text)
        return (
            complete(found[0])
            if found
            else delegate({"task_instruction": "How many people live in Brno, by c61d-1.csv?"})
        )
    if "379526" in last_text(request):
        return finish("379526")
    return act("ReadFileAction", query="people of Brno", file_path="c61d-1.csv")


def run(tmp_path, endpoint, monkeypatch, data, *more):
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint(respond).url)
    words = ["run", "--data", str(data), "--out", str(tmp_path / "out"), "--model", "m", *more]
    return evaluate.main(words)


def test_a_folder_of_gaia_is_read_as_it_is_scored_and_submitted(
    folder, tmp_path, endpoint, monkeypatch, capsys
):
    assert run(tmp_path, endpoint, monkeypatch, folder) == 0
    rows = [json.loads(line) for line in (tmp_path / "out/rows.jsonl").read_text().splitlines()]
    answers = {row["id"]: (row["level"], row["answer"]) for row in rows}
    assert answers == {"c61d-1": ("1", "379526"), "c61d-2": ("2", "7:49"), "c61d-3": ("1", "$42")}
    capsys.readouterr()
    assert evaluate.main(["report", str(tmp_path / "out"), "--score", "gaia", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["methods"].values()
    # 379,526 is a list of two by the official rule
    assert (
        found["overall"]["accuracy"] == pytest.approx(2 / 3)
        and found["level"]["2"]["accuracy"] == 1
    )
    out = tmp_path / "submission.jsonl"
    assert evaluate.main(["submission", str(tmp_path / "out"), "--out", str(out)]) == 0
    sent = {row["task_id"]: row for row in map(json.loads, out.read_text().splitlines())}
    assert {id: row["model_answer"] for id, row in sent.items()} == {
        id: answer for id, (_, answer) in answers.items()
    }
    assert all(row.keys() == {"task_id", "model_answer"} for row in sent.values())


def test_its_file_and_a_level_can_be_named(folder, tmp_path, endpoint, monkeypatch):
    assert run(tmp_path, endpoint, monkeypatch, folder / "metadata.jsonl", "--level", "2") == 0
    (row,) = map(json.loads, (tmp_path / "out/rows.jsonl").read_text().splitlines())
    assert row["id"] == "c61d-2"


def test_its_parquet_file_is_found_in_the_folder(folder, tmp_path, endpoint, monkeypatch):
    """As the set is stored since October 2025: levels are texts, and there is a file_path."""
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    from pyarrow import parquet

    lines = folder / "metadata.jsonl"
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    for row in rows:
        row["Level"] = str(row["Level"])
        row["file_path"] = row["file_name"] and f"2023/validation/{row['file_name']}"
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "metadata.parquet")
    lines.unlink()
    assert run(tmp_path, endpoint, monkeypatch, folder, "--level", "1") == 0
    found = map(json.loads, (tmp_path / "out/rows.jsonl").read_text().splitlines())
    assert {row["id"]: row["answer"] for row in found} == {"c61d-1": "379526", "c61d-3": "$42"}


def test_a_question_whose_attachment_is_missing_is_listed_and_skipped(
    folder, tmp_path, endpoint, monkeypatch, capsys
):
    (folder / "c61d-1.csv").unlink()
    assert run(tmp_path, endpoint, monkeypatch, folder) == 0
    assert "question c61d-1 is skipped" in capsys.readouterr().err
    assert len((tmp_path / "out/rows.jsonl").read_text().splitlines()) == 2


def test_a_folder_without_its_metadata_is_one_line_that_says_where_it_is(
    folder, tmp_path, endpoint, monkeypatch, capsys
):
    assert run(tmp_path, endpoint, monkeypatch, folder.parent) == 2
    assert (
        "has no metadata.jsonl or metadata.parquet, as a folder of GAIA; it has validation/metadata.jsonl"
        in capsys.readouterr().err
    )


def test_a_question_that_failed_has_an_empty_answer_in_a_submission(tmp_path):
    (tmp_path / "out/runs").mkdir(parents=True)
    (tmp_path / "out/sweep.json").write_text(
        json.dumps({"method": "react", "model": "m", "judge": None})
    )
    row = {
        "id": "a",
        "level": "1",
        "category": "",
        "right": "1",
        "status": "failed",
        "why": "w",
        "run": "a",
    }
    (tmp_path / "out/rows.jsonl").write_text(json.dumps(row) + "\n")
    assert evaluate.main(["submission", str(tmp_path / "out"), "--out", str(tmp_path / "s")]) == 0
    assert json.loads((tmp_path / "s").read_text()) == {
        "task_id": "a",
        "model_answer": "",
    }
