"""MiniGAIA on real media: the committed files are those of the generator, and its search finds the pages."""

import json
import shutil

import pytest

from evaluation.questions import load
from fixtures import intranet
from fixtures import make_minigaia as made
from training.tasks import TOOL

QUESTIONS = json.loads((made.FOLDER / "questions.json").read_text())
NUMBERED = {f"{n:02}": pair for n, pair in enumerate(made.chosen(), 1)}


def test_the_committed_questions_are_those_of_the_generator():
    assert [made.row(id, *pair) for id, pair in NUMBERED.items()] == QUESTIONS
    asked = load(made.FOLDER / "questions.json")
    assert len({q.category for q in asked}) == 17 and len(asked) == 34


@pytest.mark.parametrize("id", ["01", "09", "12"])
def test_the_committed_media_are_made_again_bit_for_bit(id, tmp_path):
    if not shutil.which("espeak-ng"):
        pytest.skip("espeak-ng is missing (apt install espeak-ng)")
    if made.made_with() != json.loads((made.FOLDER / "made-with.json").read_text()):
        pytest.skip(f"the media were made with other versions than {made.made_with()}")
    made.make_media(NUMBERED[id][1], tmp_path)
    committed = made.FOLDER / "media" / id
    assert {p.name for p in tmp_path.iterdir()} == {p.name for p in committed.iterdir()}
    assert all(p.read_bytes() == (committed / p.name).read_bytes() for p in tmp_path.iterdir())


def test_a_search_finds_the_page_of_every_fact_that_is_searched_for():
    facts = [f for q in QUESTIONS for f in q["facts"] if f["tool"] == TOOL["search"]]
    assert len(facts) > 15
    for fact in facts:
        found = intranet.search(fact["instruction"], "http://x", made.FOLDER / "site")["organic"]
        page = made.FOLDER / "site" / found[0]["link"].rpartition("/")[2]
        assert f": {fact['value']}." in page.read_text()
