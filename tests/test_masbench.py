"""The set of MASBENCH as questions."""

import json
import tracemalloc
from random import Random

import pytest

from benchmarks import masbench
from orchestra.evaluation.questions import load


@pytest.mark.parametrize("words, problem", [
    ([], "FILE"), (["x.json"], "--out"), (["x.json", "--n", "0", "--out", "x"], "--n 0"), (["no.json", "--out", "x"], "there is no such file"),
])  # fmt: skip
def test_a_wrong_command_ends_in_one_line(words, problem, capsys, in_an_empty_folder):
    assert masbench.main(words) == 2
    assert problem in capsys.readouterr().err


def public_row(axis, value, truth, problem="Solve it."):
    prompt = [
        {"role": "system", "content": "Work modulo 23."},
        {"role": "user", "content": problem},
    ]
    return {
        "reward_model_json": json.dumps({"ground_truth": truth}), "extra_info_json": "{}",
        "prompt_json": json.dumps(prompt), "axis": axis, "value": value, "data": "igsm",
    }  # fmt: skip


def test_the_public_set_is_read_from_parquet_and_from_json_lines(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    from pyarrow import parquet

    rows = [public_row("depth", str(4 + n % 2), str(n), f"Problem {n}.") for n in range(20)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "test.parquet")
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for kind in ("parquet", "jsonl"):
        file = tmp_path / f"{kind}.out"
        assert masbench.main([str(tmp_path / f"test.{kind}"), "--n", "3", "--out", str(file)]) == 0
    asked = load(file)
    assert (tmp_path / "parquet.out").read_text() == file.read_text()
    assert [q.level for q in asked] == ["4"] * 3 + ["5"] * 3 and {q.category for q in asked} == {
        "depth"
    }
    assert all(q.question == f"Work modulo 23.\n\nProblem {q.answer}." for q in asked)


def test_no_more_than_a_batch_of_the_public_set_is_in_memory(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    from pyarrow import parquet

    noise = Random(1)
    rows = [public_row("depth", "4", "1", noise.randbytes(4000).hex()) for _ in range(3000)]
    file = tmp_path / "big.parquet"
    pages = {"compression": "none", "write_batch_size": 50}  # a page is read as a whole
    parquet.write_table(pyarrow.Table.from_pylist(rows), file, **pages)
    del rows
    before = pyarrow.default_memory_pool()
    pool = pyarrow.proxy_memory_pool(before)
    pyarrow.set_memory_pool(pool)
    tracemalloc.start()
    try:
        masbench.main([str(file), "--n", "3", "--out", str(tmp_path / "q")])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        pyarrow.set_memory_pool(before)
    assert len(load(tmp_path / "q")) == 3
    assert max(pool.max_memory(), most) < file.stat().st_size / 3


def test_several_answers_of_the_public_set_are_a_list(tmp_path):
    (tmp_path / "h.json").write_text(
        json.dumps([public_row("horizon", "3", "4<<horizon>>17 <<horizon>>0")])
    )
    masbench.main([str(tmp_path / "h.json"), "--out", str(tmp_path / "q")])
    (q,) = load(tmp_path / "q")
    assert q.answer == "4, 17, 0" and q.question.endswith(
        "the 3 answers alone, in the order of the problems, separated by commas."
    )


@pytest.mark.parametrize(
    "row",
    [
        1,
        {},
        {"prompt_json": "["},
        public_row("depth", "2", " "),
        {**public_row("depth", "2", "1"), "reward_model_json": "3"},
    ],
)
def test_a_row_that_is_not_of_the_public_set_ends_in_one_line(row, tmp_path, capsys):
    (tmp_path / "h.json").write_text(json.dumps([row]))
    assert masbench.main([str(tmp_path / "h.json"), "--out", str(tmp_path / "q")]) == 2
    assert "row 1" in capsys.readouterr().err and not (tmp_path / "q").exists()
