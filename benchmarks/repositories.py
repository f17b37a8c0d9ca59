#!/usr/bin/env python3
"""mini-SWE on real projects: source archives from the package index, each with an environment of its own.

python benchmarks/repositories.py ARCHIVE.tar.gz...       as from: pip download --no-deps --no-binary :all: six

A scripted model runs the project's tests in the sandbox, edits, adds and deletes files. Then `git apply` of the diff on a
fresh clone must give the very tree that the sub-agent left.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from orchestra.coding.at_shell import change_of
from orchestra.kernel.vocabulary import Price
from orchestra_min import Backend, Options, Pool, orchestrate
from tests.scripted import Endpoint, complete, delegate, is_main

COMMANDS = (
    "python -m pytest -q -x -p no:cacheprovider 2>&1 | tail -4",
    "git status --short | head; f=$(git ls-files '*.py' | head -1); printf '\\n# changed\\n' >> $f; echo $f",
    "mkdir -p added && printf 'x = 1\\n' > added/new.py && head -c 3000 /dev/urandom > added/some.bin && chmod +x added/new.py",
    "git rm -q --cached LICENSE* README* 2>/dev/null; rm -f LICENSE* README*; mkfifo .gitignore.pipe; ls",
    "echo TASK_COMPLETE; echo done",
)
ONE_TASK = delegate("task").replace('{"tasks": [', "").replace("]}}", "}")


def git(folder: Path, *words: object) -> str:
    run = [
        "git",
        "-C",
        str(folder),
        "-c",
        "user.name=a",
        "-c",
        "user.email=b",
        *map(str, words),
    ]
    return subprocess.run(run, check=True, capture_output=True, text=True).stdout


def tree(folder: Path) -> dict[str, bytes]:
    files = (p for p in folder.rglob("*") if not {".git", ".venv"} & set(p.parts))
    return {str(p.relative_to(folder)): p.read_bytes() for p in files if p.is_file()}


def project(archive: Path, place: Path) -> Path:
    """The archive as a repository with a virtual environment in which it is installed to be edited."""
    with tarfile.open(archive) as tar:
        tar.extractall(place, filter="data")
    (repo,) = place.iterdir()
    git(repo, "init", "-q", "-b", "main")
    (repo / ".git" / "info" / "exclude").write_text(".venv\n*.egg-info\nbuild\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "as it is")
    subprocess.run([sys.executable, "-m", "venv", repo / ".venv"], check=True)
    pip = [
        repo / ".venv" / "bin" / "pip",
        "install",
        "-q",
        "-e",
        repo,
        "pytest",
        "freezegun",
    ]
    subprocess.run(pip, check=True)
    return repo


def scripted() -> Endpoint:
    replies, turns = iter(COMMANDS), iter((ONE_TASK, complete("done")))

    def respond(request: dict[str, Any]) -> str:
        return (
            next(turns)
            if is_main(request)
            else f"I see.\n```bash\n{next(replies)}\n```"
        )

    return Endpoint(respond)


def main() -> None:
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            repo, run = project(Path(name), place / "project"), place / "run"
            server = scripted()
            backend = Backend(
                "small", "small", server.url, price_usd_per_mtok=Price(0, 0)
            )
            options = Options(method="aorchestra", agent="mini-swe")
            start = time.perf_counter()
            pool, change = Pool((backend,), "small"), change_of(run, repo)
            result = orchestrate("?", (), pool, options, run, change=change)
            took_s = time.perf_counter() - start
            steps = [e["observation"] for e in result.events if e["event"] == "step"]
            git(place, "clone", "-q", repo, "clone")
            git(place / "clone", "apply", "--whitespace=nowarn", run / "changes.diff")
            same = tree(place / "clone") == tree(run / "work" / "r1-t1")
            print(
                f"{Path(name).name}: {len(tree(repo))} files, {took_s:.1f} s, same tree: {same}"
            )
            print("   " + "\n   ".join("\n".join(steps[:2]).splitlines()), flush=True)
            server.close()


if __name__ == "__main__":
    main()
