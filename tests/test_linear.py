"""Whatever a model writes, reading it takes time in proportion to its length."""

import random
import time

import pytest

from orchestra import memory
from orchestra.memory import compress
from orchestra.runtime.prompts import WORDING
from orchestra.vocabulary import Evidence
from tests.mangled import READERS, cpu_s, mangled_replies, runaway

SIZE = 100_000
LIMIT_S = 3.0  # mostly 0.05 s; what is quadratic takes minutes
ROWS = '{"name": "x", "arguments": "' + "[{'a' " * 150 + '"}\n'
RUNAWAYS = [
    ("optimize_prompt", "many words ", ""), ("optimize_prompt", "<instruction>", ""), ("programs of experts", "```", ""), ("actions", ROWS, ""),
    ("mini-swe", "````bash\n" * 900, "a\n" * 5 * SIZE), ("Eq. 20", "No. ", ""), ("Eq. 20", "x\n", ""), ("Eq. 20", "One more word. And another! ", ""),
    ("mas-orchestra, lenient", "<agent>", ""), ("mas-orchestra, lenient", "<edge><from>", ""), ("toolorchestra, lenient", "<function=a>", ""),
    ("toolorchestra, lenient", "<function=a><parameter=b>", ""), ("whole_answer_of", "<answer>", ""), ("mas-orchestra, lenient", "<Agent/>", ""),
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


class Slow(memory.Choice):
    """Counts every gain again before each choice."""

    def make(self, always):
        for i in always:
            self.take((i, memory.HEAD))
        left = [(i, memory.HEAD) for i in range(len(self.pieces)) if i not in always]
        while left := [
            at for at in left + self.of_heads() if self.fits(at) and at not in self.chosen
        ]:
            self.take(min(left, key=lambda at: (-self.gain(at), at)))

    def of_heads(self):
        heads = [i for i, n in self.chosen if n == memory.HEAD]
        return [(i, n) for i in heads for n in range(1, len(self.pieces[i]))]

    def add_sentences(self, i):
        pass


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
        arguments = "What time is it?", history, WORDING, draw.choice([40, 100, 300])
        found = compress(*arguments)
        with monkeypatch.context() as patch:
            patch.setattr(memory, "Choice", Slow)
            assert compress(*arguments) == found
