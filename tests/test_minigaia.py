"""MiniGAIA on real media: the committed files are those of the generator, and its search finds the pages."""

import doctest
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

import orchestra.training.agent
from fixtures import intranet
from fixtures import make_minigaia as made
from orchestra.methods.orchestra_o1 import parse_decision
from orchestra.minigaia import operations, shapes
from orchestra.minigaia.tasks import TOOL
from orchestra.minigaia.world import world_of
from orchestra.training.world import expert, prompt
from orchestra.vocabulary import Delegate, Task
from orchestra_min import replay
from tests.conftest import needs_sandbox
from tests.sweeps import sweep

DATA = made.FOLDER / "questions.json"
QUESTIONS = json.loads(DATA.read_text())
NUMBERED = {f"{n:02}": pair for n, pair in enumerate(made.chosen(), 1)}


@pytest.mark.parametrize("module", [operations, shapes])
def test_the_examples_in_docstrings_are_true(module):
    tried = doctest.testmod(module)
    assert tried.attempted > 0 and tried.failed == 0


def test_the_committed_questions_are_those_of_the_generator():
    assert [made.row(id, *pair) for id, pair in NUMBERED.items()] == QUESTIONS


@pytest.mark.parametrize("id", ["01", "09", "12"])
def test_the_committed_media_are_made_again_bit_for_bit(id, tmp_path):
    if not shutil.which("espeak-ng"):
        pytest.skip("espeak-ng is missing (apt install espeak-ng)")
    if made.made_with() != json.loads((made.FOLDER / "made-with.json").read_text()):
        pytest.skip(f"the media were made with other versions than {made.made_with()}")
    made.make_media(NUMBERED[id][1], tmp_path)
    new, committed = tmp_path.iterdir(), (made.FOLDER / "media" / id).iterdir()
    assert {p.name: p.read_bytes() for p in new} == {p.name: p.read_bytes() for p in committed}


def test_a_search_finds_the_page_of_every_fact_that_is_searched_for():
    facts = [f for q in QUESTIONS for f in q["facts"] if f["tool"] == TOOL["search"]]
    assert len(facts) > 15
    for fact in facts:
        found = intranet.search(fact["instruction"], "http://x", made.FOLDER / "site")["organic"]
        page = made.FOLDER / "site" / found[0]["link"].rpartition("/")[2]
        assert f": {fact['value']}." in page.read_text()


@needs_sandbox
@pytest.mark.parametrize(("method", "style"), [
    ("orchestra-o1", "full"), (f"{Path(orchestra.training.agent.__file__)}:Trained", "brief"),
])  # fmt: skip
def test_in_the_world_only_the_main_agent_is_asked(tmp_path, endpoint, method, style):
    """The scripted main agent decides as the world's expert does, and so solves every task."""
    worlds = {}
    for row, (_, mini) in zip(QUESTIONS, NUMBERED.values(), strict=True):
        start = SimpleNamespace(task=Task(row["question"], mini.task.media), history=())
        worlds[row["question"]] = world_of({"facts": row["facts"]}, start)

    def respond(request):
        (world,) = (w for q, w in worlds.items() if q in json.dumps(request, ensure_ascii=False))
        if style == "brief":  # the prompt of the training, and no schema
            assert request["messages"] == list(prompt(world.state()))
            assert "response_format" not in request
        reply = json.dumps(expert(world, style))
        decision = parse_decision(reply, world.state())
        if isinstance(decision, Delegate):
            world.carry_out(decision)
        return reply

    server, how = endpoint(respond), ("--data", DATA, "--world", "--method", method)
    code, rows = sweep(tmp_path, server.url, *how)
    assert (code, len(rows)) == (0, 34) and all(row["exact"] for row in rows.values())
    assert len(server.requests) == sum(row["rounds"] for row in rows.values())
    run = tmp_path / "out" / "runs" / "17"
    played = replay(run, method=method, agent="orchestra.minigaia.agent:WorldAgent")
    assert played.answer == rows["17"]["answer"]
    for name in ("tape", "trajectory"):  # as if the process had been killed before the last call
        lines = (run / f"{name}.jsonl").read_text().splitlines()
        (run / f"{name}.jsonl").write_text("\n".join(lines[: -1 if name == "tape" else -2]) + "\n")
    (tmp_path / "out" / "rows.jsonl").unlink()
    asked = len(server.requests)
    code, rows = sweep(tmp_path, server.url, *how)
    assert (code, rows["17"]["exact"], len(server.requests)) == (0, True, asked + 1)


@pytest.mark.parametrize("more", [("--data", DATA), ("--method", "orchestra-o1")])
def test_the_world_is_refused_where_it_cannot_play(tmp_path, endpoint, more):
    """To one agent alone, and with questions that have no facts."""
    (tmp_path / "data.json").write_text('[{"question": "Why?", "answer": "42"}]')
    server = endpoint(lambda request: "never")
    assert sweep(tmp_path, server.url, "--world", *more) == (2, {}) and not server.requests
