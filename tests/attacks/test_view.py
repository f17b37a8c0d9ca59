"""What of the system a program sees where the project, the run or the home lie in it, as in containers."""

import sys
from pathlib import Path

import pytest

from tools import code, sandbox, sandbox_view

LOOK = """from pathlib import Path; top = Path({system!r})
for p in sorted(p for p in top.rglob('*') if p.is_file()): print(p.relative_to(top), p.read_text())
for place in (top, top / 'app', top / 'app/.venv/lib'):
    try: print('GOT', (place / 'new').write_text('x'))
    except OSError: pass"""


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the system with a project, its virtual environment, a run and a home in it."""
    top = tmp_path / "system"
    for name in ["app/.env", "app/runs/1/tape.jsonl", "app/.venv/lib/package.py", "app/.venv/pip.conf", "out/1/work/r1-t2/secret", "out/1/media/m.png", "me/.netrc", "share/word"]:  # fmt: skip
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("x")
    monkeypatch.setattr(sandbox_view, "SYSTEM", (*sandbox_view.SYSTEM, str(top)))
    monkeypatch.setattr(sandbox_view, "PROJECT", top / "app")
    monkeypatch.setenv("HOME", str(top / "me"))
    python = sandbox_view._python()
    monkeypatch.setattr(sandbox_view, "_python", lambda: [*python, top / "app/.venv/lib"])
    return top


def test_the_project_the_run_and_the_home_are_covered_and_this_python_is_not(system):
    world = sandbox.World(system / "out/1/work/r1-t1", system / "out/1/media")
    ran = code.run(LOOK.format(system=str(system)), "python", 10, world)
    assert ran["observation"].split("\n") == ["app/.venv/lib/package.py x", "share/word x"]
    assert code.run("open('media/m.png').read()", "python", 9, world)["well"]


@pytest.mark.parametrize("home", ["/", "/usr", "/usr/bin", "/usr/lib", "/nowhere", sys.prefix])
def test_programs_and_the_packages_of_this_python_are_never_covered(home, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(sandbox_view, "PROJECT", Path(pytest.__file__).parent.parent)
    covers = [
        path
        for path, covered in sandbox_view._shown(sandbox.World(tmp_path / "work" / "r1-t1"))
        if covered
    ]
    assert not covers
