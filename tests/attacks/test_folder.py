"""What a program changes in its own folder, what later steps find there, and what else it sees."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestra.tools import bubblewrap, execution, sandbox
from tests.conftest import needs_sandbox

pytestmark = needs_sandbox


@pytest.fixture
def step(tmp_path: Path) -> Callable[..., str]:
    """Runs programs one after another in the folder of one sub-agent, with the task's media."""
    (tmp_path / "media").mkdir()
    mounts = sandbox.Mounts(tmp_path / "work", tmp_path / "media")
    return lambda text, kind="python", s=20: execution.run(text, kind, s, mounts)["observation"]


def test_a_folder_keeps_what_it_had_and_takes_little_more(step, tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_ADDED_FILES", 20)
    monkeypatch.setattr(sandbox, "MAX_ADDED_BYTES", 200_000)
    (tmp_path / "work").mkdir()
    for n in range(300):
        (tmp_path / "work" / f"f{n}").write_bytes(b"x" * 5000)
    (tmp_path / "work" / "f1").chmod(0o755)
    assert step("import os; len(os.listdir('.')), os.access('f1', os.X_OK)") == "(301, True)"
    assert "No space left" in step("for n in range(50): open(f'a{n}', 'w').close()")
    assert len(list((tmp_path / "work").glob("f*"))) == 300
    assert len(list((tmp_path / "work").iterdir())) <= 320


@pytest.mark.parametrize("closed", [".", "d", "d/kept"])
def test_what_a_program_closed_is_open_to_the_next(closed, step):
    made = "import os\nos.mkdir('d'); open('d/kept', 'w').write('mine')\n"
    assert "stopped" not in step(f"{made}os.chmod({closed!r}, 0); None")
    assert step("open('d/kept').read()") == "'mine'"


def test_names_and_times_come_and_go_as_they_are(step, tmp_path):
    (tmp_path / "work").mkdir()
    names = [r"a\tb", r"x\101y", "-rf", "*", "n\nl", "p q"]
    for name in names:
        (tmp_path / "work" / name).write_text("mine")
    assert step("import os; sorted(os.listdir('.'))") == str(sorted([*names, "media"]))
    step("import os; open('old', 'w'); os.utime('old', (1e9, 1e9 + 0.25)); open('new', 'w')")
    assert step("import os; os.stat('old').st_mtime") == "1000000000.25"


@pytest.mark.parametrize("signal", ["-TERM 0", "-INT 0", "-TERM 1", "-INT 1", "-KILL 1"])
def test_a_signal_to_all_of_a_program_ends_it_and_keeps_its_files(signal, step, tmp_path):
    seen = step(f"echo x > f; kill {signal}; sleep 0.3; echo on", "bash")
    assert (tmp_path / "work" / "f").read_text() == "x\n"
    assert ("on" in seen) is signal.endswith("1")


# ---- what of the system is seen, also where the run is in a system folder -------------------------

PARTS = {"bin", "sbin", "lib", "lib32", "lib64", "libexec", "share", "include", "local"}
TOP = {"bin", "sbin", "lib", "lib32", "lib64", "usr", "etc", "dev", "proc", "tmp", "sandbox"}
TOP |= {Path(p).parts[1] for p in (sys.prefix, sys.base_prefix)}
SHOWN = {"/usr": PARTS, "/": TOP, "/etc": {"alternatives", "ld.so.cache"}}


@pytest.mark.parametrize("folder", SHOWN)
def test_only_programs_and_libraries_are_seen(folder, step):
    assert set(eval(step(f"import os; os.listdir({folder!r})"))) <= SHOWN[folder]


def test_of_a_repository_with_the_python_that_runs_the_program_only_that_is_seen(tmp_path, monkeypatch):  # fmt: skip
    """As with `--workdir .` where orchestra-min is installed in the repository's .venv."""
    for name in (".env", ".venv/lib/package.py", ".venv/pip.conf"):
        (tmp_path / "repo" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "repo" / name).write_text("x")
    shown = bubblewrap._visible()
    monkeypatch.setattr(bubblewrap, "_visible", lambda venv: [*shown, tmp_path / "repo/.venv/lib"])
    mounts = sandbox.Mounts(tmp_path / "w", alias=tmp_path / "repo")
    ran = execution.run(
        "echo x > f; pwd; find . -type f | sort; cat /sandbox/f", "bash", 10, mounts
    )
    seen = [f"{tmp_path}/repo", "./.venv/lib/package.py", "./f", "x"]
    assert ran["observation"].split() == seen


def test_a_repository_shows_no_folder_by_the_python_that_it_names(tmp_path):
    """Its pyvenv.cfg has `..` after a link: the path and the folder that is mounted differ."""
    repo, bad = tmp_path / "repo", tmp_path / "repo/.venv/g/x/bin/python3"
    (tmp_path / "home/lib").mkdir(parents=True)
    (tmp_path / "home/lib/secret").write_text("of the user")
    for file in (bad, repo / ".venv/g/a/b/kept"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (repo / ".venv/s").symlink_to("g/a/b")
    (repo / "x").symlink_to(tmp_path / "home")
    (repo / ".venv/pyvenv.cfg").write_text(f"home = {repo}/.venv/s/../../x/bin\n")
    mounts = sandbox.Mounts(tmp_path / "w", venv=repo / ".venv", alias=repo)
    seen = execution.run(f"cat {repo}/x/lib/secret", "bash", 10, mounts)["observation"]
    assert "of the user" not in seen


def test_a_python_named_by_a_path_with_dots_works(step, monkeypatch):  # fails at d04ee41
    dotted = f"{sys.prefix}/lib/../bin/{Path(sys.executable).name}"
    monkeypatch.setattr(sys, "executable", dotted)
    monkeypatch.setattr(sys, "prefix", f"{sys.prefix}/lib/..")
    assert step("6 * 7") == "42"
