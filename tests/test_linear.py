"""Whatever a model writes, reading it takes time in proportion to its length."""

import random
import time

import pytest

from orchestra.kernel import selection
from orchestra.kernel.memory import compress
from orchestra.kernel.selection import HEAD, terms
from orchestra.kernel.vocabulary import Evidence
from tests.mangled import READERS, cpu_s, mangled_replies, runaway

SIZE = 100_000
LIMIT_S = 3.0  # mostly 0.05 s; what is quadratic takes minutes
ROWS = '{"name": "x", "arguments": "' + "[{'a' " * 150 + '"}\n'
RUNAWAYS = [
    ("optimize_prompt", "many words ", ""), ("optimize_prompt", "<instruction>", ""), ("programs of experts", "```", ""), ("actions", ROWS, ""),
    ("mini-swe", "````bash\n" * 900, "a\n" * 5 * SIZE), ("Eq. 20", "No. ", ""), ("Eq. 20", "x\n", ""), ("Eq. 20", "One more word. And another! ", ""),
    ("mas-orchestra, high", "<agent>", ""), ("mas-orchestra, high", "<edge><from>", ""), ("toolorchestra", "<function=a>", ""),
    ("toolorchestra", "<function=a><parameter=b>", ""), ("mas-orchestra, high", "<Agent/>", ""), ("answer_of", "<answer>", ""),
    ("answer_of", "the answer is x" + " " * SIZE, "y\nso:"), ("answer_of", "answer is x:\n", ""),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "piece", "tail"), RUNAWAYS)
def test_a_runaway_reply_is_read_in_no_time(reader, piece, tail):
    text = piece + tail if tail else piece * (SIZE // len(piece))
    assert cpu_s(READERS[reader], text) < LIMIT_S


def test_a_large_graph_is_read_in_no_time():
    texts = dict(runaway(400_000))
    assert cpu_s(READERS["mas-orchestra, high"], texts["a chain"]) < LIMIT_S


def test_no_mangled_reply_raises_what_no_one_handles_or_takes_long():
    began_s = time.process_time()
    for text in mangled_replies(200):
        for read in READERS.values():
            cpu_s(read, text)
    assert time.process_time() - began_s < 60  # mostly 3 s


# ---- Eq. 20 is the greedy choice as it is defined ------------------------------------------------


WORDS = "red", "blue", "clock", "time", "won", "lost", "the", "two"


def chosen_slowly(pieces, question, left_tokens, always):
    """Counts every gain again before each choice."""
    chosen, covered, wanted = set(), set(), terms(question)

    def gain(i, n):
        piece = pieces[i][n]
        new = piece.terms - covered
        relevance = len(new & wanted) / max(1, len(wanted))
        return (relevance + piece.worth + len(new) * piece.worth_of_term) / piece.tokens

    def take(i, n):
        nonlocal left_tokens
        chosen.add((i, n))
        covered.update(pieces[i][n].terms)
        left_tokens -= pieces[i][n].tokens

    for i in always:
        take(i, HEAD)
    while True:
        heads = [(i, HEAD) for i in range(len(pieces))]
        inner = [(i, n) for i, _ in heads if (i, HEAD) in chosen for n in range(1, len(pieces[i]))]  # fmt: skip
        left = [at for at in heads + inner if at not in chosen and pieces[at[0]][at[1]].tokens <= left_tokens]  # fmt: skip
        if not left:
            return chosen
        take(*min(left, key=lambda at: (-gain(*at), at)))


def test_the_context_is_that_of_counting_every_gain_again(monkeypatch):
    draw = random.Random(34)

    def text(sentences, words):
        once = [" ".join(draw.choices(WORDS, k=draw.randint(1, words))) for _ in range(sentences)]  # fmt: skip
        return ". ".join(draw.choices(once, k=2 * sentences))

    for _ in range(60):
        history = [
            Evidence(n // 2, f"t{n}", text(1, 4), "b", (), draw.choice(["done", "failed"]), text(1, 5), text(draw.randint(1, 12), 8))
            for n in range(draw.randint(1, 6))
        ]  # fmt: skip
        arguments = "What time is it?", history, draw.choice([40, 100, 300])
        found = compress(*arguments)
        with monkeypatch.context() as patch:
            patch.setattr(selection, "choose", chosen_slowly)
            assert compress(*arguments) == found
