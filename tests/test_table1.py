"""Table 1 and Figures 4 to 6 of Orchestra-o1: the paper's figures, and the script that makes them."""

import json
import os
from unittest import mock

import pytest

from benchmarks import table1 as script
from benchmarks.table1 import PAPER, SETTINGS
from tests.sweeps import number_asked

# Questions of OmniGAIA's test_metadata.json. The tables of others count one more under history.
OF_CATEGORY = {"Geo.": 69, "Tech.": 49, "Hist.": 66, "Fin.": 25, "Sport": 37, "Art": 36, "Movie": 33, "Sci.": 26, "Food": 18}  # fmt: skip
OF_LEVEL = {"Easy": 122, "Medium": 160, "Hard": 78}
LEVELS, CATEGORIES = ("Easy", "Medium", "Hard"), ("Technology", "Sports")
WRONG = (4, 8, 10)  # the questions whose right answer the model does not give


def right(percent, questions):
    """How many of the questions are right. (Some figures are rounded twice: 1 of 26 is 3.85 and 3.9.)"""
    (count,) = [k for k in range(questions + 1) if abs(100 * k / questions - percent) < 0.056]
    return count


@pytest.mark.parametrize("name", PAPER["tables"]["Table 1"]["rows"])
def test_a_row_of_table_1_is_of_whole_questions_that_add_up_to_its_overall_figure(name):
    row = PAPER["tables"]["Table 1"]["rows"][name]
    of_history = [
        n for n in (66, 67) if abs(round(row["Hist."] * n / 100) * 100 / n - row["Hist."]) < 0.056
    ]
    counts = [right(row[c], n) for c, n in {**OF_CATEGORY, "Hist.": of_history[0]}.items()]
    assert abs(sum(counts) - right(row["Overall"], 360)) <= 1


def test_the_levels_of_figure_4_add_up_to_the_overall_figures_of_table_1():
    overall = PAPER["tables"]["Table 1"]["rows"]
    for name, row in PAPER["tables"]["Figure 4"]["rows"].items():
        mean = sum(row[level] * n for level, n in OF_LEVEL.items()) / 360
        assert mean == pytest.approx(overall[name]["Overall"], abs=0.06)


# ---- the script ----------------------------------------------------------------------------------


def omnigaia(folder, media=()):
    """A folder like OmniGAIA's, with 12 questions: each level in both categories, and twice."""
    cases = [(level, category) for level in LEVELS for category in CATEGORIES] * 2
    rows = [
        {"id": n, "question": f"What is number {n}?", "answer": str(-n if n in WRONG else n), "Level": level, "category": category, "omni_modal_input": list(media)}
        for n, (level, category) in enumerate(cases, 1)
    ]  # fmt: skip
    (folder / "test_metadata.json").write_text(json.dumps(rows))


@pytest.fixture
def table1(sweep, tmp_path, capsys):
    """`table1(*flags)`: the exit code and what is printed."""

    def respond(request):
        return "Incorrect" if request["model"] == "j" else number_asked(request)

    def table1(*flags, url=sweep.url):
        capsys.readouterr()
        words = [tmp_path / "test_metadata.json", "--out", tmp_path / "out", "--model", "m", *flags]
        with mock.patch.dict(os.environ, {"OPENAI_BASE_URL": url}):
            code = script.main([str(word) for word in words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    sweep.respond = respond
    omnigaia(tmp_path)
    return table1


def cells(printed, title):
    """The rows of a table by their first cell, each with its cells by column."""
    lines = next(text for text in printed.split("\n\n") if text.startswith(title)).splitlines()
    names = lines[1].split()
    found = {}
    for line in lines[2:]:
        texts = [text.strip() for text in line.split("  ") if text.strip()]
        found[texts[0]] = dict(zip(names, texts, strict=True))
    return found


def test_table_1_has_each_method_with_the_papers_rows_below_it(table1):
    code, printed, _ = table1("--judge", "j")
    assert code == 0
    table = cells(printed, "Table 1")
    for method in SETTINGS:
        row = table[f"{method}/m"]
        assert (row["Tech."], row["Sport"], row["Geo."], row["Overall"]) == (
            "100.0",
            "50.0",
            "-",
            "75.0",
        )
    assert table["Orchestra-o1-GPT-5 (paper)"]["Overall"] == "72.8"
    assert printed.count("12 of the 360 questions") == len(SETTINGS)


def test_figures_4_to_6_have_the_levels_the_costs_and_the_two_harnesses(table1):
    _, printed, _ = table1("--judge", "j")
    levels = cells(printed, "Figure 4")
    assert [levels["react/m"][level] for level in LEVELS] == ["75.0", "50.0", "100.0"]
    assert levels["AOrchestra-GPT-5 (paper)"]["Hard"] == "32.1"
    costs = cells(printed, "Figure 5")
    assert costs["orchestra-o1/m"]["latency"].endswith(" s")
    assert costs["Orchestra-o1-GPT-5 (paper)"]["cost"] == "341.6"
    harnesses = cells(printed, "Figure 6")
    assert {*harnesses} == {
        "orchestra-o1/m",
        "react/m",
        "ReAct-GPT-5 (paper)",
        "Orchestra-o1-GPT-5 (paper)",
    }


def test_the_sweeps_have_the_papers_settings_and_the_same_command_pays_for_nothing(
    table1, sweep, tmp_path
):
    table1("--judge", "j", "--methods", "react,orchestra-o1")
    made = json.loads((tmp_path / "out/orchestra-o1/sweep.json").read_text())
    assert (made["rounds"], made["steps"], len(made["questions"])) == (10, 30, 12)
    asked = len(sweep.requests)
    code, printed, _ = table1("--judge", "j", "--methods", "react,orchestra-o1")
    assert (code, len(sweep.requests)) == (0, asked)


def test_without_an_endpoint_it_ends_with_one_line_and_no_call(table1, sweep):
    code, printed, told = table1("--judge", "j", url="")
    assert (code, printed, sweep.requests) == (2, "", []) and "no endpoint" in told
