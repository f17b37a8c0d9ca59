"""What a model reads of a tool, and what becomes of what it gives."""

from pathlib import Path
from typing import Literal

import pytest

from tests.conftest import Media, Task
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


def test_name_capabilities_and_manual_come_from_decorator_signature_and_docstring():
    assert (paint.name, paint.capabilities) == ("PaintAction", {"img", "code"})
    assert paint.manual == (
        "PaintAction(picture: string, colour: string = 'red')\n"
        "    Paint it all over.\n"
        "    picture: which one\n"
        "    colour: of the paint"
    )


def test_the_schema_comes_from_the_signature_and_lists_the_files_there_are():
    picture, colour = {"enum": ["clock.png"]}, {"enum": ["red", "blue"]}
    assert paint.schema(TASK) == {
        "type": "object", "required": ["picture"], "additionalProperties": False,
        "properties": {"picture": {"type": "string", **picture}, "colour": {"type": "string", **colour}},
    }  # fmt: skip


def test_what_a_model_leaves_out_gets_its_default():
    assert paint(None, {"picture": "clock.png", "colour": None}) == "clock.png red"


@pytest.mark.parametrize(("name", "required", "others"), [
    ("ImageAnalysisAction", ["query", "image_path"], []), ("ParseAudioAction", ["query", "audio_path"], []),
    ("VideoAnalysisAction", ["query", "video_path"], ["max_frames", "start_time", "end_time", "analyze_audio"]),
    ("GoogleSearchAction", ["query"], ["k", "gl", "hl"]), ("ExtractUrlContentAction", ["url", "browse_query"], []),
    ("ExecuteCodeAction", ["code"], ["code_type", "timeout_sec"]),
])  # fmt: skip
def test_names_and_parameters_are_those_of_the_paper_and_explained(name, required, others):
    known = all_tools()[name]
    schema = known.schema(Task("?"))
    assert list(schema["properties"]) == required + others and schema["required"] == required
    assert known.description and all(f.description for f in known.parameters.model_fields.values())
