"""The cases of Orchestra-o1's appendix (arXiv 2606.13707, App. B.1 to B.3), and the examples that the
prompts of the released code add to it, with scripted models and the default method. Where ours does
otherwise than the release, the test says so, as does docs/PAPERS.md. Figure 7 is in test_figure_7.py.
"""

import pytest

from orchestra.methods import all_tools
from orchestra.tools import search_engines
from tests.conftest import needs_sandbox
from tests.program import CLOCK
from tests.scripted import act, complete, delegate, finish

IMAGE, SEARCH, CODE = "ImageAnalysisAction", "GoogleSearchAction", "ExecuteCodeAction"
PAGE = "ExtractUrlContentAction"
PICTURE = "https://web.example/orloj.png"


def task(instruction, *tools, context="", model="auto"):
    return {"task_instruction": instruction, "context": context, "model": model, "tools": tools}


def events(result, kind):
    return sorted((e for e in result.events if e["event"] == kind), key=lambda e: e["at"])


def given(result, number):
    return [e["subtask"] for e in events(result, "subtask") if e["at"][0] == number]


def statuses(result):
    return [e["status"] for e in events(result, "result")]


@pytest.fixture(autouse=True)
def web(monkeypatch):
    """A search whose only result is a picture."""
    monkeypatch.setattr(search_engines, "search", lambda asked: [{"title": "", "link": PICTURE}])


def test_the_three_forms_of_a_decision_in_app_b_2(run):
    """One prerequisite alone, then two independent sub-tasks on two models, then the answer."""
    one = [task("Name the landmark.", SEARCH, model="small")]
    two = [task("Its city?", SEARCH, model="small"), task("Its age?", SEARCH, PAGE, model="large")]
    turns = delegate(*one), delegate(*two), complete("1410")  # their keys are in the paper's order
    result = run(*turns, work=finish("found"), names=("small", "large"))
    assert (result.answer, result.state, result.rounds) == ("1410", "answered", 3)
    placed = [[(u["backend"], *u["tools"]) for u in given(result, n)] for n in (1, 2)]
    assert placed == [[("small", SEARCH)], [("small", SEARCH), ("large", SEARCH, PAGE)]]


def test_what_the_picture_shows_is_searched_for_in_the_next_round(run):
    """App. B.1, and example 1 of the released prompt: the file and the background first."""

    def work(text):
        if "Since when" in text:
            known = "Prague Orloj" in text and "hands" in text  # both of round 1, from C and C_t
            return finish("1410") if known else finish("", "blocked")
        if "Which clock" in text and "What you have done" in text:
            look = act(IMAGE, query="Which clock is it?", image_path="clock.png")
            return finish("Prague Orloj") if "It is the Prague Orloj" in text else look
        return "It is the Prague Orloj." if "Which clock" in text else finish("It has hands.")

    both = delegate(task("Which clock is in clock.png?", IMAGE), task("What has a clock?", SEARCH))
    then = delegate(task("Since when?", SEARCH, context="It is the Prague Orloj."))
    result = run(both, then, complete("1410"), work=work, media=[CLOCK])
    assert (result.answer, statuses(result)) == ("1410", ["done", "done", "done"])
    assert "=> Prague Orloj" in run.mains[1] and "=> 1410" in run.mains[2]


@needs_sandbox
def test_a_computation_gets_the_values_that_were_found_before(run):  # example 3
    def work(text):
        if "In UTC" not in text:
            return finish("07:49, UTC+2")
        assert "07:49, UTC+2" in text
        compute = act(CODE, code="print(7 * 60 + 49 - 2 * 60, 'minutes')", code_type="python")
        return finish("05:49") if "349 minutes" in text else compute

    when, then = task("When and where?", SEARCH), task("In UTC?", CODE, context="07:49, UTC+2")
    result = run(delegate(when), delegate(then), complete("05:49"), work=work)
    assert (result.answer, statuses(result)) == ("05:49", ["done", "done"])
    assert "=> 05:49" in run.mains[2]


def retried(run):
    """Rule 7 of App. B.2: a sub-task that never finishes, again with a stronger model."""

    def work(text):
        if "Your task again: hard" not in text:
            return finish("easy one")
        return finish("7") if "precisely" in text else act(SEARCH, query="q")

    first = delegate(task("hard", SEARCH, model="small"), task("easy", model="small"))
    again = delegate(task("hard, precisely", SEARCH, model="large"), task("new", SEARCH))
    return run(first, again, complete("7"), work=work, names=("small", "large"), steps=3)


def test_an_unfinished_sub_task_is_given_again_next_to_a_new_one(run):
    result = retried(run)
    assert (result.answer, result.rounds) == ("7", 3)
    assert statuses(result) == ["partial", "done", "done", "done"]
    assert given(result, 2)[0]["backend"] == "large" and "easy one" in run.mains[1]


def test_the_main_agent_reads_that_a_sub_task_did_not_finish_but_not_its_model(run):
    """The release shows the model, too: C_t is without it here (Eq. 3 in docs/PAPERS.md)."""
    retried(run)
    history = run.mains[1].partition("# Now")[0]
    assert "[t1, round 1, partial" in history and "small" not in history


def test_five_searches_without_success_end_as_partial_and_the_next_task_finds_it(run):
    def work(text):
        gave_up = "same kind of step 5 times" in text
        report = finish("no year", "partial", "5 searches") if gave_up else finish("1410")
        return report if gave_up or "in Czech" in text else act(SEARCH, query=f"q{len(text)}")

    turns = delegate(task("Search.", SEARCH)), delegate(task("Search in Czech.", SEARCH))
    result = run(*turns, complete("1410"), work=work)
    assert (result.answer, statuses(result)) == ("1410", ["partial", "done"])
    assert "no year" in run.mains[1] and "5 searches" in run.mains[1]


def test_a_picture_that_a_search_found_is_not_opened_and_the_task_goes_on(run):
    def work(text):
        if "No other file can be opened" in text:
            return finish("1410")
        look = act(IMAGE, query="?", image_path=PICTURE)
        return look if PICTURE in text else act(SEARCH, query="Orloj")

    u = task("How old?", SEARCH, IMAGE)
    result = run(delegate(u), complete("1410"), work=work, media=[CLOCK])
    assert (result.answer, statuses(result)) == ("1410", ["done"])


@pytest.mark.parametrize(("tool", "params"), [
    (SEARCH, {"query": "population of Tokyo 2024"}), (IMAGE, {"query": "Which logo?", "image_path": "image.jpg"}),
    ("ParseAudioAction", {"query": "Transcribe it.", "audio_path": "audio.wav"}), (CODE, {"code": "print(1)", "code_type": "python"}),
    ("VideoAnalysisAction", {"query": "Which?", "video_path": "video.mp4", "max_frames": 12, "start_time": 25, "end_time": 35, "analyze_audio": True}),
    ("ExtractUrlContentAction", {"url": "https://en.wikipedia.org/wiki/Example", "browse_query": "key facts"}),
])  # fmt: skip
def test_the_calls_that_the_released_prompt_shows_are_accepted(tool, params):
    read = all_tools()[tool].check(params)
    assert {name: str(read[name]) for name in params} == {k: str(v) for k, v in params.items()}


def test_an_empty_list_of_tools_assigns_none(run):
    """Eq. 13 allows an empty set. In the release it means all tools (Eq. 7 in docs/PAPERS.md)."""
    result = run(delegate(task("Search for it.")), complete("1"), work=finish("1"))
    assert given(result, 1)[0]["tools"] == ()
