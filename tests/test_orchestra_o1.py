"""What the main agents of Orchestra-o1 and AOrchestra read: a pure function of the state."""

from dataclasses import replace
from pathlib import Path

import pytest

from orchestra.vocabulary import Evidence, Media, State, Task
from orchestrators import aorchestra, orchestra_o1
from runtime.prompts import say

SEE, HEAR = "ImageAnalysisAction", "ParseAudioAction"
CLOCK = Media("image", "clock.png", Path("/none"), "")
SPEECH = Media("audio", "speech.wav", Path("/none"), "")
STATE = State(
    Task("What time is it?", (CLOCK, SPEECH)), "- [t1, round 1, done] => secret words", (),
    ("small",), (SEE, HEAR), round=2, rounds=6, budget_usd=0.25, waiting={"t9": ("t8",)},
)  # fmt: skip


def evidence(id: str, instruction: str, tool: str, status: str = "done", *media: str) -> Evidence:
    return Evidence(1, id, instruction, "small", (tool,), status, "secret words", "", "", media)


SEEN = evidence("t1", "Read clock.png", SEE, "done", "clock.png")
HEARD = evidence("t2", "Listen to it", HEAR, "done", "speech.wav")


def prompt(*history: Evidence, state: State = STATE, module=orchestra_o1, **how) -> str:
    _, user = module.render_state(replace(state, history=history), "models", "tools", **how)
    return user["content"]


def tells(name: str, *history: Evidence, state: State = STATE, **values: str) -> bool:
    """Whether the words for small models say it."""
    text = prompt(*history, state=state, small=True)
    return say("orchestra_o1/small/messages", name, **values) in text


@pytest.mark.parametrize("later", [(), (evidence("t3", "Convert", "ExecuteCodeAction"),)])
def test_a_finding_is_in_the_context_alone(later):
    assert prompt(SEEN, HEARD, *later).count("secret words") == 1


def test_a_file_that_no_sub_task_was_given_is_requested():
    assert all(tells("next_unseen_part", file=m.name) for m in (CLOCK, SPEECH))


@pytest.mark.parametrize("status", ["failed", "blocked", "partial"])
def test_a_file_that_could_not_be_read_is_not_called_unseen(status):
    history = SEEN, evidence("t2", "Listen to speech.wav", HEAR, status)
    assert "by t2 in round 1" in prompt(*history)
    assert tells("next_tried", *history, files="speech.wav")
    assert not tells("next_unseen_part", *history, file="speech.wav")


def test_reading_another_file_is_not_an_attempt():
    state = replace(STATE, task=Task("?", (CLOCK, replace(CLOCK, name="b.png"))))
    assert tells("next_unseen_part", SEEN, state=state, file="b.png")


ROUND = say("delegation", "round", round=2, rounds=6)
BUDGET = say("delegation", "budget", usd="0.2500")
MISTAKE = say("delegation", "mistake", mistake="It was odd.")


@pytest.mark.parametrize("module", [orchestra_o1, aorchestra])
def test_a_mistake_is_shown_with_the_round_and_the_budget(module):
    assert f"{ROUND} {BUDGET} {MISTAKE}\n" in prompt(module=module, mistake="It was odd.")


@pytest.mark.parametrize("module", [orchestra_o1, aorchestra])
def test_the_last_chance_is_not_a_round_and_offers_no_delegation(module):
    text = prompt(SEEN, module=module, mistake="It was odd.", last_chance=True)
    assert f"{MISTAKE}\n{say('delegation', 'last_chance')}" in text
    assert ROUND not in text and "t9" not in text
