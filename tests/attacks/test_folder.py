"""What a program does to its own folder, and what the steps after it find there."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tools import ToolError, code, wall, wall_folder
from tools.wall_folder import Contents


@pytest.fixture
def step(level: wall.Wall, tmp_path: Path) -> Callable[[str], str]:
    """One program after another in the folder of one sub-agent, beside the task's media."""
    (tmp_path / "media").mkdir()

    def run(program: str) -> str:
        ran = code.run(program, "python", 10, tmp_path / "work", tmp_path / "media", level)
        return ran["observation"]

    return run


def filled(folder: Path, files: int) -> Path:
    folder.mkdir()
    for n in range(files):
        (folder / f"f{n}").write_bytes(b"x" * 5000)
    return folder


def test_what_was_in_a_folder_before_its_programs_is_kept(step, tmp_path, monkeypatch):
    monkeypatch.setattr(wall_folder, "MAX_FILES", 20)
    monkeypatch.setattr(wall_folder, "MAX_DISK_BYTES", 200_000)
    filled(tmp_path / "work", 300)
    assert step("import os, time; time.sleep(0.4); len(os.listdir('.')) >= 300") == "True"
    assert len(list((tmp_path / "work").glob("f*"))) == 300


def test_what_all_programs_of_a_folder_add_is_limited(step, tmp_path, monkeypatch):
    monkeypatch.setattr(wall_folder, "MAX_FILES", 20)
    filled(tmp_path / "work", 30)
    add = "for n in range(15): open(f'{}{{n}}', 'w').close()"
    assert "printed nothing" in step(add.format("a"))
    assert "all of its files were deleted" in step(add.format("b"))
    assert not list((tmp_path / "work").glob("*[0-9]"))


@pytest.mark.parametrize("closed", [".", "d", "d/kept"])
def test_what_a_program_closed_is_open_to_the_next(closed, step):
    made = "import os\nos.mkdir('d'); open('d/kept', 'w').write('mine')\n"
    assert "stopped" not in step(f"{made}os.chmod({closed!r}, 0); None")
    assert step("open('d/kept').read()") == "'mine'"


def test_no_link_is_followed_to_open_what_it_names(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o500)
    filled(tmp_path / "work", 1).joinpath("link").symlink_to(outside)
    wall_folder.contents(tmp_path / "work", Contents(9, 1 << 20, 9), opens=True)
    assert outside.stat().st_mode & 0o777 == 0o500


def test_a_link_to_nowhere_in_the_place_of_the_media_ends_no_run(step):
    step("import os\nif os.path.islink('media'): os.remove('media'); os.symlink('x', 'media')")
    assert step("6 * 7") == "42"


def test_a_program_that_can_not_be_started_is_an_observation(tmp_path):
    (tmp_path / "work").write_text("a file where its folder would be")
    with pytest.raises(ToolError, match="No program can be started now: File exists"):
        code.run("1", "python", 5, tmp_path / "work")
