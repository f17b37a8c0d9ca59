"""Runs of one method over a scripted endpoint, and what each kind of model was sent."""

import pytest

from orchestra_min import orchestrate, replay
from tests.conftest import ROOT, Options, pool_at
from tests.scripted import last_text

CLOCK = ("image", ROOT / "fixtures" / "media" / "clock.png")


class Runs:
    """`run(*turns, work=...)`: the main agent's replies in order; `work` answers the prompt of
    every other call. The run is in `folder`, what was sent in `requests`. Every run is replayed.
    """

    def __init__(self, endpoint, folder, method, is_main):
        self.endpoint, self.folder, self.method, self.is_main = endpoint, folder, method, is_main

    def __call__(
        self, *turns, work=lambda text: "Answer: 42", names=(), media=(), workdir=None,
        experts=(), fields=None, question="What is it?", refused=lambda request: None, **options,
    ):  # fmt: skip
        queue = iter(turns)
        of = lambda r: next(queue) if self.is_main(r) else work(last_text(r))  # noqa: E731
        respond = lambda request: refused(request) or of(request)  # noqa: E731
        self.server = self.endpoint(respond)
        self.requests = self.server.requests
        pool = pool_at(self.server.url, *names, **fields or {}).with_(experts=dict(experts))
        options = Options(method=self.method, **options)
        result = orchestrate(question, media, pool, options, self.folder, workdir=workdir)
        replay(self.folder, parallel=17)  # raises TapeMiss if anything differs
        return result

    def __getattr__(self, name):
        """`mains` and `prompts`: the last messages that the main agent and the others were sent;
        `models`: who was.
        """
        if name == "models":
            return [r["model"] for r in self.requests]
        kind = {"mains": True, "prompts": False}[name]
        return [last_text(r) for r in self.requests if self.is_main(r) is kind]


def has_system_prompt(request):
    return request["messages"][0]["role"] == "system"


def runs(method, is_main=has_system_prompt):
    """A fixture."""
    make = lambda endpoint, tmp_path: Runs(endpoint, tmp_path / "run", method, is_main)  # noqa: E731
    return pytest.fixture(make)
