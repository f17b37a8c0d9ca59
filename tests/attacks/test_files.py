"""Names of files that a model gives. Only the media of the task are opened."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestra.kernel.tool import Environment
from orchestra.kernel.vocabulary import ToolError
from orchestra.methods import all_tools
from tests.conftest import Media, Task

NAMES = {
    "absolute_path": "/etc/passwd", "path_of_the_medium": "{path}", "dots": "../run.json", "dots_behind_media": "media/../run.json",
    "home": "~/.env", "home_of_root": "~root/.ssh/id_rsa", "variable": "$HOME/.env", "file_url": "file://{path}",
    "http_url": "http://127.0.0.1/clock.png", "data_url": "data:image/png;base64,iVBORw0KGgo=", "ftp_url": "ftp://h/clock.png",
    "ffmpeg_concat": "concat:clock.png|/etc/passwd", "ffmpeg_subfile": "subfile,,start,0,end,9,,:/etc/passwd", "ffmpeg_pipe": "pipe:0",
    "null_byte": "clock.png\0.txt", "windows_path": "..\\run.json", "link_beside_it": "link.png", "tape": "tape.jsonl",
    "folder": "media", "pattern": "*.png", "other_letters": "CLOCK.PNG", "proc": "/proc/self/environ", "nothing": "",
}  # fmt: skip


@pytest.fixture
def env(tmp_path: Path) -> Environment:
    (tmp_path / "media").mkdir()
    path = tmp_path / "media" / "clock.png"
    path.write_bytes(b"PNG")
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "media" / "link.png").symlink_to("/etc/passwd")
    task = Task("?", (Media("image", "clock.png", path, "0"),))
    parts = dict.fromkeys(("backend", "pool", "chat", "tape", "purse"), SimpleNamespace())
    return Environment(task=task, folder=tmp_path / "work", **parts)


@pytest.mark.parametrize(
    "tool", ["ImageAnalysisAction", "ParseAudioAction", "VideoAnalysisAction", "ReadFileAction"]
)
@pytest.mark.parametrize("name", NAMES)
def test_no_other_file_is_opened(name, tool, env):
    (parameter,) = all_tools()[tool].files
    wanted = NAMES[name].format(path=env.task.media[0].path)
    with pytest.raises(ToolError, match="No other file can be opened"):
        all_tools()[tool](env, {"query": "?", parameter: wanted})


@pytest.mark.parametrize("spelling", ["clock.png", "./clock.png", "media/clock.png", " clock.png "])
def test_a_file_of_the_task_is_found_under_its_own_modality(spelling, env):
    assert env.media(spelling, "image").name == "clock.png"
    with pytest.raises(ToolError, match="is image, not video"):
        env.media(spelling, "video")


def test_a_model_is_told_the_files_that_it_may_name(env):
    look, text = all_tools()["ImageAnalysisAction"], {"type": "string"}
    assert look.schema(env.task) == {
        "type": "object", "required": ["query", "image_path"], "additionalProperties": False,
        "properties": {"query": text, "image_path": {**text, "enum": ["clock.png"]}},
    }  # fmt: skip
    assert "enum" not in str(all_tools()["ParseAudioAction"].schema(env.task))
