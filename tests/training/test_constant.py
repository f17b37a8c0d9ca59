"""The policies that are no model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestra.vocabulary import Media, State, Task
from training import constant
from training.examples import Example, state_row


def tasks(question: str, *names: str) -> Any:
    media = tuple(Media("audio", name, Path(), "") for name in names)
    state = State(Task(question, media), "", (), (), (), 1, 5)
    said = constant.places(Example("e", (), {}, {"state": state_row(state)}))
    return json.loads(said)["params"].get("tasks")


def test_places_asks_the_question_of_each_file_and_page() -> None:
    asked = tasks("How old is Bo (a.wav), see https://b.example/c? And Mo?", "a.wav")
    assert asked == [
        {"task_instruction": f"Find How old is Bo (), see ? And Mo? in {at}.", "tools": [tool]}
        for at, tool in (
            ("a.wav", "ParseAudioAction"),
            ("https://b.example/c", "ExtractUrlContentAction"),
        )
    ]


def test_places_completes_where_there_is_none() -> None:
    assert tasks("How old is Bo?") is None
