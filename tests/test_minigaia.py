"""MiniGAIA on real media: the committed files are those of the generator, and its facts are in them."""

import doctest
import json
import re
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.minigaia import operations, shapes
from benchmarks.minigaia.examples import expert
from benchmarks.minigaia.tasks import ENDING, NAMES, SHARE, TOOL
from benchmarks.minigaia.world import world_of
from fixtures import drawing, readable, recording
from fixtures import make_minigaia as made
from fixtures.minigaia_tasks import tasks
from orchestra.kernel.vocabulary import Delegate, Media, Task
from orchestra.training.rewards import parse_decision

DATA = made.FOLDER / "questions.json"
QUESTIONS = json.loads(DATA.read_text())
TASKS = {task.id: task for task in tasks()}
READ = {TOOL[modality] for modality in ENDING}


@pytest.mark.parametrize("module", [operations, shapes, drawing, readable, recording])
def test_the_examples_in_docstrings_are_true(module):
    tried = doctest.testmod(module)
    assert tried.attempted > 0 and tried.failed == 0


# ---- the folder ----------------------------------------------------------------------------------


def test_the_committed_questions_are_those_of_the_generator():
    assert [made.row(task) for task in tasks()] == QUESTIONS


def test_the_folder_has_the_files_and_pages_of_the_tasks_and_no_other():
    media = {f"{task.id}/{name}" for task in tasks() for name in task.media}
    committed = [p for p in (made.FOLDER / "media").rglob("*") if p.is_file()]
    assert {p.relative_to(made.FOLDER / "media").as_posix() for p in committed} == media
    assert sum(p.stat().st_size for p in committed) < 6e6
    for task in tasks():
        for title, lines in task.pages.items():
            page = (made.FOLDER / "site" / made.page_file(title)).read_text()
            assert all(line in page for line in lines)
    assert len(list((made.FOLDER / "site").iterdir())) == sum(len(t.pages) for t in tasks())


@pytest.mark.parametrize("id", ["1-03", "1-04", "1-05", "1-09", "2-09", "3-06", "6-10"])
def test_the_committed_media_are_made_again_bit_for_bit(id, tmp_path):
    if not shutil.which("espeak-ng"):
        pytest.skip("espeak-ng is missing (apt install espeak-ng)")
    if made.made_with() != json.loads((made.FOLDER / "made-with.json").read_text()):
        pytest.skip(f"the media were made with other versions than {made.made_with()}")
    made.make_media(TASKS[id], tmp_path)
    new, committed = tmp_path.iterdir(), (made.FOLDER / "media" / id).iterdir()
    assert {p.name: p.read_bytes() for p in new} == {p.name: p.read_bytes() for p in committed}


# ---- the tasks -----------------------------------------------------------------------------------


def test_each_level_has_ten_tasks_and_the_first_n_tasks_are_balanced():
    levels = [q["level"] for q in QUESTIONS]
    assert levels == list("123456") * 10
    for n in range(1, len(levels)):
        counts = Counter(levels[:n]).values()
        assert max(counts) - min(counts) <= 1 or n < 6


def test_the_first_48_tasks_need_no_vision_model():
    assert [q["check"] for q in QUESTIONS] == ["engine"] * 48 + ["generator"] * 12
    assert Counter(q["category"] for q in QUESTIONS) == {"reading": 48, "seeing": 12}


@pytest.mark.parametrize(("level", "files", "searches", "computations"), [
    ("1", 1, 0, {0}), ("2", 1, 0, {1}), ("3", 2, 0, {1}), ("4", 1, 1, {0}), ("5", 3, 0, {2}), ("6", 1, 1, {1}),
])  # fmt: skip
def test_the_tasks_of_a_level_have_one_shape(level, files, searches, computations):
    for q in QUESTIONS:
        if q["level"] != level:
            continue
        tools = Counter(fact["tool"] for fact in q["facts"])
        assert len(q["media"]) == files, q["id"]
        assert tools[TOOL["search"]] == searches and tools[TOOL["compute"]] in computations, q["id"]
        read = {fact["evidence"][0] for fact in q["facts"] if fact["tool"] in READ}
        assert read == {Path(m["path"]).name for m in q["media"]}, q["id"]


def test_no_question_is_asked_twice_and_none_gives_its_answer_away():
    assert len({q["question"] for q in QUESTIONS}) == len(QUESTIONS)
    for q in QUESTIONS:
        assert not readable.states(q["question"], q["answer"]), q["id"]
        assert "taken as" not in q["question"] and q["question"].endswith("?")


def test_no_name_of_the_training_sets_is_in_a_task():
    _, end = SHARE["valid"]
    known = set()
    for kind in ("first", "last", "town"):
        names = NAMES[kind]
        known |= set(names[: round(end * len(names))])
    for task in tasks():
        words = set(re.findall(r"\w+", task.model_dump_json()))
        assert not words & known, task.id


# ---- the facts can be read -----------------------------------------------------------------------


def written(medium):
    """All text that a file shows or speaks, and not what is drawn."""
    pictures = medium.frames or (medium,)
    texts = [*medium.speech]
    for shown in pictures:
        texts += shown.card
        if shown.bars:
            texts += [f"{label} {value}" for label, value in shown.bars.values.items()]
    return "\n".join(texts)


def test_every_fact_is_in_its_file_or_on_its_page():
    for task in tasks():
        site = "\n".join(line for lines in task.pages.values() for line in lines)
        for given in task.given:
            if given.seen:
                assert readable.drawn(task.media[given.file], given.seen) == given.value
                continue
            text = site if given.about else written(task.media[given.file])
            assert readable.states(text, given.value), (task.id, given.id)


def test_a_search_finds_the_page_of_every_fact_that_is_searched_for():
    searched = [(task, given) for task in tasks() for given in task.given if given.about]
    assert len(searched) == 20
    for task, given in searched:
        assert readable.problem(task, given, made.FOLDER) == "", (task.id, given.id)


def test_the_check_reports_a_fact_that_the_engine_cannot_read(tmp_path, capsys):
    pytest.importorskip("rapidocr")
    task = TASKS["1-01"]
    made.make_media(task, tmp_path / "media" / task.id)
    assert readable.report([task], tmp_path) == 0
    assert "image: 1 of 1 facts can be read" in capsys.readouterr().out
    other = task.model_copy(update={"media": {"ferries.png": TASKS["1-06"].media["menu.png"]}})
    made.make_media(other, tmp_path / "again" / "media" / task.id)
    assert readable.report([other], tmp_path / "again") == 1
    assert "1-01 ferry: '19:40', but read is" in capsys.readouterr().out


# ---- the world -----------------------------------------------------------------------------------


@pytest.mark.parametrize("row", QUESTIONS, ids=lambda row: row["id"])
def test_the_expert_solves_every_task_in_the_world(row):
    media = tuple(Media(m["type"], Path(m["path"]).name, Path(), sha256="") for m in row["media"])
    start = SimpleNamespace(task=Task(row["question"], media), history=())
    game = world_of({"facts": row["facts"]}, start)
    for _ in range(8):
        decision = parse_decision(json.dumps(expert(game)), game.state())
        if not isinstance(decision, Delegate):
            break
        game.carry_out(decision)
    assert decision.answer == row["answer"]
