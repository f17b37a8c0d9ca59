"""The program inside a project of its user, whose modules have the names that this one uses."""

import http.client
import locale
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import requests
from urllib3 import HTTPConnectionPool

from tests.conftest import ROOT
from tests.program import CLOCK, PROGRAM, any_method, program
from tests.scripted import act, complete, finish, last_text

NAMES = ("tools", "kernel", "report", "evaluation", "training", "methods", "parts")
METHOD = """
import tools, kernel, report, evaluation, training, methods, parts
from orchestra.kernel.method import Method
from orchestra.kernel.vocabulary import Complete
class Mine(Method):
    rounds = 1
    def decide(self, state, ask, mistake, last_chance):
        mine = {m.MINE for m in (tools, kernel, report, evaluation, training, methods, parts)}
        return Complete(f"{mine} {ask([{'role': 'user', 'content': '?'}]).text}")
"""
SCRIPT = """
import sys
sys.path.append({root!r})
import tools, report
from mine import Mine
from orchestra_min import Backend, Pool, orchestrate, replay
pool = Pool((Backend("m", "m", {url!r}),), "m")
run = orchestrate("?", pool=pool, out="run", method=Mine)
print(run.answer, replay("run", method=Mine).answer == run.answer, tools.MINE, report.MINE)
"""


@pytest.fixture
def project(tmp_path):
    """A folder with modules and folders of our names, each with MINE."""
    folder = tmp_path / "my project"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text("MINE = 'mine'")
    (folder / "prompts").mkdir()
    (folder / "mine.py").write_text(METHOD)
    return folder


def test_a_method_that_imports_modules_of_its_own_project_works(project, endpoint):
    server = endpoint(lambda request: complete("42"))
    flags = "--method", "mine.py:Mine"
    done = program(project, "--question", "?", *flags, "--out", "run", at=server.url)
    assert (done.returncode, done.stdout[:8]) == (0, "{'mine'}"), done.stderr
    assert program(project, "--replay", "run", *flags).stdout == done.stdout


def test_the_library_works_next_to_modules_of_these_names(project, endpoint):
    url = endpoint(lambda r: complete("42")).url
    (project / "main.py").write_text(SCRIPT.format(root=str(ROOT), url=url))
    command = [sys.executable, "main.py"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert "True mine mine" in done.stdout, done.stderr


@pytest.mark.parametrize("config", ["", "[pytest]\npythonpath = ."])
def test_the_pytest_fixture_works_in_such_a_project(project, endpoint, config):
    (project / "pytest.ini").write_text(config or "[pytest]\n")
    (project / "test_it.py").write_text(
        "import tools\ndef test_it(recorded):\n    from orchestra_min import Options\n"
        "    how = {'options': Options(method='react')}\n"
        "    assert recorded('?', out='run', **how).answer == '42' and tools.MINE == 'mine'\n"
    )
    env = {**os.environ, "OPENAI_BASE_URL": endpoint(any_method).url, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "orchestra.variation.pytest_plugin"]
    for mode in ("once", "none") if config else ("once",):
        done = subprocess.run(
            [*command, "--record-mode", mode], cwd=project, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("word", ["report", "evaluate"])
def test_a_question_that_is_the_name_of_a_command(word, endpoint, tmp_path):
    done = program(tmp_path, "--question", word, "--method", "react", at=endpoint(any_method).url)
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
    assert (
        "usage"
        in subprocess.run(
            [sys.executable, str(PROGRAM), word, "--help"], capture_output=True, text=True
        ).stdout
    )


def state_of_the_host():
    """Settings of the interpreter and the attributes of libraries that programs like to patch."""
    patched = (socket.socket, subprocess.Popen, HTTPConnectionPool, requests.Session)
    patched += (http.client.HTTPConnection,)
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    root = logging.getLogger()
    return {
        "attributes": [dict(vars(kind)) for kind in patched] + [dict(vars(socket))],
        "signals": handlers,
        "logging": (root.level, list(root.handlers), logging.raiseExceptions),
        "limits": (sys.getrecursionlimit(), sys.getswitchinterval(), socket.getdefaulttimeout()),
        "streams": (sys.stdin, sys.stdout, sys.stderr),
        "hooks": (sys.excepthook, threading.excepthook, sys.meta_path[:], sys.gettrace()),
        "process": (dict(os.environ), Path.cwd(), list(sys.path), list(warnings.filters)),
        "locale": locale.setlocale(locale.LC_ALL),
    }


def test_a_run_in_your_program_changes_nothing_of_it(run):
    def respond(request):
        if "image_url" in str(request["messages"]):
            return "12:34"
        look = act("ImageAnalysisAction", query="time?", image_path="clock.png")
        return finish("12:34") if "12:34" in last_text(request) else look

    how = {"respond": respond, "method": "react", "media": [CLOCK], "parallel": 2}
    run(**how)  # first, imports
    before = state_of_the_host()
    assert run(**how, out="second").answer == "12:34"
    assert state_of_the_host() == before
