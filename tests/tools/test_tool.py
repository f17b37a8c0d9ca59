"""What a model reads of a tool, and what becomes of what it gives."""

from pathlib import Path
from typing import Literal

from tests.conftest import Media, Task
from tools import Environment, ImageFile, tool


@tool("PaintAction", "img", "code")
def paint(env: Environment, picture: ImageFile, colour: Literal["red", "blue"] = "red") -> str:
    """Paint it
    all over.

    picture: which one
    colour: of the paint
    """
    return f"{picture} {colour}"


TASK = Task("?", (Media("image", "clock.png", Path("clock.png"), "0"), Media("audio", "a.wav", Path("a.wav"), "1")))  # fmt: skip


def test_the_schema_comes_from_the_signature_and_lists_the_files_there_are():
    picture, colour = {"enum": ["clock.png"]}, {"enum": ["red", "blue"]}
    assert paint.schema(TASK) == {
        "type": "object", "required": ["picture"], "additionalProperties": False,
        "properties": {"picture": {"type": "string", **picture}, "colour": {"type": "string", **colour}},
    }  # fmt: skip


def test_what_a_model_leaves_out_gets_its_default():
    assert paint(None, {"picture": "clock.png", "colour": None}) == "clock.png red"
