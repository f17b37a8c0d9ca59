"""A sweep as a record: what it was made of, repeats, shards, and scores that are made again."""

import json
import os
import re
import shutil
from pathlib import Path
from unittest import mock

import pytest

from orchestra import install
from orchestra.evaluation import command as evaluate
from orchestra.evaluation.questions import load
from orchestra.evaluation.sweep_folder import scored_rows
from orchestra.kernel.vocabulary import ConfigError
from tests.program import CLOCK, pool_file, replay
from tests.scripted import Raw, cut_off, finish, last_text
from tests.sweeps import number_asked


@pytest.fixture
def evaluated(sweep, capsys):
    """`evaluated(*words)`: the exit code of another command of evaluate, and what it prints."""

    def evaluated(*words):
        capsys.readouterr()
        with mock.patch.dict(os.environ, {"OPENAI_BASE_URL": sweep.url}):
            code = evaluate.main([str(word) for word in words])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return evaluated


def rows_in(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


# ---- what a sweep was made of --------------------------------------------------------------------


def test_sweep_json_has_the_questions_the_whole_pool_the_options_and_hashes(tmp_path, sweep):
    pool = pool_file(tmp_path, sweep.url, m=(1, 2))
    sweep("--backends", pool, "--steps", 7)
    made = json.loads((tmp_path / "out/sweep.json").read_text())
    assert list(made["questions"]) == ["1", "2", "3", "4", "5", "6"]
    assert len({*made["questions"].values()}) == 6
    assert made["pool"]["m"]["price_usd_per_mtok"]["output"] == 2
    assert made["steps"] == 7 and made["repeat"] == 1 and made["made_with"]["python"]
    assert "react/system.md" in made["prompt_files"]
    assert {"methods/react.py", "tools/search.py", "evaluation/values.py"} <= {*made["code_files"]}
    assert "report/page.py" not in made["code_files"]  # no run uses it


def test_a_row_has_its_question_method_and_model(sweep):
    _, rows = sweep(count=1)
    row = rows["1"]
    assert (row["question"], row["method"], row["model"]) == ("What is number 1?", "react", "m")
    assert row["repeat"] == 1


def refused(sweep, capsys, *flags, **how):
    """What a sweep says that is not continued; it makes no call."""
    asked = len(sweep.requests)
    capsys.readouterr()
    assert sweep(*flags, **how)[0] == 2 and len(sweep.requests) == asked
    (line,) = capsys.readouterr().err.splitlines()
    assert "another --out" in line and "--reuse" in line
    return line


@pytest.mark.parametrize(("flags", "said"), [
    (["--steps", 9], "steps (30, now 9)"), (["--limit", 3], "questions ('4' and 2 more)"),
    (["--repeat", 2], "repeat (1, now 2)"),
])  # fmt: skip
def test_a_resume_with_another_option_says_which(sweep, capsys, flags, said):
    sweep()
    assert said in refused(sweep, capsys, *flags)


def test_a_resume_with_another_question_says_which(sweep, tmp_path, capsys):
    sweep(count=4)
    data = json.loads((tmp_path / "data.json").read_text())
    data[2]["question"] = "What is number three?"
    (tmp_path / "data.json").write_text(json.dumps(data))
    assert "questions ('3')" in refused(sweep, capsys, count=0)


def test_a_resume_with_another_picture_of_the_same_name_says_which_question(
    sweep, tmp_path, capsys
):
    shutil.copy(CLOCK, tmp_path / "a.png")
    asked = [{"id": "7", "question": "What is number 7?", "answer": "7", "media": ["a.png"]}]
    (tmp_path / "data.json").write_text(json.dumps(asked))
    sweep(count=0)
    with (tmp_path / "a.png").open("ab") as file:
        file.write(b"\0")
    assert "questions ('7')" in refused(sweep, capsys, count=0)


def test_a_resume_with_another_prompt_says_which(sweep, capsys, edited):
    sweep()
    edited("react/system.md", "one action a step", "an action each step")
    assert "prompt_files ('react/system.md')" in refused(sweep, capsys)


def test_a_resume_with_other_code_says_which(sweep, tmp_path, capsys):
    sweep()
    file = tmp_path / "out/sweep.json"
    made = json.loads(file.read_text())
    made["code_files"]["methods/react.py"] = "0" * 16
    file.write_text(json.dumps(made))
    line = refused(sweep, capsys)
    assert "code_files ('methods/react.py')" in line


def test_a_resume_with_an_edited_method_of_the_user_says_which(sweep, tmp_path, capsys):
    method = tmp_path / "mine.py"
    own = "from orchestra.methods.react_alone import ReactAlone\n\n\nclass Mine(ReactAlone):\n    pass\n"
    method.write_text(own)
    flags = "--method", f"{method}:Mine"
    assert sweep(*flags)[0] == 0
    method.write_text(own + "\n# edited\n")
    assert "mine.py:Mine')" in refused(sweep, capsys, *flags)


def test_a_resume_with_another_price_is_refused_but_a_server_may_move(
    sweep, tmp_path, capsys, endpoint
):
    sweep("--backends", pool_file(tmp_path, sweep.url, m=(1, 2)), count=2)
    moved = pool_file(tmp_path, endpoint(number_asked).url, m=(1, 2))
    assert sweep("--backends", moved, count=2)[0] == 0
    dearer = pool_file(tmp_path, sweep.url, m=(1, 3))
    line = refused(sweep, capsys, "--backends", dearer, count=2)
    assert "pool ('m')" in line


def test_a_key_in_the_pool_is_one_line_and_written_nowhere(sweep, tmp_path, capsys, monkeypatch):
    key = "sk-" + "abcdefghij0123456789"
    monkeypatch.setenv("MY_KEY", key)
    pool = pool_file(tmp_path, sweep.url, key="MY_KEY", m=(1, 1))
    pool.write_text(pool.read_text() + f'[backend.options]\nuser = "{key}"\n')
    assert sweep("--backends", pool)[0] == 2 and not sweep.requests
    assert "the pool contains a key" in capsys.readouterr().err
    assert not (tmp_path / "out" / "sweep.json").exists()


def test_a_sweep_of_an_earlier_version_is_not_continued(sweep, tmp_path, capsys):
    sweep()
    file = tmp_path / "out/sweep.json"
    old = {k: v for k, v in json.loads(file.read_text()).items() if k != "version"}
    file.write_text(json.dumps(old))
    assert "the version of the program" in refused(sweep, capsys)


def test_more_questions_and_repeats_are_asked_with_extend_alone(sweep, tmp_path, capsys):
    sweep("--limit", 2)
    assert "--extend" in refused(sweep, capsys, "--limit", 4)
    code, rows = sweep("--limit", 4, "--repeat", 2, "--extend")
    assert (code, len(rows), len(sweep.requests)) == (0, 4, 8)
    made = json.loads((tmp_path / "out/sweep.json").read_text())
    assert (len(made["questions"]), made["repeat"], made["extended"]) == (4, 2, [[2, 1]])
    assert sweep("--limit", 4, "--repeat", 2)[0] == 0 and len(sweep.requests) == 8
    refused(sweep, capsys, "--limit", 2, "--extend")


# ---- repeats -------------------------------------------------------------------------------------


def test_repeats_are_runs_of_their_own_and_give_pass_at_k(sweep, tmp_path, evaluated):
    seen = []

    def respond(request):
        seen.append(request)
        number = re.findall(r"number (\d+)", json.dumps(request))[0]
        return finish(number if len(seen) % 2 else "no")  # each question: right, then wrong

    sweep.respond = respond
    flags = "--repeat", 2, "--workers", 1
    code, rows = sweep(*flags, "--limit", 3)
    assert (code, len(sweep.requests), len(rows_in(tmp_path / "out"))) == (0, 6, 6)
    assert {row["run"] for row in rows_in(tmp_path / "out")} == {
        *("1", "2", "3", "1@2", "2@2", "3@2")
    }
    assert replay(tmp_path / "out/runs/2@2").answer
    assert sweep(*flags, "--limit", 3)[0] == 0 and len(sweep.requests) == 6
    found = json.loads(evaluated("report", tmp_path / "out", "--json")[1])["methods"]["react/m"]
    assert found["asked"] == 6 and found["overall"]["questions"] == 3
    assert found["pass_at"]["1"] == found["overall"]["accuracy"]
    assert found["pass_at"]["2"] > found["pass_at"]["1"]
    assert "pass@2" in evaluated("report", tmp_path / "out")[1]


def test_a_sweep_with_repeats_reuses_the_run_of_the_same_repeat(sweep, tmp_path):
    flags = "--repeat", 2
    sweep(*flags, count=2)
    code, _ = sweep(*flags, "--reuse", tmp_path / "out", "--out", tmp_path / "new", count=2)
    assert code == 0 and len(sweep.requests) == 4


# ---- scores that are made again ------------------------------------------------------------------


def by_omnigaia(request):
    """A judge by OmniGAIA's rule finds 3 right and 6 wrong, after one odd reply."""
    if request["model"] != "o":
        return number_asked(request)
    if len(request["messages"]) == 1:
        return "I am not sure"
    return "It is Correct." if "-3" in json.dumps(request["messages"]) else "Incorrect"


def test_omnigaia_scores_again_without_answering_again(sweep, tmp_path, evaluated):
    sweep.respond = by_omnigaia
    pool = pool_file(tmp_path, sweep.url, m=(1, 1), o=(1, 1))
    sweep("--backends", pool)
    answered, before = len(sweep.requests), (tmp_path / "out/rows.jsonl").read_bytes()
    flags = "score", tmp_path / "out", "--scorer", "omnigaia", "--judge", "o", "--backends", pool
    code, said = evaluated(*flags, "--budget", 1)
    assert code == 0 and "omnigaia: 5 of 6 answers right; USD 0.0004" in said
    assert len(sweep.requests) == answered + 4  # two answers that are not exact, two replies each
    assert (tmp_path / "out/rows.jsonl").read_bytes() == before
    assert (tmp_path / "out/runs/3/omnigaia.jsonl").exists()
    code, said = evaluated(*flags)
    assert "USD 0.0000 of it paid now" in said and len(sweep.requests) == answered + 4
    rows = scored_rows(tmp_path / "out")
    assert rows["3", 1]["omnigaia"] is True and rows["6", 1]["omnigaia"] is False
    found = json.loads(evaluated("report", tmp_path / "out", "--score", "omnigaia", "--json")[1])
    assert found["methods"]["react/m"]["overall"]["accuracy"] == pytest.approx(5 / 6)


def test_the_budget_of_a_score_is_hard(sweep, tmp_path, evaluated):
    """A reply costs 0.01 USD and may cost 4.1 for its 4,096 tokens. A verdict takes two."""
    pool = pool_file(tmp_path, sweep.url, m=(1, 1), j=(0, 1000))
    sweep("--backends", pool, "--limit", 30, count=30)
    asked = len(sweep.requests)
    judged = "--scorer", "judge", "--judge", "j", "--backends", pool, "--workers", 3
    code, said = evaluated("score", tmp_path / "out", *judged, "--budget", 4.3)
    assert code == 1 and "budget exhausted" in said
    assert 0 < len(sweep.requests) - asked < 10
    code, said = evaluated("score", tmp_path / "out", *judged)
    assert (code, len(sweep.requests)) == (0, asked + 2 * 10), said


def test_a_score_that_a_sweep_does_not_have_is_asked_for(sweep, tmp_path, evaluated):
    sweep(count=2)
    code, said = evaluated("report", tmp_path / "out", "--score", "omnigaia")
    assert code == 2 and "evaluate score" in said and "--scorer omnigaia" in said
    assert evaluated("score", tmp_path / "out", "--scorer", "judge", "--judge", "j")[0] == 0
    found = json.loads(evaluated("report", tmp_path / "out", "--json")[1])
    assert found["score"] == "judge"


def test_the_rules_of_now_score_the_answers_that_are_there(sweep, tmp_path):
    sweep()
    rows = (tmp_path / "out/rows.jsonl").read_text()
    (tmp_path / "out/rows.jsonl").write_text(rows.replace('"match": true', '"match": false'))
    row = scored_rows(tmp_path / "out")["1", 1]
    assert [row["exact"], row["gaia"], row["match"]] == [True, True, True]


def test_a_score_of_an_answer_that_was_given_anew_does_not_count(sweep, tmp_path, evaluated):
    sweep(count=2)
    evaluated("score", tmp_path / "out", "--scorer", "omnigaia", "--judge", "j")
    row = {**rows_in(tmp_path / "out")[0], "answer": "another"}
    with (tmp_path / "out/rows.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    found = scored_rows(tmp_path / "out")
    assert sum("omnigaia" in row for row in found.values()) == 1


def test_a_question_with_several_accepted_answers_is_scored_by_each(sweep, tmp_path, evaluated):
    sweep.respond = lambda r: "Correct" if r["model"] == "j" else finish("$2")
    asked = [{"question": "What is 1 and 1?", "answer": ["two", "2"]}]
    (tmp_path / "data.json").write_text(json.dumps(asked))
    sweep(count=0)
    (row,) = rows_in(tmp_path / "out")
    assert (row["right"], row["accepted"]) == ("two or 2", ["two", "2"])
    assert [row["exact"], row["gaia"], row["match"]] == [False, True, True]
    scored = "score", tmp_path / "out", "--scorer", "judge", "--judge", "j"
    assert "judge: 1 of 1" in evaluated(*scored)[1]
    judged = last_text(next(r for r in sweep.requests if r["model"] == "j"))
    assert "One of them is enough" in judged and "two\n2" in judged


def test_an_endpoint_that_admits_nobody_ends_a_sweep_and_the_same_command_goes_on(sweep, capsys):
    sweep.respond = lambda request: Raw(401, {"error": {"message": "no such key"}})
    code, _ = sweep("--workers", 2, count=9)
    told = capsys.readouterr().err
    assert code == 4 and len(sweep.requests) <= 5
    assert "no such key; once that is corrected, the same command goes on" in told
    sweep.respond = number_asked
    assert sweep(count=9)[0] == 0


def test_a_judge_that_fails_leaves_answers_without_a_verdict(sweep, tmp_path, evaluated):
    sweep()
    sweep.respond = lambda request: Raw(401, {})
    flags = "score", tmp_path / "out", "--scorer", "judge", "--judge", "j"
    code, said = evaluated(*flags)
    assert code == 1 and "2 without a verdict" in said and "401" in said
    sweep.respond = number_asked
    assert evaluated(*flags)[0] == 0


@pytest.mark.parametrize("flags", [
    ["--scorer", "judge"], ["--scorer", "match", "--judge", "j"], ["--scorer", "nope"], ["--scorer", "judge", "--judge", "j", "--budget", "1"],
    ["--scorer", "judge", "--judge", "j", "--workers", "0"],
])  # fmt: skip
def test_a_mistake_in_score_is_one_line_before_the_first_call(sweep, tmp_path, evaluated, flags):
    sweep(count=1)
    asked = len(sweep.requests)
    code, said = evaluated("score", tmp_path / "out", *flags)
    assert code == 2 and len(said.splitlines()) == 1 and len(sweep.requests) == asked


# ---- files of questions --------------------------------------------------------------------------


def test_a_csv_file_is_read_with_its_media(tmp_path):
    shutil.copy(CLOCK, tmp_path / "a.png")
    text = '\ufeffQuestion,Final answer,id,media,Level\n"Which, if any?",Orloj,x,a.png; b.wav,\nTwo?,2,,,3\n'
    (tmp_path / "q.csv").write_text(text, encoding="utf-8")
    first, second = load(tmp_path / "q.csv")
    assert (first.question, first.answer, first.id, first.level) == (
        *("Which, if any?", "Orloj", "x", ""),
    )
    assert [Path(path).name for _, path in first.media] == ["a.png", "b.wav"]
    assert (second.id, second.level, second.media) == ("2", "3", ())


@pytest.mark.parametrize(("text", "said"), [
    ("question,answer\na,b,c\n", "more cells"), ("a,b\n1,2\n", "question 1: it has no 'question'"), ('question,answer\n"a,b\n', "cannot be read"), ("", "no question"),
])  # fmt: skip
def test_an_odd_csv_file_is_one_line(tmp_path, text, said):
    (tmp_path / "q.csv").write_text(text)
    with pytest.raises(ConfigError) as error:
        load(tmp_path / "q.csv")
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_parquet_file_is_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pip install pyarrow")
    from pyarrow import parquet

    asked = {"task_id": ["a", "b"], "Question": ["One?", "Two?"], "Final answer": ["1", "2"]}
    parquet.write_table(
        pyarrow.table({**asked, "Level": [1, 2], "file_name": ["", None]}), tmp_path / "q.parquet"
    )
    found = load(tmp_path / "q.parquet")
    assert [(q.id, q.question, q.answer, q.level) for q in found] == [
        *[("a", "One?", "1", "1"), ("b", "Two?", "2", "2")]
    ]
    (tmp_path / "q.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "q.parquet")


def test_a_parquet_file_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "q.parquet").touch()
    with pytest.raises(ConfigError, match=re.escape(install("parquet"))):
        load(tmp_path / "q.parquet")


def test_a_file_cannot_set_the_repeat_of_a_question(tmp_path):
    (tmp_path / "q.csv").write_text("question,answer,repeat,shown\na,b,7,x\n")
    (q,) = load(tmp_path / "q.csv")
    assert (q.repeat, q.shown) == (1, "")


# ---- what a report says --------------------------------------------------------------------------


def test_a_report_has_a_row_for_each_level_and_for_categories_that_divide(
    sweep, tmp_path, evaluated
):
    rows = [
        {
            "question": f"What is number {n}?",
            "answer": n,
            "level": "L",
            "category": ["A", "overall", ""][n % 3],
        }
        for n in range(1, 8)
    ]
    (tmp_path / "data.json").write_text(json.dumps(rows))
    sweep(count=0)
    _, shown = evaluated("report", tmp_path / "out")
    lines = shown.splitlines()
    assert lines[2] == "level    react/m" and lines[3].startswith("L        ")
    found = [(line.split()[0], line.split()[-1]) for line in lines[6:11]]
    assert found == [("category", "react/m"), ("-", "n=2"), ("A", "n=2"), ("overall", "n=3"), ("overall", "n=7")]  # fmt: skip
    for row in rows:
        row["category"] = "A"
    (tmp_path / "data.json").write_text(json.dumps(rows))
    assert sweep("--out", tmp_path / "one", count=0)[0] == 0
    assert "category" not in evaluated("report", tmp_path / "one")[1]


def test_a_report_counts_asked_answered_fallbacks_and_unfinished(sweep, tmp_path, evaluated):
    def respond(request):
        if "number 2" in str(request):
            return Raw(401, {})
        if "number 3" in str(request):
            return finish("3", status="partial")
        return finish("") if "number 4" in str(request) else number_asked(request)

    sweep.respond = respond
    assert sweep(count=6)[0] == 1
    (method,) = json.loads(evaluated("report", tmp_path / "out", "--json")[1])["methods"].values()
    assert (method["asked"], method["unfinished"]) == (6, 1)
    assert (method["answered"], method["fallback"]) == (4, 1 / 4)
    lines = (tmp_path / "out/rows.jsonl").read_text().splitlines()
    (tmp_path / "out/rows.jsonl").write_text("\n".join(lines[:3]) + "\n")
    (method,) = json.loads(evaluated("report", tmp_path / "out", "--json")[1])["methods"].values()
    assert method["asked"] == 6 and method["unfinished"] >= 3  # those without a row


def test_two_methods_differ_by_an_interval_and_a_corrected_p(sweep, tmp_path, evaluated):
    folders = [tmp_path / name for name in ("out", "b", "c")]
    for folder, right in zip(folders, (30, 15, 0), strict=True):

        def respond(request, right=right):
            n = int(re.findall(r"number (\d+)", json.dumps(request))[0])
            return finish(str(n if n % 3 else -n) if n <= right else "no")

        sweep.respond = respond
        sweep("--out", folder, count=30)
    found = json.loads(evaluated("report", *folders, "--json")[1])
    first, second, third = found["pairs"][:3]
    assert (first["only_a"], first["only_b"], first["n"]) == (15, 0, 30)
    assert first["difference"] == 0.5 and 0.2 < first["interval"][0] < 0.5 < first["interval"][1]
    assert first["p"] == pytest.approx(2**-14) and first["p_holm"] == pytest.approx(2 * 2**-14)
    assert second["p_holm"] == pytest.approx(3 * second["p"])
    assert third["only_a"] == 15 and third["p"] == pytest.approx(2**-14)
    assert "+50.0 [" in evaluated("report", *folders)[1]


def test_a_bare_answer_is_what_the_rules_score(sweep, tmp_path, evaluated):
    """The model that takes the answer out of a sentence does not see the right one."""
    sweep.respond = lambda r: "Paris" if r["model"] == "b" else finish("The capital is Paris.")
    asked = [{"question": "What is the capital?", "answer": "Paris"}]
    (tmp_path / "data.json").write_text(json.dumps(asked))
    _, rows = sweep(count=0)
    assert [rows["1"][rule] for rule in ("exact", "gaia", "match")] == [False] * 3
    flags = "score", tmp_path / "out", "--scorer", "bare", "--judge", "b"
    assert "bare: 1 of 1 answers were shortened" in evaluated(*flags)[1]
    (read,) = [last_text(r) for r in sweep.requests if r["model"] == "b"]
    assert "The capital is Paris." in read and read.count("Paris") == 1
    row = scored_rows(tmp_path / "out")["1", 1]
    assert (row["answer"], row["bare"]) == ("The capital is Paris.", "Paris")
    assert [row[rule] for rule in ("exact", "gaia", "match")] == [True] * 3
    before = len(sweep.requests)
    assert evaluated(*flags)[0] == 0 and len(sweep.requests) == before


@pytest.mark.parametrize("reply", ["Paris", "", Raw(200, cut_off("Ly")), "<think>Lyon"])
def test_a_bare_answer_that_is_no_part_of_the_reply_does_not_count(
    reply, sweep, tmp_path, evaluated
):
    sweep.respond = lambda r: reply if r["model"] == "b" else finish("It is Lyon, I think.")
    asked = [{"question": "What is the capital?", "answer": "Paris"}]
    (tmp_path / "data.json").write_text(json.dumps(asked))
    sweep(count=0)
    flags = "score", tmp_path / "out", "--scorer", "bare", "--judge", "b"
    code, said = evaluated(*flags)
    assert code == 1 and "0 of 1 answers were shortened, 1 without a copy" in said
    row = scored_rows(tmp_path / "out")["1", 1]
    assert row["bare"] is None and row["match"] is False
    sweep.respond = lambda r: "Lyon"
    code, said = evaluated(*flags)  # it is asked for again
    assert code == 0 and scored_rows(tmp_path / "out")["1", 1]["bare"] == "Lyon"


def test_a_reply_before_a_failed_call_is_not_paid_again(sweep, tmp_path, evaluated):
    replies = iter(["Perhaps.", Raw(401, {}), "Correct"])
    sweep.respond = lambda r: next(replies) if r["model"] == "b" else finish("It is Lyon.")
    asked = [{"question": "What is the capital?", "answer": "Lyon"}]
    (tmp_path / "data.json").write_text(json.dumps(asked))
    sweep(count=0)
    flags = "score", tmp_path / "out", "--judge", "b"
    assert evaluated(*flags)[0] == 1
    before = len(sweep.requests)
    assert evaluated(*flags)[0] == 0 and len(sweep.requests) == before + 1
    assert scored_rows(tmp_path / "out")["1", 1]["judge"] is True


@pytest.mark.parametrize(("scorer", "score"), [("bare", True), ("bare", 5), ("judge", "Paris")])
def test_a_damaged_score_is_one_line(scorer, score, sweep, tmp_path, evaluated):
    sweep(count=1)
    (row,) = rows_in(tmp_path / "out")
    found = {**row, "score": score, "cost_usd": 0.0}
    (tmp_path / "out/scores").mkdir()
    (tmp_path / f"out/scores/{scorer}.jsonl").write_text(json.dumps(found) + "\n")
    code, said = evaluated("report", tmp_path / "out")
    assert code == 2 and "is damaged" in said and said.count("\n") == 1


def test_copied_answers_are_compared_only_where_all_sweeps_have_them(sweep, tmp_path, evaluated):
    sweep.respond = lambda r: "7" if r["model"] == "b" else finish("It is 7.")
    asked = [{"question": "What is number 7?", "answer": "7"}]
    (tmp_path / "data.json").write_text(json.dumps(asked))
    folders = [tmp_path / name for name in ("out", "b")]
    for folder in folders:
        sweep("--out", folder, count=0)
    accuracies = lambda *words: [  # noqa: E731
        method["match"]
        for method in json.loads(evaluated("report", *folders, *words, "--json")[1])[
            "methods"
        ].values()
    ]
    for n, folder in enumerate(folders):
        told = "replies are scored as they are" in evaluated("report", *folders)[1]
        assert (accuracies(), told) == ([0, 0], n == 1)
        evaluated("score", folder, "--scorer", "bare", "--judge", "b")
    assert accuracies() == [1, 1] and accuracies("--replied") == [0, 0]
    assert "copied out of the replies" in evaluated("report", *folders)[1]
    sweep("--extend", "--repeat", 2, "--out", folders[0], count=0)  # half of them have no copy
    assert accuracies() == [0, 0]
