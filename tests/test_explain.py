"""explain: every figure is the one that the run used, and a run folder from someone else is data."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import orchestra_min
from orchestra.kernel import memory, placing
from orchestra.kernel.folder import read_events
from orchestra.kernel.method import Method
from orchestra.kernel.tape import exchanges
from orchestra.kernel.vocabulary import Complete, Delegate, SubTask
from orchestra.report import explain
from orchestra.report.explain.panel import Panel, Row
from orchestra.report.explain.rounds import rounds
from orchestra.report.explain.text import text
from tests.conftest import ROOT, EndpointError, Price, needs_sandbox
from tests.scripted import Raw, complete, completion, delegate, finish
from tests.test_equations import sure, task

RUNS = sorted(f.parent for f in (ROOT / "fixtures").rglob("run.json"))
EQUINOX = ROOT / "fixtures" / "runs" / "equinox"
DOLLARS = {"main": 0.1, "weak": 1.0, "strong": 5.0}  # per million tokens
SKILLS = {"main": 0.01, "weak": 0.5, "strong": 1.0}


def events_of(folder, kind):
    return [e for e in read_events(folder) if e["event"] == kind]


def placed_in(folder):
    """The sub-tasks of a run, by place."""
    return {f"r{e['at'][0]}/t{e['at'][1]}": e["subtask"] for e in events_of(folder, "subtask")}


def prompt_of(folder, place):
    """What the main agent read in a round, in one line."""
    calls = {e.call: e.request for e in exchanges(folder / "tape.jsonl")}
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
        change = lambda pool: replace(pool, backends=tuple(map(able, pool.backends)))  # noqa: E731
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
    found = [round.state for round in rounds(run.folder)]
    assert found == states[:3] and found[1].waiting and found[2].context


@needs_sandbox
def test_the_scores_of_a_panel_are_those_that_chose_the_model(priced, run, monkeypatch):
    scores = []
    ours = placing.score
    monkeypatch.setattr(placing, "score", lambda *given: scores.append(ours(*given)) or scores[-1])
    needs = {"txt": 1.0, "code": 1.0, "web": 0.0}
    priced(delegate(task("reason", requirements=needs)), complete("42"))
    used = scores[: len(DOLLARS)]
    (panel,) = find(run.folder, "5")
    assert [row.figures[-1] for row in panel.rows] == used and chosen(panel) == ["strong"]
    strong = panel.rows[-1].figures  # two steps of 1500 tokens read and 250 written
    assert strong == pytest.approx((2.0, 2 * 1750 * 5e-6, 5.0, 2.0 - 0.175 - 0.025))
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


def test_a_batch_shows_what_ran_and_what_waits(priced, run):
    rows = {"low": {"priority": 1, "model": "weak"}, "high": {"priority": 3, "model": "strong"}}
    tasks = [task(id, id=id, tools=[], **row) for id, row in rows.items()]
    join = task("join", id="join", tools=[], needs=["low", "high"])
    priced(delegate(*tasks, join), delegate(), complete("42"), budget_usd=0.009, k_max=8)
    (panel,) = find(run.folder, "9-10", "r1")
    assert chosen(panel) == [u["id"] for at, u in placed_in(run.folder).items() if at[:2] == "r1"]
    assert figures(panel) == {"low": (1, 0.00175), "high": (3, 0.00875), "join": (1, None)}
    assert [row.note for row in panel.rows] == ["", "", "waits for low, high"]
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


def test_the_pieces_of_a_context_are_those_in_the_prompt_with_the_gains_of_the_run(priced, run):
    def found(prompt):
        word = "cat" if "count cats" in prompt else "dog"
        seen = " ".join(f"The {word} {n} saw {n * 7}." for n in range(40))
        return finish(f"a {word}", "partial", seen)

    priced(delegate("count cats", "count dogs"), complete("42"), work=found, context_tokens=200)
    (panel,) = find(run.folder, "20")
    read = prompt_of(run.folder, "r2")
    for row in panel.rows:
        words = row.name.removesuffix("...").removeprefix("t1: ").removeprefix("t2: ")
        assert (words in read) == row.chosen == (row.figures[1] is not None), row
    *_, history = [round.state.history for round in rounds(run.folder)]
    _, gains = memory.select("What is it?", history, 200)
    kept = [row.figures[1] for row in panel.rows if row.chosen]
    assert kept == [gains[at] for at in sorted(gains)] and min(kept) > 0
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


# ---- the user's own Python ----------------------------------------------------------------------


class Own(Method):
    def __init__(self, *_):
        pass

    def decide(self, state, ask, mistake, last_chance):
        return Complete("42") if state.history else Delegate((SubTask("u", "do"),))


def test_of_the_users_own_method_only_the_budget_is_explained(run, tmp_path):
    run(work=finish("42"), method=Own, budget_usd=1.0)
    name_method(run.folder, "own.py:Own")
    own, *others = explain.panels(run.folder)
    assert own.place == "" and "user's own method" in own.title
    assert {p.equation for p in others} == {"21"}


def name_method(folder, name):
    """As the command writes a method of the user's into run.json."""
    row = json.loads((folder / "run.json").read_text())
    row["options"]["method"] = name
    (folder / "run.json").write_text(json.dumps(row))


def test_what_own_tools_can_do_is_not_recorded_and_not_looked_up(tmp_path):
    shutil.copytree(EQUINOX, tmp_path / "run")
    row = json.loads((tmp_path / "run/run.json").read_text())
    row["options"]["tools"] = [f"{tmp_path}/own.py:tool"]
    (tmp_path / "run/run.json").write_text(json.dumps(row))
    (tmp_path / "own.py").write_text("raise SystemExit(9)")
    own, *others = explain.panels(tmp_path / "run")
    assert "own tools" in own.title and {p.equation for p in others} == {"20"}


# ---- the command ---------------------------------------------------------------------------------


def printed(capsys, *words, code=0):
    """What the command prints to standard output, or its one line about an error."""
    assert explain.main([str(word) for word in words]) == code
    out, err = capsys.readouterr()
    assert bool(out) == (code == 0) and err.count("\n") == (code != 0)
    return out or err


def test_the_command_prints_a_run_a_round_or_a_sub_task_and_its_data(capsys):
    whole = printed(capsys, EQUINOX)
    of_round = printed(capsys, EQUINOX, "r1")
    one = printed(capsys, EQUINOX, "r1/t1")
    assert one.strip() in of_round and of_round.strip() in whole
    assert one.startswith("r1/t1 (Eq. 5): t1 went to")
    data = json.loads(printed(capsys, EQUINOX, "r1/t1/s1", "--json"))
    titles = [p.title for p in explain.panels(EQUINOX) if p.place == "r1/t1"]
    assert [row["title"] for row in data] == titles
    shown = printed(capsys, EQUINOX.with_name("equinox-react"))
    assert shown.startswith("Nothing to explain")


def damage(folder: Path, kind: str, **change):
    """Change the first event of a kind."""
    file = folder / "trajectory.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    first = next(row for row in rows if row["event"] == kind)
    first.update(change)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


LOOP = {"id": "a", "instruction": "", "needs": ["a"]}
DAMAGES = [
    ("decision", {"cost_usd": "much"}),
    ("decision", {"waiting": 7}),
    ("decision", {"decision": {"action": "x"}}),
    ("decision", {"decision": {"action": "delegate", "subtasks": [LOOP]}}),
    ("decision", {"event": "else"}),
    ("subtask", {"subtask": {"id": "<b>"}}),
]


@pytest.mark.parametrize(("kind", "change"), DAMAGES)
def test_a_damaged_run_is_one_line(kind, change, tmp_path, capsys):
    shutil.copytree(EQUINOX, tmp_path / "run")
    damage(tmp_path / "run", kind, **change)
    assert "restore a copy" in printed(capsys, tmp_path / "run", code=2)


@pytest.mark.parametrize(("words", "line"), [
    (["{}"], "is not a run folder"), ([EQUINOX, "here"], "not a place"), ([EQUINOX, "r9"], "places: r1, r1/t1"),
])  # fmt: skip
def test_what_cannot_be_explained_is_one_line(words, line, tmp_path, capsys):
    assert line in printed(capsys, *(str(word).format(tmp_path) for word in words), code=2)


def test_a_panel_has_no_control_characters_for_a_terminal():
    row = Row("t1 => \x1b]0;x\x07", figures=(), note="\x1b[31m")
    panel = Panel(place="r1", equation="20", title="\x1b[2J", formula="x", numbers="", rows=(row,))
    assert "\x1b" not in text(panel) and "\x07" not in text(panel)


def test_the_code_that_computed_an_equation_is_printed_once_asked(capsys):
    shown = printed(capsys, EQUINOX, "--code", "r1")
    (line,) = {line for line in shown.splitlines() if line.endswith("# Eq. 5")}
    number, text = line.strip().split(" ", 1)
    assert (ROOT / "orchestra/kernel/placing.py").read_text().splitlines()[int(number) - 1] == text
    assert shown.count("# Eq. 5") == 1  # two sub-tasks have it
    batch = shown.partition(" def batch(\n")[2].splitlines()
    assert batch[0].strip() == "..." and batch[1].endswith("indices = range(len(candidates))")
    assert "# Eq. 5" not in printed(capsys, EQUINOX, "r1")


def test_a_chosen_model_that_cannot_see_has_a_tool_that_sees(capsys):
    shown = printed(capsys, EQUINOX, "r1")
    assert "its tool sees the picture" in shown and "its tool hears the sound" in shown
    assert "cannot see" not in shown and "1 USD costs 10 points, 1 s 0.005" in " ".join(
        shown.split()
    )
