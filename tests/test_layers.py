"""The house: a layer can be left out, and nothing below it misses it. And few functions lie between a
decision and the socket.
"""

import shutil
import subprocess
import sys
import traceback

import pytest
import urllib3

from tests.conftest import ROOT
from tests.scripted import complete

LAYERS = [
    "command",
    "variation",
    "coding",
    "report",
    "evaluation",
    "curation",
    "training",
]
MOST = 9  # functions of ours between `decide` and the socket
WITHOUT = """
import sys
from pathlib import Path
import orchestra_min
outcome = orchestra_min.replay("fixtures/runs/equinox")
assert (outcome.answer, outcome.paid_usd) == ("2023-09-23 05:49:00+00:00", 0.0), outcome
missing = [name for name in sys.argv[1:] if not Path("orchestra", name).exists()]
loaded = [m for m in sys.modules if m.startswith(tuple(f"orchestra.{name}" for name in sys.argv[1:]))]
assert len(missing) == 1 and loaded == [], (missing, loaded)
if missing != ["command"]:
    assert orchestra_min.main(["--help"]) == 0
import pytest
quick = "-q", "-p", "no:cacheprovider", "-n", "0", "-k", "not example", "-W", "ignore:Module already"
sys.exit(pytest.main([*quick, "tests/test_seams.py"]))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of what a run and a few tests of the kernel need."""
    copy = tmp_path_factory.mktemp("house")
    for name in ("orchestra", "tools", "prompts", "fixtures/runs/equinox"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True)
    (copy / "tests/attacks").mkdir(parents=True)
    for path in [*(ROOT / "tests").glob("*.py"), ROOT / "pyproject.toml", *ROOT.glob("*.py")]:
        shutil.copy(path, copy / path.relative_to(ROOT))
    for name in ("docs/PAPERS.md", "docs/contributing.md"):
        (copy / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.mark.parametrize("layer", LAYERS)
def test_a_run_works_without_a_layer(layer, tree):
    """The demo replays, tests of kernel and methods pass, and --help works where it is left."""
    folder = tree / "orchestra" / layer
    folder.rename(tree / "left out")
    try:
        command = [sys.executable, "-c", WITHOUT, *LAYERS]
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        (tree / "left out").rename(folder)


def test_few_functions_lie_between_a_decision_and_the_socket(run, monkeypatch):
    stacks = []
    send = urllib3.HTTPConnectionPool.urlopen

    def urlopen(*given, **more):
        stacks.append([f.name for f in traceback.extract_stack() if "/orchestra" in f.filename])
        return send(*given, **more)

    monkeypatch.setattr(urllib3.HTTPConnectionPool, "urlopen", urlopen)
    assert run(respond=lambda request: complete("42")).answer == "42"
    (stack,) = stacks
    after = stack[stack.index("decide", stack.index("attempt")) + 1 :]  # the orchestrator's
    assert 1 <= len(after) <= MOST, after
