"""What a model reads of a tool, and what becomes of what it gives."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from orchestra.vocabulary import Media, ModelMistake, Task
from tools import Environment, ImageFile, all_tools, tool


@tool("PaintAction", "img", "code")
def paint(env: Environment, picture: ImageFile, colour: Literal["red", "blue"] = "red") -> str:
    """Paint it
    all over.

    picture: which one
    colour: of the paint
    """
    return f"{picture} {colour}"


TASK = Task("?", (Media("image", "clock.png", Path("clock.png"), "0"), Media("audio", "a.wav", Path("a.wav"), "1")))  # fmt: skip


def test_name_and_capabilities_come_from_the_decorator():
    assert (paint.name, paint.capabilities) == ("PaintAction", {"img", "code"})


def test_the_manual_comes_from_signature_and_docstring():
    assert paint.manual == (
        "PaintAction(picture: string, colour: string = 'red')\n"
        "    Paint it all over.\n"
        "    picture: which one\n"
        "    colour: of the paint"
    )


def test_the_schema_comes_from_the_signature_and_lists_the_files_there_are():
    assert paint.schema(TASK) == {
        "type": "object",
        "properties": {
            "picture": {"type": "string", "enum": ["clock.png"]},
            "colour": {"type": "string", "enum": ["red", "blue"]},
        },
        "required": ["picture"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"picture": "clock.png", "colour": "green"}, "colour: Input should be 'red' or 'blue'"),
        ({"colour": "red"}, "picture: Field required"),
    ],
)
def test_parameters_that_do_not_fit_are_a_mistake_that_says_why(given, words):
    with pytest.raises(ModelMistake, match=words):
        paint(None, given)


def test_what_a_model_leaves_out_gets_its_default():
    assert paint(None, {"picture": "clock.png", "colour": None}) == "clock.png red"


@pytest.mark.parametrize(
    ("name", "parameters", "required"),
    [
        ("ImageAnalysisAction", ["query", "image_path"], ["query", "image_path"]),
        ("ParseAudioAction", ["query", "audio_path"], ["query", "audio_path"]),
        ("VideoAnalysisAction", ["query", "video_path", "max_frames", "start_time", "end_time", "analyze_audio"], ["query", "video_path"]),
        ("GoogleSearchAction", ["query", "k", "gl", "hl"], ["query"]),
        ("ExtractUrlContentAction", ["url", "browse_query"], ["url", "browse_query"]),
        ("ExecuteCodeAction", ["code", "code_type", "timeout_sec"], ["code"]),
    ],
)  # fmt: skip
def test_names_and_parameters_are_those_of_the_paper(name, parameters, required):
    schema = all_tools()[name].schema(Task("?"))
    assert list(schema["properties"]) == parameters and schema["required"] == required


@pytest.mark.parametrize("name", all_tools())
def test_every_parameter_of_a_tool_is_explained(name):
    known = all_tools()[name]
    fields = known.parameters.model_fields.values()
    assert known.description and all(f.description for f in fields)
