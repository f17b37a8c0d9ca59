"""evaluate.py: each question is answered, scored and paid for once, whatever happens in between."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

import evaluate
from evaluation.questions import load
from evaluation.scores import exact, matches
from evaluation.sweep import Crew, Funds
from orchestra.vocabulary import ConfigError
from tests.conftest import ROOT
from tests.program import CLOCK, pool_file, replay
from tests.scripted import Raw, complete, delegate, finish, is_main
from tests.sweeps import OFFICIAL, data_file, number_asked, words


def sweep(folder, url, *more):
    """The exit code and the newest row of each question, by id."""
    with mock.patch.dict(os.environ, {"OPENAI_BASE_URL": url}):
        code = evaluate.main(words(folder, *more))
    out = Path(more[-1] if "--out" in more else folder / "out")
    rows = (out / "rows.jsonl").read_text().splitlines() if code < 2 else []
    return code, {row["id"]: row for row in map(json.loads, rows)}


# ---- the file ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("content", "expected"), [
    ('[{QQ, "answer": 1}]', 1), ('{QQ, "answer": "a"}\n\n{"Question": "b", "Final answer": 2.5}\n', 2), ('\ufeff[{QQ, "answer": "a"}]', 1),
    ('{"data": [{"problem": "b", "ground_truth": "c"}]}', 1), ('{QQ, "answer": "a\u2028b"}', 1), ('[{QQ, "answer": "a", "id": null, "level": null}]', 1),
    ("", "no question"), ("[]", "no question"), ("[1]", "needs an object"), ("hello", "Expecting value"),
    ('[{QQ, "answer": "a"}', "JSON"), ('{QQ, "answer": "a"}\nx', "line 2"),
    ('[{"answer": "a"}]', "question 1: question"), ("[{QQ}]", "answer"), ('[{QQ, "answer": " "}]', "answer"),
    ('[{QQ, "answer": null}]', "answer"), ('[{QQ, "answer": true}]', "answer"), ('[{QQ, "answer": ["a"]}]', "answer"),
    ('[{QQ, "answer": 1, "id": "x"}, {QQ, "answer": 1, "id": "x"}]', "question 2: another question"),
    ('{"version": 1, "data": [{QQ, "answer": 1}]}', 1), ('[{QQ, "answer": 1, "media": [{"type": "Image", "path": "a.png"}]}]', 1),
    ('[{QQ, "answer": 1, "image": "a.png"}]', "image: name its files in media"), ('[{QQ, "answer": 1, "image_path": "a"}]', "image_path: name"),
    ('[{QQ, "answer": 1, "file_name": "../a"}]', "inside"), ('[{QQ, "answer": 1, "file_name": ""}]', 1),
    ('[{QQ, "answer": 1, "media": "a.png"}]', "media"), ('[{QQ, "answer": 1, "media": [{"type": "image"}]}]', "media.0.1"),
    ('[{QQ, "answer": 1, "media": [{"type": "smell", "path": "a"}]}]', "'image'"), ('[{QQ, "answer": 1, "media": ["../a"]}]', "inside"),
])  # fmt: skip
def test_an_odd_file_gives_questions_or_one_line(tmp_path, content, expected):
    file = tmp_path / "data.json"
    file.write_text(content.replace("QQ", '"question": "What is 1?"'), encoding="utf-8")
    if isinstance(expected, int):
        assert len({q.id for q in load(file)}) == expected
        return
    with pytest.raises(ConfigError) as error:
        load(file)
    assert expected in str(error.value) and "\n" not in str(error.value)


def test_questions_without_their_media_are_named_and_skipped(tmp_path, endpoint, capsys):
    shutil.copytree(CLOCK.parent, tmp_path / "media/images")
    lost = {**OFFICIAL, "id": 8, "omni_modal_input": [{"type": "video", "path": "v/x.mp4"}]}
    odd = {**OFFICIAL, "id": 9, "omni_modal_input": [{"type": "image", "path": "text.png"}]}
    (tmp_path / "media/text.png").write_text("no picture")
    (tmp_path / "data.json").write_text(json.dumps([OFFICIAL, lost, odd]))
    code, rows = sweep(tmp_path, endpoint(number_asked).url, "--media", tmp_path / "media")
    assert (code, list(rows), rows["7"]["exact"]) == (0, ["7"], True)
    said = capsys.readouterr().err
    assert "question 8 is skipped" in said and "question 9 is skipped" in said


@pytest.mark.parametrize("more", [
    ["--level", "L7"], ["--workers", "0"], ["--judge", "x", "--budget", "1"], ["--method", "nope"], ["--image", "a"],
    ["--budget", "1"], ["--budget", "nan"], ["--limit", "-2"], ["--executor", "http://x"], ["--executor", "dask://"], ["--nonsense"],
])  # fmt: skip
def test_a_mistake_of_the_user_is_one_line_before_the_first_call(tmp_path, endpoint, capsys, more):
    server = endpoint(number_asked)
    data_file(tmp_path)
    assert sweep(tmp_path, server.url, *more) == (2, {})
    assert len(capsys.readouterr().err.splitlines()) == 1 and not server.requests


# ---- scores --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("said", "right", "same"), [
    ("2", "2 years", 1), ("1,000", "1000", 1), ("March 5th, 2011", "2011-03-05", 1), ("50, 5005; 92", "50, 5005, 92", 1),
    ("France, Peru and Chile", "France; Peru; Chile", 1), ("Peru", "Peru, Chile", 0), ("2011-03-06", "2011-03-05", 0), ("", "2", 0),
    ("[1,2,3]", "1, 2, 3", 1), ("1,2,3", "1, 2, 3", 1), ("Red\nBlue", "Red,Blue", 1), ('["Peru","Chile"]', "Peru, Chile", 1), ("1,234", "1; 234", 0),
    ("5 km/h", "5", 1), ("5 m\u00b2", "5", 1), ("20 \u00b0C.", "20", 1), ("5 mph", "5", 0), ("5 %", "5%", 1), ("$ 5", "$5", 1),
    ("12,718 km", "12718km", 1), ("5.0 million", "5 million", 1), ("5 years", "5 km/h", 0), ("5 cm", "5", 0),
    ("Sept. 5, 2020", "2020-09-05", 1), ("5th of March 2020", "5 March 2020", 1), ("**Paris**", "Paris", 1), ("7:49 AM", "7:49am", 1),
    ("\u20135", "-5", 1), ("a" * 1001 + "b", "a" * 1001 + "c", 0), (".5", "5", 0), (".5", "0.5", 1), ("\u22125", "-5", 1), ("0.00001", "1e-05", 1), ("v1.5", "v15", 0),
    ("42", "42.0", 1), ("1,234", "1234", 1), ("The Tower.", "tower", 1), ("  MIRA  Kolven ", "Mira Kolven", 1),
    ("7:05", "07:05", 1), ("$5", "5", 1), ("ＡＢ", "ab", 1), ("13 coins", "13", 1), ("13 cm", "13", 0),
    ("5 or 6", "5", 0), ("1 coin", "1", 1), ("1 hour", "1 hours", 1), ("A and C", "a, c", 1), ("The Queen\u2019s", "the queen's", 1),
    ("13 million", "13", 0), ("41 or 42", "42", 0), ("it is 42", "42", 0), ("-42", "42", 0), ("", "1", 0), ("$5", "5%", 0), ("1.5", "15", 0),
])  # fmt: skip
def test_the_normalised_match_reads_numbers_units_dates_and_lists(said, right, same):
    assert (
        matches(said, right, "Coins, years, km/h, m\u00b2, \u00b0C, 43 or a million, 5 or 6?")
        == same
    )
    assert exact(" Show  ME", "show me") and not exact("2", "2 years")


def test_the_judge_is_asked_again_once_and_only_where_the_answers_differ(tmp_path, endpoint):
    server = endpoint(number_asked)
    data_file(tmp_path, 3)
    _, rows = sweep(tmp_path, server.url, "--judge", "j")
    assert [rows[n]["judge"] for n in "123"] == [True] * 3 and not rows["3"]["exact"]
    assert [r["model"] for r in server.requests].count("j") == 2
    assert replay(tmp_path / "out/runs/3").answer == "3"
    server = endpoint(lambda r: "Perhaps" if r["model"] == "j" else number_asked(r))
    _, rows = sweep(tmp_path, server.url, "--judge", "j", "--out", tmp_path / "out2")
    asked = [r["model"] for r in server.requests].count("j")
    assert (rows["3"]["judge"], asked) == (None, 2)


def test_a_judge_that_the_share_cannot_pay_asks_again_with_a_larger_one(tmp_path, endpoint):
    data_file(tmp_path)
    url = endpoint(number_asked).url
    pool = pool_file(tmp_path, url, m=(1, 1), j=(50, 1))
    code, rows = sweep(tmp_path, url, "--backends", pool, "--judge", "j", "--budget", 1)
    assert code == 0 and all(row["judge"] for row in rows.values())


# ---- what goes wrong -----------------------------------------------------------------------------


def test_one_bad_question_is_a_failed_row_and_the_next_sweep_does_it_alone(tmp_path, endpoint):
    broken = [True]
    refused = lambda r: broken and "number 4" in str(r)  # noqa: E731
    server = endpoint(lambda r: Raw(401, {}) if refused(r) else number_asked(r))
    data_file(tmp_path)
    code, rows = sweep(tmp_path, server.url, "--workers", 3)
    assert (code, rows["4"]["status"], len(rows)) == (1, "failed", 6) and "401" in rows["4"]["why"]
    asked = len(server.requests)
    broken.clear()
    code, rows = sweep(tmp_path, server.url, "--workers", 3)
    assert (code, rows["4"]["exact"], len(server.requests)) == (0, True, asked + 1)
    assert len((tmp_path / "out/rows.jsonl").read_text().splitlines()) == 7


@pytest.mark.parametrize(("budgets", "again"), [((0, 0), 3), ((1, 1), 3), ((1, 0.1), 5)])
def test_a_sub_task_that_met_a_rate_limit_is_asked_again(tmp_path, endpoint, budgets, again):
    """With all from its round on; with all of its question where the rest of a budget pays no fork."""
    limited = [True]

    def respond(request):
        text = json.dumps(request)
        if is_main(request):
            second = complete("7") if "look2" in text else delegate("look2")
            return second if "look1" in text else delegate("look1")
        return Raw(429, {}, retry_after="9") if limited[0] and "look2" in text else finish("7")

    server = endpoint(respond)
    data_file(tmp_path, 1)
    pool = pool_file(tmp_path, server.url, m=(1, 1))
    how = "--method", "orchestra-o1", "--backends", pool, "--patience"
    first, second = (["--budget", usd] * bool(usd) for usd in budgets)
    _, rows = sweep(tmp_path, server.url, *how, 0, *first)
    assert rows["1"]["status"] == "failed" and "rate limit in r2/t1" in rows["1"]["why"]
    assert rows["1"]["cost_usd"] > 0
    limited[0], asked = False, len(server.requests)
    (tmp_path / "out/runs/1.2").mkdir()  # killed while the run was copied
    (tmp_path / "out/runs/1.2/run.json").touch()
    _, rows = sweep(tmp_path, server.url, *how, 1, *second)  # the patience may change
    assert (rows["1"]["status"], rows["1"]["run"]) == ("done", "1.2")
    assert len(server.requests) == asked + again


def test_the_budget_is_hard_and_a_question_starts_only_with_what_is_left(tmp_path, endpoint):
    server = endpoint(number_asked)  # a question costs 0.01 USD, and needs 0.064 to start
    data_file(tmp_path, 9)
    pool = pool_file(tmp_path, server.url, m=(0, 1000))
    how = ("--backends", pool, "--workers", 3, "--budget")
    code, rows = sweep(tmp_path, server.url, *how, 0.1)
    done = [row for row in rows.values() if row["status"] == "done"]
    assert code == 1 and 2 < len(done) == len(server.requests) < 9
    code, rows = sweep(tmp_path, server.url, *how, 0.4)
    assert code == 0 and {row["status"] for row in rows.values()} == {"done"}
    assert len(rows) == len(server.requests) == 9


def test_shares_that_only_rounding_makes_more_than_is_left_are_still_shares(tmp_path, monkeypatch):
    held = 0.1376249999999999, 0.13762500000000003, 0.13762500000000005, 0.13762500000000005
    for n in range(4):
        (tmp_path / f"runs/{n}").mkdir(parents=True)
    monkeypatch.setattr(Funds, "_held_usd", lambda self, folder: held[int(folder.name)])
    cost = {"cost_usd": 0.0044, "judge_usd": 0.0011, "status": "done"}
    past = [{"run": f"past {n}", **cost} for n in range(9)]
    plan = SimpleNamespace(out=tmp_path, folder=lambda q: tmp_path / "runs" / q.name)
    funds = Funds(0.6, plan, past)
    assert all(funds.share(SimpleNamespace(name=f"{n}"), 4, True) for n in range(4))


def test_kill_9_loses_and_doubles_no_row_and_pays_only_calls_in_flight_again(tmp_path, endpoint):
    data_file(tmp_path, 16)
    server, extra = endpoint(number_asked, delay_s=0.1), 0
    environment = {**os.environ, "OPENAI_BASE_URL": server.url}
    command = [sys.executable, str(ROOT / "evaluate.py"), *words(tmp_path, "--workers", 4)]
    for kills in (2, 5):
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        while len(server.requests) < kills * 2:
            time.sleep(0.01)
        extra += len(server.in_flight)
        process.kill()
        process.wait()
    assert subprocess.run(command, env=environment, capture_output=True, check=True)
    rows = (tmp_path / "out/rows.jsonl").read_text().splitlines()
    assert sorted(int(json.loads(row)["id"]) for row in rows) == [*range(1, 17)]
    assert len(server.requests) <= 16 + extra + 8


# ---- tables --------------------------------------------------------------------------------------


def test_the_report_compares_methods_by_level_category_and_question(tmp_path, endpoint, capsys):
    data_file(tmp_path)
    right, wrong = endpoint(number_asked).url, endpoint(lambda request: finish("no")).url
    sweep(tmp_path, right)
    sweep(tmp_path, right, "--judge", "j", "--out", tmp_path / "judged")
    sweep(tmp_path, wrong, "--out", tmp_path / "all wrong")
    folders = [str(tmp_path / name) for name in ("out", "judged", "all wrong")]

    def reported(*more):
        capsys.readouterr()
        assert evaluate.main(["report", *folders, *more]) == 0
        return capsys.readouterr().out

    found = json.loads(reported("--json"))
    plain = found["methods"]["react/m"]
    assert plain["overall"]["accuracy"] == pytest.approx(4 / 6)
    assert plain["level"]["L1"]["n"] == 3 and plain["category"]["A B"]["n"] == 6
    assert len(found["methods"]) == 3 and not any(" " in name for name in found["methods"])
    pairs = found["mcnemar"]  # by a score that both have
    assert [(p["only_a"], p["only_b"]) for p in pairs] == [(0, 0), (4, 0), (4, 0)]
    assert pairs[0]["p"] == 1.0 and "66.7 [30-90]" in reported()
    assert evaluate.main(["report", *folders, "--score", "judge"]) == 2
    rows = (tmp_path / "out/rows.jsonl").read_text()
    other = rows.replace('"right": "', '"right": "of other data: ')
    (tmp_path / "out/rows.jsonl").write_text(other)
    assert [p["n"] for p in json.loads(reported("--json"))["mcnemar"]] == [0, 0, 6]
    (tmp_path / "out/sweep.json").write_text("")
    assert evaluate.main(["report", *folders]) == sweep(tmp_path, right)[0] == 2
    assert capsys.readouterr().err.count("damaged") == 2


def test_intervals_and_p_values_are_those_of_the_textbooks():
    assert evaluate.wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert evaluate.mcnemar(1, 9) == pytest.approx(0.021484, abs=1e-6)
    assert evaluate.mcnemar(0, 0) == 1.0
    assert evaluate.wilson(0, 15)[0] == 0.0 and evaluate.wilson(40, 40)[1] == 1.0


def test_workers_halve_once_at_a_rate_limit_and_grow_while_calls_stay_fast():
    crew, row = Crew("auto"), {"status": "done", "resumed": False, "calls": 1}
    for _ in range(12):
        crew.ended({**row, "latency_s": 1.0})
    crew.started = 16
    crew.limited(3)
    crew.limited(4)
    assert crew.allowed == 8
    crew.ended({**row, "latency_s": 9.0})
    assert crew.allowed == 8
