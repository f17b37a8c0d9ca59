"""What a program does to its own folder and what the steps after it find there; what else it sees."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools import ToolError, code, sandbox


@pytest.fixture
def step(tmp_path: Path) -> Callable[[str], str]:
    """One program after another in the folder of one sub-agent, beside the task's media."""
    (tmp_path / "media").mkdir()

    def run(program: str) -> str:
        world = sandbox.World(tmp_path / "work", tmp_path / "media")
        ran = code.run(program, "python", 10, world)
        return ran["observation"]

    return run


def filled(folder: Path, files: int) -> Path:
    folder.mkdir()
    for n in range(files):
        (folder / f"f{n}").write_bytes(b"x" * 5000)
    return folder


def test_what_was_in_a_folder_before_its_programs_is_kept(step, tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_ADDED_FILES", 20)
    monkeypatch.setattr(sandbox, "MAX_ADDED_BYTES", 200_000)
    filled(tmp_path / "work", 300)
    (tmp_path / "work" / "f1").chmod(0o755)
    assert step("import os; len(os.listdir('.')), os.access('f1', os.X_OK)") == "(301, True)"
    assert len(list((tmp_path / "work").glob("f*"))) == 300


def test_what_a_program_adds_is_limited(step, tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_ADDED_FILES", 20)
    filled(tmp_path / "work", 30)
    assert "No space left" in step("for n in range(50): open(f'a{n}', 'w').close()")
    assert len(list((tmp_path / "work").iterdir())) <= 50


@pytest.mark.parametrize("closed", [".", "d", "d/kept"])
def test_what_a_program_closed_is_open_to_the_next(closed, step):
    made = "import os\nos.mkdir('d'); open('d/kept', 'w').write('mine')\n"
    assert "stopped" not in step(f"{made}os.chmod({closed!r}, 0); None")
    assert step("open('d/kept').read()") == "'mine'"


def test_a_program_that_can_not_be_started_is_an_observation(tmp_path):
    (tmp_path / "work").write_text("a file where its folder would be")
    with pytest.raises(ToolError, match="No program can be started now: File exists"):
        code.run("1", "python", 5, sandbox.World(tmp_path / "work"))


def test_folders_that_change_their_names_keep_their_files(step, tmp_path):
    for name in "ab":
        (tmp_path / "work" / name).mkdir(parents=True)
        (tmp_path / "work" / name / "f").write_text(name)
    step("import os; os.rename('a', 'c'); os.rename('b', 'a'); os.rename('c', 'b')")
    assert [(tmp_path / "work" / name / "f").read_text() for name in "ab"] == ["b", "a"]


def test_names_and_times_come_and_go_as_they_are(step, tmp_path):
    (tmp_path / "work").mkdir()
    names = [r"a\tb", r"x\101y", "-rf", "*", "n\nl", "p q"]
    for name in names:
        (tmp_path / "work" / name).write_text("mine")
    assert step("import os; sorted(os.listdir('.'))") == str(sorted([*names, "media"]))
    step("import os; open('old', 'w'); os.utime('old', (1e9, 1e9 + 0.25)); open('new', 'w')")
    assert step("import os; os.stat('old').st_mtime") == "1000000000.25"


@pytest.mark.parametrize("signal", ["-TERM 0", "-INT 0", "-TERM 1", "-INT 1", "-KILL 1"])
def test_a_signal_to_all_of_a_program_ends_it_and_keeps_its_files(signal, tmp_path):
    world = sandbox.World(tmp_path / "work")
    ran = code.run(f"echo x > f; kill {signal}; sleep 0.3; echo on", "bash", 10, world)
    assert (tmp_path / "work" / "f").read_text() == "x\n"
    assert ("on" in ran["observation"]) is signal.endswith("1")


def test_a_pipe_that_ends_early_is_as_in_any_shell(tmp_path):
    ran = code.run("seq 1 1000000 | head -1", "bash", 10, sandbox.World(tmp_path / "work"))
    assert ran == {"observation": "1", "well": True}


def test_a_program_that_signals_the_first_process_can_not_delay_its_end(tmp_path):
    spam = "while :; do kill -TERM 1; done"
    ran = code.run(f"echo x > f; {spam} & {spam}", "bash", 1, sandbox.World(tmp_path / "work"))
    assert "took longer than 1 s" in ran["observation"] or not ran["well"]
    assert (tmp_path / "work" / "f").read_text() == "x\n"


# ---- what of the system is seen, also where the run is in a system folder -------------------------

PARTS = {"bin", "sbin", "lib", "lib32", "lib64", "libexec", "share", "include", "local"}


def seen(program: str, folder: Path) -> str:
    return str(code.run(program, "python", 20, sandbox.World(folder))["observation"])


def test_only_programs_and_libraries_are_seen(tmp_path):
    assert set(eval(seen("import os; os.listdir('/usr')", tmp_path / "w"))) <= PARTS
    top = {"bin", "sbin", "lib", "lib32", "lib64", "usr", "etc", "dev", "proc", "tmp", "sandbox"}
    above = {Path(p).parts[1] for p in (sys.prefix, sys.base_prefix)}
    assert set(eval(seen("import os; os.listdir('/')", tmp_path / "w"))) <= top | above
    etc = {"alternatives", "ld.so.cache"}
    assert set(eval(seen("import os; os.listdir('/etc')", tmp_path / "w"))) <= etc


def test_of_a_virtual_environment_in_a_project_only_the_environment_is_seen(tmp_path, monkeypatch):
    for name in ("app/.env", "app/.venv/lib/package.py", "app/.venv/pip.conf"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    shown = sandbox._shown()
    monkeypatch.setattr(sandbox, "_shown", lambda: [*shown, tmp_path / "app/.venv/lib"])
    look = f"from pathlib import Path; [str(p) for p in Path({str(tmp_path)!r}).rglob('*') if p.is_file()]"
    assert seen(look, tmp_path / "w") == str([f"{tmp_path}/app/.venv/lib/package.py"])


def test_a_repository_may_hold_the_python_that_runs_the_program(tmp_path, monkeypatch):
    """As with `--workdir .` where orchestra-min is installed in the repository's .venv."""
    (tmp_path / "repo/.venv/lib").mkdir(parents=True)
    shown = sandbox._shown()
    monkeypatch.setattr(sandbox, "_shown", lambda: [*shown, tmp_path / "repo/.venv/lib"])
    world = sandbox.World(tmp_path / "w", place=tmp_path / "repo")
    ran = code.run("echo x > f; pwd; ls -a; cat /sandbox/f", "bash", 10, world)
    assert ran["observation"].split() == [f"{tmp_path}/repo", ".", "..", ".venv", "f", "x"]


def test_a_python_named_by_a_path_with_dots_works(tmp_path, monkeypatch):  # fails at d04ee41
    dotted = f"{sys.prefix}/lib/../bin/{Path(sys.executable).name}"
    monkeypatch.setattr(sys, "executable", dotted)
    monkeypatch.setattr(sys, "prefix", f"{sys.prefix}/lib/..")
    assert seen("6 * 7", tmp_path / "w") == "42"
