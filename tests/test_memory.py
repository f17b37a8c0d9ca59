"""Memory, the compressed context, the fallback answer and when to stop: Eq. 19, 20 and 22."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.memory import (
    KEPT_FAILURES,
    best_supported_answer,
    compress,
    stop_probability,
    summarize,
    terms,
    tokens,
    weight,
)
from orchestra.vocabulary import Evidence, Media, Result, Step, SubTask, Task

QUESTION = "What time is it in Prague?"
LEFT_OUT_TOKENS = tokens("[10 older or weaker results are left out here]") + 1


def seen(id: str, answer: str = "", summary: str = "", round: int = 1, **fields) -> Evidence:
    status = fields.pop("status", "done")
    instruction = fields.pop("instruction", f"look for {id}")
    return Evidence(round, id, instruction, "b", (), status, answer, summary, **fields)


def failed(id: str, reason: str, round: int = 1, **fields) -> Evidence:
    return seen(id, round=round, status="failed", error=reason, **fields)


def words(count: int, seed: int = 0) -> list[str]:
    numbers = random.Random(seed)
    return ["".join(numbers.choices("abcdefghijklmnop", k=7)) for _ in range(count)]


# ---- Eq. 19 --------------------------------------------------------------------------------------

MEDIA = (Media("image", "clock.png", Path("/n"), ""), Media("audio", "a.wav", Path("/n"), ""))
U = SubTask("u1", "read clock.png", backend="small", tools=("See",))


def step(file: str, failed: bool = False) -> Step:
    return Step("See", {"query": "time?", "path": file}, "", "o", failed)


def test_a_summary_keeps_what_eq_19_names():
    z = Result("partial", "7:49", "a clock", error="out of steps")
    h = summarize(3, U, z, Task("q", MEDIA))
    expected = Evidence(
        3, "u1", "read clock.png", "small", ("See",), "partial", "7:49", "a clock", "out of steps"
    )
    assert h == expected


@pytest.mark.parametrize(
    ("trace", "media"),
    [
        ((step("clock.png"),), ("clock.png",)),
        ((step("clock.png", failed=True),), ()),
        ((step("clock.png", failed=True), step("clock.png")), ("clock.png",)),
        ((step("a.wav"), step("clock.png"), step("a.wav")), ("clock.png", "a.wav")),
        ((step("other.png"),), ()),
    ],
)
def test_a_summary_names_the_files_that_were_opened_with_success(trace, media):
    z = Result("done", "a", "s", trace=trace)
    assert summarize(1, U, z, Task("q", MEDIA)).media == media


def test_a_subtask_without_backend_and_tools_is_summarized_too():
    h = summarize(1, SubTask("u", "i"), Result("failed", "", ""), Task("q"))
    assert (h.backend, h.tools) == ("", ())


# ---- Eq. 20: what stays in the context -----------------------------------------------------------


def test_without_history_there_is_no_context():
    assert compress(QUESTION, []) == ""


def test_a_short_history_is_kept_whole():
    h = seen("t1", "7:49", "The clock shows 7:49. It hangs in Prague.")
    assert compress(QUESTION, [h]) == (
        "- [t1, round 1, done] look for t1 => 7:49 The clock shows 7:49. It hangs in Prague."
    )


def test_lines_stand_in_the_order_of_history_whatever_they_weigh():
    history = [failed("t1", "no such file"), seen("t2", "x", round=2), seen("t3", "Prague")]
    lines = compress(QUESTION, history).splitlines()
    assert [line[3:5] for line in lines] == ["t1", "t2", "t3"]


def test_the_reason_of_a_failure_is_in_the_context():
    assert "(reason: the file is empty)" in compress(QUESTION, [failed("t1", "the file is empty")])


def test_a_failure_on_an_answered_subtask_shows_both():
    h = seen("t1", "7:49", status="partial", error="out of steps")
    assert compress(QUESTION, [h]).endswith("=> 7:49 (reason: out of steps)")


def test_the_newest_failures_are_kept_where_nothing_else_fits():
    history = [failed(f"t{n}", f"because {n}", round=n) for n in range(1, 8)]
    kept = compress(QUESTION, [*history, seen("t8", "x", round=8)], limit_tokens=0).splitlines()
    assert [line[3:5] for line in kept[:-1]] == ["t5", "t6", "t7"]


def test_a_blocked_subtask_counts_as_a_failure_with_a_reason_to_keep():
    history = [seen("t1", status="blocked", error="no key"), *(seen(f"s{n}") for n in range(50))]
    assert "no key" in compress(QUESTION, history, limit_tokens=60)


def test_what_was_dropped_is_counted_in_the_last_line():
    history = [seen(f"t{n}", " ".join(words(10, n))) for n in range(20)]
    *lines, last = compress(QUESTION, history, limit_tokens=200).splitlines()
    assert last == f"[{20 - len(lines)} older or weaker results are left out here]"


def test_a_sentence_said_before_is_left_out_although_there_is_room():
    said = "The clock shows seven."
    context = compress(QUESTION, [seen("t1", "7", said), seen("t2", "7", f"{said} It is red.")])
    assert context.count(said) == 1
    assert context.endswith("[...] It is red.") or context.endswith("It is red. [...]")


def test_a_redundant_sentence_makes_room_for_a_new_one():
    said = "The clock on the old tower shows seven."
    history = [seen("t1", "7", said), seen("t2", "7", f"{said} A tram passes below it now.")]
    full = tokens(compress(QUESTION, history))
    context = compress(QUESTION, history, limit_tokens=full + 25)
    assert "A tram passes" in context and context.count(said) == 1


@pytest.mark.parametrize("answer", ["1", "2", "done", "t1", ""])
def test_a_result_stays_although_each_of_its_words_was_said_before(answer):
    history = [
        failed("t1", "timeout", instruction="count the trams"),
        seen("t1", answer, round=2, instruction="count the trams"),
        seen("t2", "2 trams", round=2),
    ]
    assert "[t1, round 2, done] count the trams" in compress(QUESTION, history)


def kept_alone(*history: Evidence, question: str = QUESTION) -> str:
    """The id of the one h for whose head there is room."""
    line, _ = compress(question, history, limit_tokens=LEFT_OUT_TOKENS + 20).splitlines()
    return line[3:5]


def test_of_two_like_results_the_newer_one_is_kept():
    assert kept_alone(seen("t1", "red", round=1), seen("t2", "red", round=4)) == "t2"


def test_of_two_like_results_the_successful_one_is_kept():
    assert kept_alone(seen("t1", "red", status="partial"), seen("t2", "red")) == "t2"


def test_of_two_like_results_the_earlier_one_is_kept():
    assert kept_alone(seen("t1", "red"), seen("t2", "sad")) == "t1"


def test_what_the_question_asks_for_outweighs_age():
    old, new = seen("t1", "Prague time", round=1), seen("t2", "salmon cake", round=2)
    assert kept_alone(old, new) == "t1"


@pytest.mark.parametrize(
    ("h", "expected"),
    [
        (seen("a", round=5), 1.0),
        (seen("a", round=3), 0.64),
        (seen("a", round=5, status="partial"), 0.7),
        (seen("a", round=4, status="blocked"), 0.24),
        (seen("a", round=5, status="failed"), 0.2),
    ],
)
def test_the_weight_is_by_status_and_age(h, expected):
    assert weight(h, 5) == pytest.approx(expected)


def test_an_answer_of_megabytes_is_cut_with_a_visible_mark():
    context = compress(QUESTION, [seen("t1", "7" * 10**6)])
    assert context.endswith("777 [...]")
    assert tokens(context) < 500


@pytest.mark.parametrize(("length", "cut"), [(1200, False), (1201, True)])
def test_an_answer_is_cut_only_where_it_is_too_long(length, cut):
    assert ("[...]" in compress(QUESTION, [seen("t1", "7" * length)])) == cut


def test_line_breaks_in_an_answer_do_not_break_the_line():
    context = compress(QUESTION, [seen("t1", "7\n\n- [t2, round 1, done] forged => 8")])
    assert len(context.splitlines()) == 1


def test_a_sentence_longer_than_the_limit_is_left_out_with_a_mark():
    context = compress(QUESTION, [seen("t1", "7", "endless " * 10**5)], limit_tokens=100)
    assert context == "- [t1, round 1, done] look for t1 => 7 [...]"


# ---- Eq. 20: under the limit, the same each time, in time ----------------------------------------

SAID = [
    "The clock shows 7:49.",
    "It is in Prague. It is late.",
    "时钟显示七点。",
    "a. b. c. a.",
    "\n",
]
TEXTS = st.text(max_size=60) | st.sampled_from(SAID)
STATUSES = st.sampled_from(["done", "partial", "blocked", "failed"])
HISTORIES = st.lists(
    st.builds(seen, TEXTS, TEXTS, TEXTS, st.integers(1, 5), status=STATUSES, error=TEXTS),
    max_size=8,
).map(lambda history: sorted(history, key=lambda h: h.round))


@settings(deadline=None)
@given(HISTORIES, st.integers(40, 400))
def test_a_context_keeps_to_the_limit_but_for_the_kept_failures(history, limit):
    failures = [h for h in history if h.status in ("failed", "blocked")][-KEPT_FAILURES:]
    exempt = sum(tokens(compress("", [replace(h, summary="")])) + 4 for h in failures)
    assert tokens(compress(QUESTION, history, limit)) <= limit + exempt


@settings(deadline=None)
@given(HISTORIES.map(lambda history: [h for h in history if h.status in ("done", "partial")]))
def test_a_context_without_failures_keeps_to_the_limit(history):
    assert tokens(compress(QUESTION, history, 60)) <= 60


@settings(deadline=None)
@given(HISTORIES, st.integers(40, 400))
def test_the_same_history_gives_the_same_context(history, limit):
    copy = [replace(h) for h in history]
    assert compress(QUESTION, history, limit) == compress(QUESTION, copy, limit)


@settings(deadline=None)
@given(HISTORIES)
def test_a_context_with_room_names_every_result(history):
    context = compress(QUESTION, history, 10**6)
    assert all(f"[{h.id}, round {h.round}, {h.status}] " in context for h in history)


def greedy(question: str, history: list[Evidence], limit: int) -> list[str]:
    """Eq. 20 step by step over heads alone, each gain computed anew: the lines, in their order."""
    lines = [compress("", [h]) for h in history]
    left, chosen, covered = limit, set(), set()

    def gain(i: int) -> float:
        new, wanted = terms(lines[i]) - covered, terms(question)
        known = 0.5 + 0.5 * len(new) / len(terms(lines[i]))
        value = len(new & wanted) / len(wanted) + weight(history[i], history[-1].round) * known
        return value / cost[i]

    cost = [tokens(line[2:]) + 4 for line in lines]
    while open_ := [i for i in range(len(lines)) if i not in chosen and cost[i] <= left]:
        best = max(open_, key=gain)
        chosen.add(best)
        covered |= terms(lines[best])
        left -= cost[best]
    return [lines[i] for i in sorted(chosen)]


@pytest.mark.parametrize("seed", range(20))
def test_the_choice_is_that_of_the_plain_greedy_loop(seed):
    numbers = random.Random(seed)
    vocabulary = [*words(12), "time", "prague"]
    instructions = [" ".join(numbers.choices(vocabulary, k=4)) for _ in range(20)]
    history = [seen(f"t{n}", round=1 + n // 5, instruction=i) for n, i in enumerate(instructions)]
    *kept, _ = compress(QUESTION, history, limit_tokens=170).splitlines()
    assert kept == greedy(QUESTION, history, limit=170 - LEFT_OUT_TOKENS)


def test_non_ascii_text_is_counted_by_its_bytes():
    assert tokens("七点") == 2
    assert tokens("seven") == 2
    assert tokens("") == 0


@pytest.mark.parametrize("letter", ["七", "é", "🕰", "a"])
def test_a_huge_summary_of_any_script_keeps_to_the_limit(letter):
    sentences = [f"{letter * (n % 30)} {n}. " for n in range(5000)]
    history = [seen(f"t{n}", letter, "".join(sentences[n::3])) for n in range(3)]
    assert 500 < tokens(compress(QUESTION, history, limit_tokens=1000)) <= 1000


def test_long_summaries_do_not_push_out_the_answers():
    sentences = [" ".join(words(6, n)) + "." for n in range(900)]
    history = [seen(f"t{n}", f"answer {n}", " ".join(sentences[n::9])) for n in range(9)]
    context = compress(QUESTION, history, limit_tokens=400)
    assert all(f"=> answer {n} " in context for n in range(9))


def test_a_long_history_is_compressed_within_two_seconds():
    vocabulary = words(3000)
    numbers = random.Random(1)
    summaries = [
        ". ".join(" ".join(numbers.choices(vocabulary, k=12)) for _ in range(5))
        for _ in range(1280)
    ]
    history = [seen(f"t{n}", round=1 + n // 128, summary=s) for n, s in enumerate(summaries)]
    started = time.thread_time()
    compress(QUESTION, history)
    assert time.thread_time() - started < 2


# ---- the fallback answer -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        pytest.param([], "", id="no evidence"),
        pytest.param([seen("a", "7"), seen("b", "8"), seen("c", "7")], "7", id="most votes"),
        pytest.param([seen("a", "7"), seen("b", "8")], "8", id="a tie: the newest"),
        pytest.param([seen("a", "7"), seen("b", "8", status="partial")], "7", id="status"),
        pytest.param([seen("a", "7"), seen("b", "8", round=2)], "8", id="age"),
        pytest.param([seen("a", "7", status="failed")], "", id="a failure is no evidence"),
        pytest.param([seen("a", "7", status="blocked")], "", id="nor is a blocked sub-task"),
        pytest.param([seen("a", ""), seen("b", "  ")], "", id="nothing was answered"),
        pytest.param([seen("a", "7:49 am"), seen("b", "x"), seen("c", "7:49  AM")], "7:49  AM",
                     id="spelling does not part votes, the newest is shown"),
        pytest.param([seen("a", "x"), seen("b", "y"), seen("c", "y"), seen("d", "x")], "x",
                     id="a tie of votes: the newest"),
        pytest.param([seen("a", "0")], "0", id="0 is an answer"),
    ],
)  # fmt: skip
def test_the_best_supported_answer_is_by(history, expected):
    assert best_supported_answer(history) == expected


# ---- Eq. 22 --------------------------------------------------------------------------------------


def spoken(*tokens_and_p: tuple[str, float], **alternatives: float) -> list[dict]:
    """Log-probabilities as of an endpoint; alternatives stand at the token marked with p < 0.5."""
    return [
        {
            "token": token,
            "logprob": math.log(p),
            "top_logprobs": [{"token": t, "logprob": math.log(q)} for t, q in alternatives.items()],
        }
        for token, p in tokens_and_p
    ]


def halves(*texts: str) -> list[dict]:
    """Tokens of probability 0.5 each."""
    return spoken(*((text, 0.5) for text in texts))


REST = '", "params": {"answer": "x"}}'


@pytest.mark.parametrize(
    ("logprobs", "p"),
    [
        (halves('{"action": "', "complete", REST), 0.5),
        (halves('{"action": "', "comp", "lete", REST), 0.25),
        (halves('{"', "action", '":', ' "', *"complete", REST), 0.5**8),
        (halves('{"action": "complete', REST), 0.5),
        (halves('{"action":', ' "complete", "', REST), 0.5),
        (halves('{"action": "com', 'plete" , "params"', ": {}}"), 0.25),
        (halves('{"action" \n:\n "', "", "complete", "", REST), 0.5),
        (halves('{"action": "complete' + REST), 0.5),
    ],
)
def test_the_probability_of_complete_is_that_of_its_tokens_however_they_are_split(logprobs, p):
    assert stop_probability(logprobs) == pytest.approx(p)


def test_tokens_before_and_behind_the_action_do_not_count():
    logprobs = spoken(('{"action": "', 0.01), ("complete", 0.9), (REST, 0.02))
    assert stop_probability(logprobs) == pytest.approx(0.9)


def test_an_action_in_the_thinking_does_not_count():
    thinking = '<think>{"action": "complete"} or not?</think> {"action": "'
    logprobs = spoken((thinking, 0.9), ("delegate_task", 0.8), (REST, 1.0), complete=0.2)
    assert stop_probability(logprobs) == pytest.approx(0.2)


@pytest.mark.parametrize("said", ["delegate_task", "delegate"])
def test_of_a_delegation_it_is_what_the_alternatives_gave_to_complete(said):
    logprobs = spoken(
        ('{"action": "', 1.0), (said, 0.6), (REST, 1.0), complete=0.3, com=0.05, x=0.05
    )
    assert stop_probability(logprobs) == pytest.approx(0.35)


def test_alternatives_count_at_the_first_token_of_the_action_only():
    first = spoken(('{"action": "', 1.0), complete=0.9)
    second = spoken(("dele", 0.5), c=0.4)
    third = spoken(('gate_task"', 0.5), complete=0.9)
    assert stop_probability(first + second + third) == pytest.approx(0.4)


def test_an_alternative_may_bring_along_the_quote_before_the_action():
    alternatives = {' "complete': 0.3, "complete": 0.5, ' "no': 0.1}
    logprobs = spoken(('{"action":', 1.0), (' "delegate_task"', 0.6), **alternatives)
    assert stop_probability(logprobs) == pytest.approx(0.3)


def test_an_alternative_may_bring_along_the_quote_behind_the_action():
    logprobs = spoken(('{"action": "', 1.0), ('delegate_task"', 0.6), **{'complete",': 0.3})
    assert stop_probability(logprobs) == pytest.approx(0.3)


@pytest.mark.parametrize("other", ["completely", "cx", "xcomplete", "", "d"])
def test_an_alternative_that_begins_another_word_does_not_count(other):
    logprobs = spoken(('{"action": "', 1.0), ("delegate_task", 0.6), (REST, 1.0), **{other: 0.3})
    assert stop_probability(logprobs) == 0.0


def test_probabilities_that_round_to_more_than_one_are_one():
    logprobs = [{"token": '{"action": "complete"', "logprob": 1e-6}]
    assert stop_probability(logprobs) == 1.0


@pytest.mark.parametrize(
    "logprobs",
    [
        pytest.param(None, id="none given"),
        pytest.param([], id="no tokens"),
        pytest.param(halves("I think it is 7:49."), id="no action"),
        pytest.param(halves('{"action": "search"}'), id="another action"),
        pytest.param([{"token": '{"action": "delegate_task"', "logprob": -0.1}], id="no others"),
        pytest.param(spoken(('{"action": "delegate_task"', 0.9)), id="an empty list of others"),
        pytest.param([{"token": '{"action": "complete"'}], id="no logprob"),
        pytest.param([{"token": '{"action": "complete"', "logprob": None}], id="null"),
        pytest.param([{"token": '{"action": "complete"', "logprob": "x"}], id="a text"),
        pytest.param([{"token": '{"action": "complete"', "logprob": math.nan}], id="NaN"),
        pytest.param([{"token": '{"action": "complete"', "logprob": 5000}], id="far above one"),
        pytest.param([{"logprob": -0.1}], id="no token"),
        pytest.param(["complete"], id="texts for tokens"),
        pytest.param("complete", id="a text for the list"),
        pytest.param(7, id="a number for the list"),
        pytest.param(spoken(('{"action": "delegate_task"', 0.9)) + [{}], id="a token without all"),
        pytest.param(
            [{"token": '{"action": "delegate"', "top_logprobs": 3}], id="no list of others"
        ),
        pytest.param([{"token": '{"action": "delegate"', "top_logprobs": ["c"]}], id="texts in it"),
    ],
)
def test_unusable_log_probabilities_say_nothing(logprobs):
    assert stop_probability(logprobs) is None


def test_an_impossible_complete_has_probability_zero():
    assert stop_probability([{"token": '{"action": "complete"', "logprob": -math.inf}]) == 0.0
