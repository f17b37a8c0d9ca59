"""evaluate.py: each question is answered, scored and paid for once, whatever happens in between."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from orchestra.evaluation import command as evaluate
from orchestra.evaluation import intervals
from orchestra.evaluation.answering import Plan, answer
from orchestra.evaluation.figures import latencies_s
from orchestra.evaluation.questions import load
from orchestra.evaluation.scores import matches
from orchestra.evaluation.sweep import Budget
from orchestra.kernel.vocabulary import ConfigError
from tests import sweeps
from tests.conftest import ROOT, Options, pool_at
from tests.program import CLOCK, pool_file, replay
from tests.scripted import Raw, complete, delegate, finish, is_main, last_text
from tests.sweeps import OFFICIAL, data_file, judged, number_asked, words


def test_a_secret_in_a_right_answer_is_written_nowhere(sweep, tmp_path):
    key = "sk-" + "abcdefghij0123456789"
    asked = [{"question": "What is number 1?", "answer": f"It is {key}."}]
    (tmp_path / "data.json").write_text(json.dumps(asked))
    _, rows = sweep(count=0)
    assert rows["1"]["right"] == "It is <SECRET>"
    assert judged(tmp_path / "out", sweep.url)[1] == {"1": True}
    written = [p.read_text() for p in (tmp_path / "out").rglob("*") if p.is_file()]
    assert not [text for text in written if key in text]


# ---- the file ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("content", "expected"), [
    ('[{QQ, "answer": 1}]', 1), ('{QQ, "answer": "a"}\n\n{"Question": "b", "Final answer": 2.5}\n', 2), ('\ufeff[{QQ, "answer": "a"}]', 1),
    ('{"version": 1, "data": [{"problem": "b", "ground_truth": "c"}]}', 1), ('{QQ, "answer": "a\u2028b"}', 1), ('{QQ, "answer": 1, "media": []}', 1),
    ('[{QQ, "answer": "a", "id": null, "level": null, "file_name": ""}]', 1), ('[{QQ, "answer": 1, "media": [{"type": "Image", "path": "a.png"}]}]', 1),
    ('[{QQ, "answer": ["a", 2]}]', 1), ('[{QQ, "final_answer": ["a"], "accepted too": ["b"]}]', 1),
    ("", "no question"), ("[1]", "needs an object"), ("hello", "Expecting value"), ('[{QQ, "answer": "a"}', "JSON"), ('{QQ, "answer": "a"}\nx', "line 2"),
    ('[{"answer": "a"}]', "question 1: it has no 'question'"), ("[{QQ}]", "answer"), ('[{QQ, "answer": " "}]', "answer"), ('[{QQ, "answer": []}]', "at least one"), ('[{QQ, "answer": ["a", " "]}]', "answer: a list"), ('[{QQ, "gold": [["a"]]}]', "gold: a list"),
    ('[{QQ, "answer": 1, "id": "x"}, {QQ, "answer": 1, "id": "x"}]', "question 2: another question"),
    ('[{QQ, "answer": 1, "image_path": "a"}]', "image_path: name"), ('[{QQ, "answer": 1, "file_name": "../a"}]', "inside"),
    ('[{QQ, "answer": 1, "media": "a.png"}]', "media"), ('[{QQ, "answer": 1, "media": [{"type": "image"}]}]', "media.0.1"),
    ('[{QQ, "answer": 1, "media": [{"type": "smell", "path": "a"}]}]', "'image'"),
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


def test_questions_without_their_media_are_named_and_skipped(tmp_path, sweep, capsys):
    shutil.copytree(CLOCK.parent, tmp_path / "media/images")
    (tmp_path / "media/a.png").write_text("no picture")
    others = [{**OFFICIAL, "id": n, "media": [file]} for n, file in ((8, "gone.mp4"), (9, "a.png"))]
    (tmp_path / "data.json").write_text(json.dumps([OFFICIAL, *others]))
    code, rows = sweep("--media", tmp_path / "media", count=0)
    assert (code, list(rows), rows["7"]["exact"]) == (0, ["7"], True)
    printed = capsys.readouterr().err
    assert "question 8 is skipped" in printed and "question 9 is skipped" in printed


@pytest.mark.parametrize("flags", [
    ["--level", "L7"], ["--workers", "0"], ["--judge", "x"], ["--method", "nope"], ["--image", "a"],
    ["--budget", "1"], ["--budget", "nan"], ["--limit", "-2"], ["--executor", "http://x"], ["--executor", "dask://"], ["--nonsense"],
])  # fmt: skip
def test_a_mistake_of_the_user_is_one_line_before_the_first_call(sweep, capsys, flags):
    assert sweep(*flags) == (2, {})
    assert len(capsys.readouterr().err.splitlines()) == 1 and not sweep.requests


# ---- scores --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "right", "same"), [
    ("1,000", "1000", 1), ("March 5th, 2011", "2011-03-05", 1), ("50, 5005; 92", "50, 5005, 92", 1),
    ("France, Peru and Chile", "France; Peru; Chile", 1), ("Peru", "Peru, Chile", 0), ("2011-03-06", "2011-03-05", 0), ("", "2", 0),
    ("[1,2,3]", "1, 2, 3", 1), ("Red\nBlue", "Red,Blue", 1), ('["Peru","Chile"]', "Peru, Chile", 1), ("1,234", "1; 234", 0),
    ("5 mph", "5", 0), ("5 %", "5%", 1), ("$ 5", "$5", 1),
    ("12,718 km", "12718km", 1), ("5.0 million", "5 million", 1), ("5 years", "5 km/h", 0), ("13 cm", "13", 0), ("13 million", "13", 0),
    ("Sept. 5, 2020", "2020-09-05", 1), ("5th of March 2020", "5 March 2020", 1), ("**Paris**", "Paris", 1), ("7:49 AM", "7:49am", 1),
    ("\u20135", "-5", 1), ("\u22125", "-5", 1), (".5", "5", 0), (".5", "0.5", 1), ("0.00001", "1e-05", 1), ("v1.5", "v15", 0), ("42", "42.0", 1),
    ("The Tower.", "tower", 1), ("  MIRA  Kolven ", "Mira Kolven", 1), ("7:05", "07:05", 1), ("$5", "5", 1), ("$5", "5%", 0), ("ＡＢ", "ab", 1),
    ("5 or 6", "5", 0), ("it is 42", "42", 0), ("1 hour", "1 hours", 1), ("A and C", "a, c", 1), ("The Queen\u2019s", "the queen's", 1), ("-42", "42", 0),
])  # fmt: skip
def test_match_reads_numbers_units_dates_and_lists(given, right, same):
    assert matches(given, right) == same


@pytest.mark.parametrize(("given", "right", "asked"), [
    ("5 km/h", "5", "How fast is it, in km/h?"), ("5", "5 m\u00b2", "How large is it (m2)?"), ("20 \u00b0C.", "20", "How warm is it in degrees Celsius?"), ("2", "2 years", "How many years?"),
])  # fmt: skip
def test_a_number_may_be_without_the_unit_that_is_asked_for(given, right, asked):
    assert matches(given, right, asked) and matches(right, given, asked)
    assert not matches(given, right) and not matches(right, given, "How many apples are in it?")


def test_each_of_several_accepted_answers_is_right_and_the_judge_reads_all(tmp_path, sweep):
    asked = [
        {"question": f"What is number {n}?", "answer": [answer, "the one"]}
        for n, answer in ((1, "uno"), (2, "zwei"), (3, "1"))
    ]
    (tmp_path / "data.json").write_text(json.dumps(asked))
    answers = {"1": "THE ONE", "2": "zwei or the one", "3": "1.0"}

    def respond(request):
        if request["model"] == "j":
            return "Incorrect"
        number = re.search(r"What is number (\d)", str(request["messages"]))[1]
        return complete(answers[number]) if is_main(request) else finish(answers[number])

    sweep.respond = respond
    _, rows = sweep("--method", "react", count=0)
    _, verdicts = judged(tmp_path / "out", sweep.url)
    scores = [(rows[n]["exact"], rows[n]["match"], verdicts[n]) for n in "123"]
    assert scores == [(True, True, True), (False, False, False), (False, True, False)]
    assert rows["2"]["right"] == "zwei or the one"
    read = [last_text(r) for r in sweep.requests if r["model"] == "j"]
    assert len(read) == 2 and "One of them is enough" in read[0]
    assert all("\nthe one\n" in text for text in read)


def test_the_judge_is_asked_again_once_and_only_where_the_answers_differ(tmp_path, sweep):
    _, rows = sweep(count=3)
    assert judged(tmp_path / "out", sweep.url) == (0, dict.fromkeys("123", True))
    assert not rows["3"]["exact"] and [r["model"] for r in sweep.requests].count("j") == 2
    assert replay(tmp_path / "out/runs/3").answer == "3"
    sweep.respond = lambda r: "Perhaps" if r["model"] == "j" else number_asked(r)
    sweep("--out", tmp_path / "out2", count=3)
    code, verdicts = judged(tmp_path / "out2", sweep.url)
    assert (code, verdicts["3"]) == (1, None)
    assert [r["model"] for r in sweep.requests].count("j") == 4


# ---- what goes wrong -----------------------------------------------------------------------------


def test_one_bad_question_is_a_failed_row_and_the_next_sweep_does_it_alone(tmp_path, sweep):
    sweep.respond = lambda r: Raw(401, {}) if "number 4" in str(r) else number_asked(r)
    code, rows = sweep("--workers", 3)
    assert (code, rows["4"]["status"], len(rows)) == (1, "failed", 6) and "401" in rows["4"]["why"]
    asked, sweep.respond = len(sweep.requests), number_asked
    code, rows = sweep("--workers", 3)
    assert (code, rows["4"]["exact"], len(sweep.requests)) == (0, True, asked + 1)
    assert len((tmp_path / "out/rows.jsonl").read_text().splitlines()) == 7


@pytest.mark.parametrize(("budgets", "again"), [((0, 0), 2), ((1, 1), 4)])
def test_a_sub_task_that_met_a_rate_limit_is_asked_again(tmp_path, sweep, budgets, again):
    """A new run takes the answers to equal requests; under a budget, decisions read what is left."""
    limited = [True]

    def respond(request):
        text = json.dumps(request)
        if is_main(request):
            second = complete("7") if "look2" in text else delegate("look2")
            return second if "look1" in text else delegate("look1")
        return Raw(429, {}, retry_after="9") if limited and "look2" in text else finish("7")

    sweep.respond = respond
    pool = pool_file(tmp_path, sweep.url, m=(1, 1))
    how = "--method", "orchestra-o1", "--backends", pool, "--option"
    first, second = (["--budget", usd] * bool(usd) for usd in budgets)
    _, rows = sweep(*how, "patience_s=0", *first, count=1)
    assert rows["1"]["status"] == "failed" and "rate limit in r2/t1" in rows["1"]["why"]
    assert rows["1"]["cost_usd"] > 0
    limited.clear()
    asked = len(sweep.requests)
    (tmp_path / "out/runs/1.2").mkdir()  # killed before its first call
    (tmp_path / "out/runs/1.2/run.json").touch()
    _, rows = sweep(*how, "patience_s=1", *second, count=1)  # the patience may change
    assert (rows["1"]["status"], rows["1"]["run"]) == ("done", "1.2")
    assert len(sweep.requests) == asked + again


def test_the_budget_is_hard_and_a_question_starts_only_with_what_is_left(tmp_path, sweep):
    pool = pool_file(tmp_path, sweep.url, m=(0, 1000))  # a question costs 0.01 USD, needs 0.064
    how = ("--backends", pool, "--workers", 3, "--budget")
    code, rows = sweep(*how, 0.1, count=9)
    done = [row for row in rows.values() if row["status"] == "done"]
    assert code == 1 and 2 < len(done) == len(sweep.requests) < 9
    code, rows = sweep(*how, 0.4, count=9)
    assert code == 0 and {row["status"] for row in rows.values()} == {"done"}
    assert len(rows) == len(sweep.requests) == 9


def test_shares_that_only_rounding_makes_more_than_is_left_are_still_shares(tmp_path, monkeypatch):
    held = 0.1376249999999999, 0.13762500000000003, 0.13762500000000005, 0.13762500000000005
    for n in range(4):
        (tmp_path / f"runs/{n}").mkdir(parents=True)
    monkeypatch.setattr(Budget, "_reserved_usd", lambda self, folder: held[int(folder.name)])
    plan = SimpleNamespace(out=tmp_path, folder=lambda q: tmp_path / "runs" / q.name)
    costs = {"cost_usd": 0.0495, "paid_usd": 0.0495}
    past = {"run": "past", "answer": "42", "status": "done", **costs}
    budget = Budget(0.6, plan, [past])
    assert all(budget.share(SimpleNamespace(name=f"{n}"), 4, True) for n in range(4))


def test_kill_9_loses_and_doubles_no_row_and_pays_only_calls_in_flight_again(tmp_path, endpoint):
    data_file(tmp_path, 16)
    server, extra = endpoint(number_asked, delay_s=0.1), 0
    environment = {**os.environ, "OPENAI_BASE_URL": server.url}
    command = [
        sys.executable,
        str(ROOT / "orchestra_min.py"),
        "evaluate",
        *words(tmp_path, "--workers", 4),
    ]
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


# ---- another sweep reused -----------------------------------------------------------------------


@pytest.fixture
def twice(tmp_path, sweep, edited, capsys):
    """`twice(*flags)`: a sweep of six questions, and one that reuses it after an edit of the prompt
    of sub-agents. Its rows, the requests that it paid for, and the report.
    """
    how = "--method", "orchestra-o1"

    def twice(*flags, new=None):
        sweep.respond = two_rounds()
        assert sweep(*how, *flags)[0] == 0
        sweep.respond = new or two_rounds()
        paid = len(sweep.requests)
        edited("react/system.md", "one action a step", "an action each step")
        reuse = "--reuse", tmp_path / "out", "--out", tmp_path / "new"
        code, rows = sweep(*how, *flags, *reuse)
        assert code == 0
        capsys.readouterr()
        folders = [str(tmp_path / name) for name in ("new", "out")]
        assert evaluate.main(["report", *folders, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        evaluate.main(["report", *folders])
        return rows, sweep.requests[paid:], found, capsys.readouterr().out

    return twice


def two_rounds(found=str):
    """The main agent delegates and then completes; a sub-agent reports `found(number)`."""

    def respond(request):
        number = re.findall(r"number (\d+)", json.dumps(request["messages"]))[0]
        if not is_main(request):
            return finish(f"it is {found(number)}")
        seen = re.findall(r"it is (\d+)", last_text(request))
        return complete(seen[0]) if seen else delegate(f"find number {number}")

    return respond


def test_a_sweep_with_an_edited_prompt_pays_only_for_the_calls_that_see_it(twice):
    rows, paid, found, shown = twice()
    assert len(paid) == len(rows) == 6 and not any(map(is_main, paid))
    new, _ = found["methods"].values()
    assert new["reused"] == pytest.approx(12 / 18) and "67 %" in shown
    assert (found["pairs"][0]["only_a"], found["pairs"][0]["only_b"]) == (0, 0)


def test_a_sweep_that_changes_an_answer_pays_for_what_follows(twice):
    rows, paid, found, _ = twice(new=two_rounds(lambda n: "9" if n == "2" else n))
    assert len(paid) == 7 and rows["2"]["answer"] == "9"
    assert (found["pairs"][0]["only_a"], found["pairs"][0]["only_b"]) == (0, 1)


def test_a_reused_sweep_is_needed_again_to_go_on(sweep, tmp_path, capsys):
    sweep("--limit", 1)
    reuse = "--reuse", tmp_path / "out", "--out", tmp_path / "new"
    assert sweep("--limit", 1, *reuse)[0] == 0 and len(sweep.requests) == 1
    capsys.readouterr()
    assert sweep(*reuse[2:])[0] == 2
    assert "differs in reuse" in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["nothing", "new"])
def test_what_is_no_other_sweep_cannot_be_reused(folder, sweep, tmp_path, capsys):
    reuse = "--reuse", tmp_path / folder, "--out", tmp_path / "new"
    assert sweep(*reuse)[0] == 2 and len(capsys.readouterr().err.splitlines()) == 1


# ---- tables --------------------------------------------------------------------------------------


def test_the_report_compares_methods_by_level_category_and_question(tmp_path, sweep, capsys):
    folders = [str(tmp_path / name) for name in ("out", "judged", "all wrong")]
    sweep()
    sweep("--out", folders[1])
    judged(tmp_path / "judged", sweep.url)
    sweep.respond = lambda request: finish("no")
    sweep("--out", folders[2])

    def reported(*more):
        capsys.readouterr()
        assert evaluate.main(["report", *folders, *more]) == 0
        return capsys.readouterr().out

    found = json.loads(reported("--json"))
    plain, pairs = found["methods"]["react/m"], found["pairs"][:3]
    assert [p["score"] for p in found["pairs"]] == ["match"] * 3 + ["gaia"] * 3
    assert plain["overall"]["accuracy"] == pytest.approx(4 / 6)
    assert plain["level"]["L1"]["n"] == 3 and plain["category"]["A B"]["n"] == 6
    assert len(found["methods"]) == 3 and not any(" " in name for name in found["methods"])
    assert [(p["only_a"], p["only_b"]) for p in pairs] == [(0, 0), (4, 0), (4, 0)]
    assert pairs[0]["p"] == 1.0 and "66.7 (66.7) [30-90]" in reported()
    assert evaluate.main(["report", *folders, "--score", "judge"]) == 2
    (tmp_path / "out/sweep.json").write_text("")
    assert evaluate.main(["report", *folders]) == sweep()[0] == 2


def test_intervals_and_p_values_are_those_of_the_textbooks():
    assert intervals.wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert intervals.mcnemar(1, 9) == pytest.approx(0.021484, abs=1e-6)
    assert intervals.mcnemar(0, 0) == 1.0
    assert intervals.wilson(0, 15)[0] == 0.0 and intervals.wilson(40, 40)[1] == 1.0


def test_the_row_has_the_notices_of_calls_that_were_refused(tmp_path, endpoint):
    replies = iter([Raw(429, {}, retry_after="0"), Raw(500, {"error": "status 429"})])
    server = endpoint(lambda request: next(replies, None) or number_asked(request))
    data_file(tmp_path, 1)
    (q,) = load(tmp_path / "data.json")
    plan = Plan(tmp_path, pool_at(server.url), Options(method="react"))
    row = answer(q, plan)
    assert row["exact"] and len(row["notices"]) == 2


def test_a_sweep_with_more_workers_than_the_endpoint_admits_answers_all(
    tmp_path, endpoint, monkeypatch
):
    """At most six calls at a time; a call over that is refused."""
    monkeypatch.setattr("orchestra.kernel.attempts.PAUSE_S", 0.25)
    in_flight, refused = [0], [0]
    lock = threading.Lock()

    def respond(request):
        with lock:
            admitted = in_flight[0] < 6
            in_flight[0] += admitted
            refused[0] += not admitted
        if not admitted:
            return Raw(429, {})
        time.sleep(0.1)
        with lock:
            in_flight[0] -= 1
        return number_asked(request)

    data_file(tmp_path, 80)
    server = endpoint(respond)
    code, rows = sweeps.sweep(tmp_path, server.url)
    assert (code, len(rows)) == (0, 80) and refused[0] > 0


def test_a_latency_is_that_of_runs_that_called_everything_themselves():
    row = {"id": "1", "resumed": False, "latency_s": 5.0}
    rows = [row, {**row, "id": "2", "resumed": True}, {**row, "id": "3", "reused_calls": 2}]
    assert latencies_s([{**row, "repeat": 1} for row in rows]) == {"1": 5.0}
