"""What of the system a program sees, also where the project or the run lie in a system folder, as in containers."""

import sys
from pathlib import Path

from tools import code, sandbox

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


def test_a_python_named_by_a_path_with_dots_works(tmp_path, monkeypatch):  # fails at d04ee41
    dotted = f"{sys.prefix}/lib/../bin/{Path(sys.executable).name}"
    monkeypatch.setattr(sys, "executable", dotted)
    monkeypatch.setattr(sys, "prefix", f"{sys.prefix}/lib/..")
    assert seen("6 * 7", tmp_path / "w") == "42"
