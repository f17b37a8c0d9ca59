"""How many functions of the program lie between a decision and the socket."""

import traceback

import urllib3

from tests.scripted import complete

MOST = 8


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
