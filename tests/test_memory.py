"""History, the compressed context, the fallback answer and when to stop: Eq. 19, 20 and 22."""

import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.kernel import memory
from orchestra.kernel.memory import (
    best_supported_answer,
    opened,
    summarize,
)
from orchestra.kernel.prompts import say, tokens
from orchestra.kernel.selection import _terms_of_piece, terms
from orchestra.kernel.vocabulary import Evidence, Media, Result, Step, SubTask, Task
from orchestra.methods.orchestra_o1 import stop_probability


def seen(id: str, answer: str = "", summary: str = "", round: int = 1, **fields) -> Evidence:
    fields = {"instruction": f"look for {id}", "status": "done", **fields}
    return Evidence(round, id, backend="b", tools=(), answer=answer, summary=summary, **fields)


def compress(history: list[Evidence], limit_tokens: int = 6000) -> str:
    return memory.compress("What time is it in Prague?", history, limit_tokens)


# ---- Eq. 19 --------------------------------------------------------------------------------------

TASK = Task("q", tuple(Media("image", name, Path("/none"), "") for name in "ab"))
TRACES = "=", "!a a=a", "!a=", "b a b=ab", "c=", "media/a=a", "./b=b", "http://x/a="


@pytest.mark.parametrize("trace", TRACES)
def test_an_entry_of_the_history_keeps_of_the_trace_the_files_that_were_opened(trace):
    """`trace`: the file of each step, ! before that of a failed one = the files that were opened."""
    files, _, media = trace.partition("=")
    looks = (Step("See", {"path": f.lstrip("!")}, "", "o", f[0] == "!") for f in files.split())
    steps = *looks, Step("finish", {"result": "a"}, "", "")  # which only names a file
    z = Result("partial", "7", "s", trace=steps, error="e")
    result = "partial", "7", "s", "e", tuple(media), len(steps)
    z = replace(z, round=3, media=opened(z, TASK))
    u = SubTask("u", "i", "", "b", ("See",))
    assert summarize(u, z) == Evidence(3, "u", "i", "b", ("See",), *result)


# ---- Eq. 20: what is in the context --------------------------------------------------------------


def test_the_newest_failures_are_kept_even_if_nothing_fits():
    statuses = ["failed"] * 5 + ["blocked", "failed", "done"]
    history = [seen(f"t{n}", round=n, status=status) for n, status in enumerate(statuses)]
    assert re.findall(r"- \[(t\d)", compress(history, limit_tokens=0)) == ["t4", "t5", "t6"]


def test_a_repeated_sentence_is_the_first_to_be_left_out():
    repeated = "The clock on the wall of the town hall shows seven, as it did yesterday evening."
    long = "There is a small blue door beside it, which nobody has opened since the last war."
    history = [seen("t1", "7", repeated), seen("t2", "7", f"{repeated} {long}")]
    context = compress(history, tokens(compress(history)) - 1)
    assert context.count(repeated) == 1 and long in context and "[...]" in context


def test_a_long_answer_is_cut_with_a_mark_only_if_it_does_not_fit():
    assert "7" * 10**4 in compress([seen("t1", "7" * 10**4)])
    context = compress([seen("t1", "7" * 10**6)])
    assert context.endswith("777 [...]") and len(context) < 1300


TEXTS = st.text(max_size=60) | st.sampled_from(["It is 7:49. It is late.", "时钟显示七点。"])
STATUSES = st.sampled_from(["done", "partial", "blocked", "failed"])
ENTRY = st.builds(seen, TEXTS, TEXTS, TEXTS, st.integers(1, 5), status=STATUSES, error=TEXTS)
HISTORIES = st.lists(ENTRY, max_size=8).map(lambda history: sorted(history, key=lambda h: h.round))


@given(HISTORIES, st.integers(40, 400))
def test_a_context_exceeds_its_limit_by_no_more_than_the_newest_failures(history, limit):
    newest = [h for h in history if h.status in ("failed", "blocked")][-memory.KEPT_FAILURES :]
    exempt = sum(tokens(compress([replace(h, summary="")])) + 4 for h in newest)
    assert tokens(compress(history, limit)) <= limit + exempt


SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


@given(HISTORIES)
def test_nothing_is_left_out_of_a_context_while_it_fits(history):
    rows = [(memory.head_of(h), *map(str.strip, SENTENCE.split(h.summary))) for h in history]
    whole = "\n".join("- " + " ".join(filter(None, row)) for row in rows)
    assert compress(history, tokens(whole)) == whole


def greedy(history: list[Evidence], limit: int) -> set[tuple[str, ...]]:
    """The ids that Eq. 20 chooses, step by step, from results without summaries. There are several
    such choices where two gains are equal: then rounding alone decides which one is larger.
    """
    heads = [memory.head_of(h) for h in history]
    of = [terms(head) | {head.lower()} for head in heads]
    cost = [tokens(head) + 4 for head in heads]

    def gain(i: int, covered: frozenset[str]) -> float:
        new, age = of[i] - covered, history[-1].round - history[i].round
        worth = {"done": 1.0, "partial": 0.7}[history[i].status] * 0.8**age
        information = 0.5 + 0.5 * len(new) / len(of[i])
        return (len(new & {"time", "prague"}) / 2 + worth * information) / cost[i]

    @cache
    def choices_after(chosen: frozenset[int]) -> set[frozenset[int]]:
        left = limit - sum(cost[i] for i in chosen)
        covered = frozenset().union(*(of[i] for i in chosen))
        open_ = [i for i in range(len(heads)) if i not in chosen and cost[i] <= left]
        gains = {i: gain(i, covered) for i in open_}
        best = [i for i in open_ if gains[i] > max(gains.values()) * (1 - 1e-9)]
        return set().union(*(choices_after(chosen | {i}) for i in best)) or {chosen}

    return {tuple(history[i].id for i in sorted(c)) for c in choices_after(frozenset())}


@given(st.randoms(use_true_random=False))
def test_the_choice_is_that_of_the_plain_greedy_loop(generator):
    vocabulary, history = [*"bcdefghijklm", "time", "prague"], []
    for n in range(20):
        text, status = generator.choices(vocabulary, k=4), generator.choice(["done", "partial"])
        history.append(seen(f"t{n}", round=1 + n // 5, instruction=" ".join(text), status=status))
    *lines, last = compress(
        history, 150 + tokens(say("notes", "left_out", count=20)) + 1
    ).splitlines()
    assert tuple(line[3:].partition(",")[0] for line in lines) in greedy(history, 150)
    assert last == say("notes", "left_out", count=20 - len(lines))


def test_a_round_reads_no_sentence_that_an_earlier_round_has_read():
    history = [seen(f"s{n}", summary="It is late. The clock is old. " * 9) for n in range(9)]
    compress(history, 100)
    before = _terms_of_piece.cache_info().misses
    compress([*history, seen("s9", summary="It is late. It is new.", round=2)], 100)
    head_and_sentence = 2
    assert _terms_of_piece.cache_info().misses == before + head_and_sentence


# ---- the fallback answer -------------------------------------------------------------------------


@pytest.mark.parametrize(("answers", "of_rest", "best"), [
    ("", {}, ""), ("7 8 7", {}, "7"), ("7 8", {}, "8"), ("7 8", {"status": "partial"}, "7"),
    ("7 8", {"round": 2}, "8"), ("7 8", {"status": "failed"}, "7"), ("pm x PM", {}, "PM"),
    ("x y y x", {}, "x"), ("0", {}, "0"),
])  # fmt: skip
def test_the_best_supported_answer_is_by_votes_status_and_age(answers, of_rest, best):
    first, *rest = answers.split() or [""]
    history = [seen("t", first), *(seen("t", a, **of_rest) for a in rest)]
    assert best_supported_answer(history) == best


# ---- Eq. 22 --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("split", "alternatives", "p"), [  # the tokens, of probability 1/2 each, their alternatives, and the probability of complete
    ("{'action': '|complete|', 'params'", {}, 0.5), ("{'action': '|comp|lete|'}", {}, 0.25),
    ("{'action': '|c|o|m|p|l|e|t|e|'}", {}, 0.5**8), ("{'action': 'com|plete' , 'params'", {}, 0.25),
    ("{'action' \n:\n '||complete'", {}, 0.5), ("<think>{'action': 'complete'}|{'action': '|comp|lete|'}", {}, 0.25),
    ("{'action': '|delegate_task|'", {"complete": 0.3, "com": 0.05, "x": 0.05}, 0.35),
    ("{'action':| 'delegate'", {" 'complete": 0.3, "complete": 0.5, " 'no": 0.1}, 0.3),
    ("{'action': '|delegate'", {"completely": 0.3, "cx": 0.3, "": 0.1, "d": 0.1}, 0.0),
])  # fmt: skip
def test_the_probability_of_complete_is_that_of_its_tokens(split, alternatives, p):
    """If the model delegated: that of the alternatives that begin `complete`."""

    def rows(probabilities):
        return [{"token": t.replace("'", '"'), "logprob": math.log(q)} for t, q in probabilities]

    top = {"top_logprobs": rows(alternatives.items())}
    logprobs = [row | top for row in rows((token, 0.5) for token in split.split("|"))]
    assert stop_probability(logprobs) == pytest.approx(p)


COMPLETE, DELEGATE = {"token": '{"action": "complete"'}, {"token": '{"action": "delegate"'}


@pytest.mark.parametrize("logprobs", [
    None, [], 7, "complete", ["complete"], [{"logprob": -0.1}], [{"token": "7:49", "logprob": -1}],
    [COMPLETE], *([{**COMPLETE, "logprob": p}] for p in (None, "x", math.nan, 5000)),
    [DELEGATE], *([{**DELEGATE, "top_logprobs": top}] for top in (None, [], 3, ["c"])),
], ids=repr)  # fmt: skip
def test_unusable_log_probabilities_give_no_probability(logprobs):
    assert stop_probability(logprobs) is None
