"""explain: every figure is the one that the run used, and a run folder from someone else is data."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

import orchestra_min
from orchestra import explain, matching, memory
from orchestra.explain import recorded_run
from orchestra.explain.panel import Panel, Row
from orchestra.explain.rendering import text
from orchestra.runtime import jsonl
from tests.conftest import ROOT, EndpointError, Price, needs_sandbox
from tests.program import called, line_of, tool_file
from tests.scripted import Raw, complete, completion, delegate, finish
from tests.test_equations import sure, task

RUNS = sorted(f.parent for f in (ROOT / "fixtures").rglob("run.json"))
EQUINOX = ROOT / "fixtures" / "runs" / "equinox"
DOLLARS = {"main": 0.1, "weak": 1.0, "strong": 5.0}  # per million tokens
SKILLS = {"main": 0.01, "weak": 0.5, "strong": 1.0}


def events_of(folder, kind):
    return [e for e in jsonl.read(folder / "trajectory.jsonl") if e["event"] == kind]


def placed_in(folder):
    """The sub-tasks of a run, by place."""
    return {f"r{e['at'][0]}/t{e['at'][1]}": e["subtask"] for e in events_of(folder, "subtask")}


def prompt_of(folder, place):
    """What the main agent read in a round, in one line."""
    rows = jsonl.read(folder / "tape.jsonl")
    calls = {row["call"]: row["request"] for row in rows if "call" in row}  # else: resumed
    return " ".join(calls[f"{place}/main/a1"]["messages"][-1]["content"].split())


def find(folder, equation, place=None):
    panels = explain.panels(folder)
    return [p for p in panels if p.equation == equation and place in (None, p.place)]


def figures(panel):
    return {row.name: row.figures for row in panel.rows}


def chosen(panel):
    return [row.name for row in panel.rows if row.chosen]


# ---- recorded runs -------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", RUNS, ids=lambda f: f.relative_to(ROOT / "fixtures").as_posix())
def test_every_panel_of_a_recorded_run_is_what_the_run_did(folder):
    placed = placed_in(folder)
    for panel in explain.panels(folder):
        if panel.equation == "5" and panel.rows:
            best = max(panel.rows, key=lambda row: row.figures[-1])
            assert chosen(panel) == [best.name] == [placed[panel.place]["backend"]]
        elif panel.equation == "7":
            assert all(tool in panel.title for tool in placed[panel.place]["tools"])
        elif panel.equation == "9-10":
            of_round = [u["id"] for at, u in placed.items() if at.startswith(f"{panel.place}/")]
            assert chosen(panel) == of_round
        elif panel.equation == "20":
            read = prompt_of(folder, panel.place)
            assert all(row.name.removesuffix("...") in read for row in panel.rows if row.chosen)
        assert not [note for note in panel.notes if "another one" in note]


def test_a_run_without_a_decision_has_no_panels(run):
    with pytest.raises(EndpointError):
        run(respond=lambda request: Raw(500, {}), patience_s=0)
    assert explain.panels(run.folder) == []


def test_the_recorded_runs_have_panels_of_each_equation_that_they_used():
    methods = {
        "equinox": {"5", "7", "9-10", "20"},
        "equinox-mas-orchestra": {"5"},
        "equinox-react": set(),
    }
    methods |= {"equinox-toolorchestra": {"5", "9-10"}, "equinox-aorchestra": {"5", "7"}}
    for name, equations in methods.items():
        assert {p.equation for p in explain.panels(EQUINOX.parent / name)} == equations


@pytest.mark.parametrize("name", ["equinox", "trained", "equinox-mas-orchestra"])
def test_a_panel_fits_a_terminal_and_names_the_function_that_computes_it(name):
    for panel in explain.panels(EQUINOX.parent / name):
        assert all(len(line) <= 80 for line in explain.text(panel).splitlines())
        if panel.source:
            file, line = panel.source.split(":")
            assert (ROOT / file).read_text().splitlines()[int(line) - 1].lstrip().startswith("def ")


# ---- runs with a budget, a full context, a threshold ---------------------------------------------


@pytest.fixture
def priced(run):
    """A run with three models of different skills and prices."""

    def able(backend):
        usd = DOLLARS[backend.name]
        skills = dict.fromkeys(("txt", "code"), SKILLS[backend.name])
        return replace(backend, price_usd_per_mtok=Price(usd, usd), skills=skills, latency_s=usd)

    def play(*turns, **how):
        change = lambda pool: pool.with_(backends=tuple(map(able, pool.backends)))  # noqa: E731
        how = {"work": finish("found", "partial"), **how}
        return run(*turns, names=DOLLARS, change=change, **how)

    return play


def test_the_state_of_a_round_is_the_one_that_the_run_had(priced, run, monkeypatch):
    states = []
    ours = orchestra_min.Run.state
    monkeypatch.setattr(
        orchestra_min.Run, "state", lambda *given: states.append(ours(*given)) or states[-1]
    )
    join = task("join", id="join", tools=[], needs=["t1", "t2"])
    turns = (
        "?",
        delegate(task("one", tools=[]), task("two", model="weak", tools=[]), join),
        delegate(),
    )
    priced(*turns, complete("42"), budget_usd=1.0, context_tokens=20)
    found = [round.state for round in recorded_run.read(run.folder).rounds]
    assert found == states[:3] and found[1].waiting and found[2].context


@needs_sandbox
def test_the_scores_of_a_panel_are_those_that_chose_the_model(priced, run, monkeypatch):
    scores = []
    ours = matching.score
    monkeypatch.setattr(matching, "score", lambda *given: scores.append(ours(*given)) or scores[-1])
    needs = {"txt": 1.0, "code": 1.0, "web": 0.0}
    priced(delegate(task("reason", requirements=needs)), complete("42"))
    used = [tuple(s) for s in scores[: len(DOLLARS)]]
    (panel,) = find(run.folder, "5")
    assert [row.figures for row in panel.rows] == used and chosen(panel) == ["strong"]
    (tools,) = find(run.folder, "7")
    psi = {"GoogleSearchAction": -0.05, "ExtractUrlContentAction": -0.05, "ExecuteCodeAction": 0.95}
    assert figures(tools) == {tool: (gain,) for tool, gain in psi.items()}
    assert chosen(tools) == ["ExecuteCodeAction"]


def test_a_model_that_cannot_do_what_is_needed_says_so(priced, run):
    priced(delegate(task("look", tools=[], requirements={"img": 1.0})), complete("42"))
    (panel,) = find(run.folder, "5")
    assert {row.note for row in panel.rows} == {"cannot see pictures"}
    assert panel.numbers.startswith("score ") and "look" not in panel.numbers


def test_a_named_model_is_the_main_agents_choice_and_has_no_scores(priced, run):
    priced(delegate(task("do", model="weak", tools=[])), complete("42"))
    (panel,) = find(run.folder, "5")
    assert panel.title == "t1 went to weak: the main agent's choice." and not panel.rows


def test_a_batch_shows_what_waits_and_the_better_batch_that_was_too_dear(priced, run):
    rows = {"low": {"priority": 1, "model": "weak"}, "high": {"priority": 3, "model": "strong"}}
    tasks = [task(id, id=id, tools=[], **row) for id, row in rows.items()]
    join = task("join", id="join", tools=[], needs=["low", "high"])
    priced(delegate(*tasks, join), delegate(), complete("42"), budget_usd=0.009)
    (panel,) = find(run.folder, "9-10", "r1")
    assert chosen(panel) == [u["id"] for at, u in placed_in(run.folder).items() if at[:2] == "r1"]
    assert figures(panel) == {"low": (1, 0.00175), "high": (3, 0.00875), "join": (1, None)}
    assert [row.note for row in panel.rows] == ["", "", "waits for low, high"]
    assert "too dear: low and high, with priorities of 4, costs 0.0105 USD" in panel.notes[0]
    (panel,) = find(run.folder, "9-10", "r2")
    assert panel.title.startswith("0 of 1 ready sub-tasks ran; 1 more") and [*figures(panel)] == [
        "high",
        "join",
    ]


def test_the_budget_of_a_panel_is_the_recorded_one(priced, run):
    tasks = [task(word, model="weak", tools=[]) for word in ("one", "two")]
    priced(delegate(*tasks), delegate("three"), complete("42"), budget_usd=1.0)
    recorded = [e["budget_usd"] for e in events_of(run.folder, "decision")]
    panels = find(run.folder, "21")
    assert [figures(p)["before the decision"][0] for p in panels] == recorded
    assert [figures(p)["after the round"][0] for p in panels[:-1]] == recorded[1:]
    shares = [e["share_usd"] for e in events_of(run.folder, "subtask") if e["at"][0] == 1]
    assert [figures(panels[0])[id][0] for id in ("t1", "t2")] == shares
    assert sum(shares) == pytest.approx(figures(panels[0])["for the sub-tasks together"][0])
    assert "attempts without an answer" not in figures(panels[0])


def test_an_attempt_without_an_answer_is_part_of_what_a_round_cost(priced, run):
    cut = [OSError(), delegate(task("one", model="weak", tools=[]))]
    priced(*cut, complete("42"), budget_usd=1.0)
    first, second = find(run.folder, "21")
    _, unanswered_usd = figures(first)["attempts without an answer"]
    spent = [row.figures[1] or 0 for row in first.rows]
    after_usd = events_of(run.folder, "decision")[1]["budget_usd"]
    assert unanswered_usd > 0 and 1.0 - sum(spent) == pytest.approx(after_usd)
    assert figures(second)["after the round"][0] == after_usd - figures(second)["the decision"][1]


def test_the_pieces_of_a_context_are_those_in_the_prompt_with_the_gains_of_the_run(
    priced, run, monkeypatch
):
    selections = []
    ours = memory.select
    monkeypatch.setattr(
        memory, "select", lambda *given: selections.append(ours(*given)) or selections[-1]
    )

    def found(prompt):
        word = "cat" if "count cats" in prompt else "dog"
        return finish(
            f"a {word}", "partial", " ".join(f"The {word} {n} saw {n * 7}." for n in range(40))
        )

    priced(delegate("count cats", "count dogs"), complete("42"), work=found, context_tokens=200)
    (panel,) = find(run.folder, "20")
    read = prompt_of(run.folder, "r2")
    for row in panel.rows:
        text = row.name.removesuffix("...").removeprefix("t1: ").removeprefix("t2: ")
        assert (text in read) == row.chosen, row
    kept = sorted(selections[0].choice.chosen.items())
    assert [row.figures[1] for row in panel.rows if row.chosen] == [gain for _, gain in kept]
    assert 0 < len(kept) < len(panel.rows) and "of 200 tokens" in panel.title


def test_how_sure_the_main_agent_was_is_shown_for_each_attempt(run):
    run(
        sure(complete("41"), 0.4),
        sure(delegate("again"), 0.2),
        sure(complete("42"), 0.9),
        stop_threshold=0.5,
    )
    first, second = find(run.folder, "22")
    attempts = [(row.figures, row.chosen) for panel in (first, second) for row in panel.rows]
    assert [(round(p, 6), tau, sure) for (p, tau), sure in attempts] == [
        (0.4, 0.5, False), (0, 0.5, False), (0.9, 0.5, True),
    ]  # fmt: skip
    assert (first.numbers, second.numbers) == ("0 ≤ 0.5", "0.9 > 0.5")


def test_a_last_chance_is_not_a_question_of_certainty(run):
    run(sure(delegate("look"), 0.9), sure(complete("42"), 0.4), rounds=1, stop_threshold=0.5)
    assert [p.place for p in find(run.folder, "22")] == ["r1"]


def test_a_threshold_without_log_probabilities_decided_nothing(run):
    run(completion(complete("42")), stop_threshold=0.5)
    (panel,) = find(run.folder, "22")
    assert panel.rows[0].figures == (None, 0.5) and "no log-probabilities" in panel.title


# ---- Python of the user --------------------------------------------------------------------------

OWN = """from pathlib import Path
from orchestra.matching import place as ours
from orchestra.memory import summarize
Path(__file__).with_name("loaded").touch()
place = ours
class Own:
    rounds, shares_context = 2, True
    def __init__(self, *_): pass
    def decide(self, state, ask, mistake, last_chance):
        from orchestra.vocabulary import Complete, Delegate, SubTask
        return Complete("42") if state.history else Delegate((SubTask("u", "do"),))
class Newest:
    def remember(self, history, u, z): return (*history, summarize(u, z))
    def context(self, question, history, limit): return ""
"""


@pytest.mark.parametrize(("seam", "equations", "line"), [
    ({"scheduler": "place"}, {"5-12", "20"}, "The run used its own scheduler (own.py:place), so these are not shown."),
    ({"memory": "Newest"}, {"5", "7", "19-20"}, "The run used its own memory (own.py:Newest), so these are not shown."),
    ({"method": "Own"}, {"5", "7", "20 and 22"}, "The run used its own orchestrator (own.py:Own), so these are not shown."),
])  # fmt: skip
def test_python_of_the_user_is_not_loaded(run, tmp_path, seam, equations, line):
    (tmp_path / "own.py").write_text(OWN)
    spec = {name: f"{tmp_path}/own.py:{own}" for name, own in seam.items()}
    run(delegate("do"), complete("42"), **spec)
    (tmp_path / "loaded").unlink()
    panels = explain.panels(run.folder)
    assert {p.equation for p in panels} == equations and not (tmp_path / "loaded").exists()
    assert panels[0].title == line


def test_what_own_tools_can_do_is_not_recorded_and_not_looked_up(run, tmp_path):
    named = task("hours", tools=["library_hours"])
    run(delegate(named, task("any")), complete("42"), tools=(tool_file(tmp_path),))
    (tmp_path / "loaded").unlink()
    (named,) = find(run.folder, "5", "r1/t1")
    (tools,) = find(run.folder, "7", "r1/t2")
    assert "is not recorded" in named.title and not named.rows
    assert figures(tools)["library_hours"] == (None,) and "is not recorded" in tools.notes[-1]
    assert not (tmp_path / "loaded").exists()


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_prints_a_run_a_round_or_a_sub_task_and_its_data():
    whole, of_round, one = (
        called("explain", EQUINOX, *at).stdout for at in ((), ("r1",), ("r1/t1",))
    )
    assert (
        one in of_round
        and of_round.strip() in whole
        and one.startswith("r1/t1 (Eq. 5): t1 went to")
    )
    data = json.loads(called("explain", EQUINOX, "r1/t1/s1", "--json").stdout)
    assert [row["title"] for row in data] == [
        p.title for p in explain.panels(EQUINOX) if p.place == "r1/t1"
    ]
    assert called("explain", EQUINOX.with_name("equinox-react")).stdout.startswith(
        "Nothing to explain"
    )


def damage(folder: Path, kind: str, **change):
    """Change the first event of a kind."""
    file = folder / "trajectory.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    first = next(row for row in rows if row["event"] == kind)
    first.update(change)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


LOOP = {"id": "a", "instruction": "", "needs": ["a"]}
DAMAGES = [
    ("result", {"status": "splendid"}), ("result", {"at": [1, 1]}),
    ("decision", {"cost_usd": float("nan")}), ("decision", {"waiting": 7}), ("decision", {"decision": {"action": "x"}}),
    ("decision", {"decision": {"action": "delegate", "subtasks": [LOOP]}}), ("decision", {"event": "else"}),
    ("subtask", {"subtask": {"id": "<b>"}}), ("subtask", {"share_usd": "much"}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "change"), DAMAGES)
def test_a_damaged_run_is_one_line(kind, change, tmp_path):
    shutil.copytree(EQUINOX, tmp_path / "run")
    damage(tmp_path / "run", kind, **change)
    line = line_of(called("explain", tmp_path / "run"))
    assert line.count("trajectory.jsonl") == 1 and ("restore" in line or "writes it anew" in line)


@pytest.mark.parametrize(("words", "code", "line"), [
    (["{}"], 2, "is empty"), ([EQUINOX, "here"], 2, "not a place"), ([EQUINOX, "r9"], 2, "places: r1, r1/t1"),
])  # fmt: skip
def test_what_cannot_be_explained_is_one_line(words, code, line, tmp_path):
    assert line in line_of(called("explain", *(str(w).format(tmp_path) for w in words)), code)


def test_no_text_of_a_model_is_markup_and_a_panel_has_no_style_and_no_script(run):
    evil = "</table><script>alert(1)</script>"
    run(
        delegate(task("do", id=evil), task("more", id="b", needs=[evil])),
        delegate(),
        complete("42"),
    )
    shown = ""
    for panel in explain.panels(run.folder):
        fragment = explain.html(panel)
        assert evil not in fragment and not re.search("<script|style=|on[a-z]+=", fragment)
        shown += "".join(ElementTree.fromstring(fragment).itertext())  # well-formed
    assert shown.count(evil) >= 3  # as text


def test_a_panel_has_no_control_characters_for_a_terminal():
    row = Row("t1 => \x1b]0;x\x07", figures=(), note="\x1b[31m")
    panel = Panel(place="r1", equation="20", title="\x1b[2J", formula="x", numbers="", rows=(row,))
    assert "\x1b" not in text(panel) and "\x07" not in text(panel)
