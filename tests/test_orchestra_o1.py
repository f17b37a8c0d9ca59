"""What the main agents of Orchestra-o1 and AOrchestra read: a pure function of the state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestra.prompts import say
from orchestra.vocabulary import Evidence, Media, State, Task
from orchestrators import aorchestra, orchestra_o1

CODE, LOOK, HEAR = "ExecuteCodeAction", "ImageAnalysisAction", "ParseAudioAction"
CLOCK, SPEECH = (
    Media(modality, name, Path("nowhere"), "")
    for modality, name in (("image", "clock.png"), ("audio", "speech.wav"))
)
STATE = State(
    task=Task("What time is it?", (CLOCK, SPEECH)),
    context="- [t1, round 1, done] Look => secret words",
    history=(),
    backends=("small",),
    tools=(LOOK, HEAR, CODE),
    round=2,
    rounds=6,
)


def evidence(id: str, instruction: str, tool: str, status: str = "done", media=()) -> Evidence:
    answer = "secret words" if status == "done" else ""
    return Evidence(1, id, instruction, "small", (tool,), status, answer, "", "", tuple(media))


SEEN = evidence("t1", "Look at clock.png", LOOK, media=["clock.png"])
HEARD = evidence("t2", "Listen to it", HEAR, media=["speech.wav"])


def user(module, state: State, **options) -> str:
    return module.render_state(state, "models", "tools", **options)[1]["content"]


def o1(*history: Evidence, state: State = STATE, **options) -> str:
    return user(orchestra_o1, replace(state, history=history), **options)


# ---- what was found is said once -----------------------------------------------------------------


@pytest.mark.parametrize("later", [(), (evidence("t3", "Convert", CODE),)])
def test_what_was_found_stands_in_the_context_alone(later):
    prompt = o1(SEEN, HEARD, *(replace(h, round=2) for h in later))
    assert prompt.count("secret words") == 1
    assert f"what {'t3' if later else 't1, t2'} found, above" in prompt.replace("Read ", "")


def test_the_code_tool_is_named_only_where_it_is_offered():
    assert CODE in o1(SEEN, HEARD)
    without = replace(STATE, tools=(LOOK, HEAR))
    assert CODE not in o1(SEEN, HEARD, state=without)


# ---- files ---------------------------------------------------------------------------------------

UNSEEN = "one sub-task for {} alone"


def test_a_file_that_nobody_was_given_is_asked_for():
    prompt = o1()
    assert UNSEEN.format("clock.png") in prompt and UNSEEN.format("speech.wav") in prompt
    assert say("orchestra_o1/messages", "next_unseen_first") in prompt


@pytest.mark.parametrize("status", ["failed", "blocked", "partial"])
@pytest.mark.parametrize("instruction", ["Listen to speech.wav", "Listen to the recording"])
def test_a_file_that_could_not_be_read_is_not_called_unseen(instruction, status):
    prompt = o1(SEEN, evidence("t2", instruction, HEAR, status))
    assert UNSEEN.format("speech.wav") not in prompt and "not analysed yet" not in prompt
    assert "- speech.wav (audio): not read with success by t2 in round 1" in prompt
    assert say("orchestra_o1/messages", "next_tried", files="speech.wav") in prompt


def test_a_look_at_another_file_is_no_try():
    two = replace(STATE, task=Task("?", (CLOCK, replace(CLOCK, name="b.png"))))
    assert UNSEEN.format("b.png") in o1(SEEN, state=two)
    vague = replace(SEEN, instruction="Look at the picture")
    assert UNSEEN.format("b.png") in o1(vague, state=two)


# ---- the last chance, and mistakes ---------------------------------------------------------------


@pytest.mark.parametrize("module", [orchestra_o1, aorchestra])
def test_the_last_chance_is_no_round_and_asks_for_no_delegation(module):
    state = replace(STATE, round=7, history=(SEEN,), waiting={"t9": ()})
    prompt = user(module, state, last_chance=True)
    assert prompt.endswith(say("delegation", "last_chance"))
    assert "Round 7" not in prompt and "t9" not in prompt and "Delegate" not in prompt


@pytest.mark.parametrize("module", [orchestra_o1, aorchestra])
@pytest.mark.parametrize("last_chance", [False, True])
def test_a_mistake_is_told_with_the_place_and_the_money(module, last_chance):
    state = replace(STATE, budget_usd=0.25)
    prompt = user(module, state, mistake="It was odd.", last_chance=last_chance)
    told = say("delegation", "mistake", mistake="It was odd.")
    place = f"Round 2 of 6. {say('delegation', 'budget', usd='0.2500')} {told}\n"
    assert (told + "\n" if last_chance else place) in prompt
