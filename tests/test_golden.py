"""Every word that the models of a method are sent, role by role, over one run of each."""

import pytest

from orchestra_min import orchestrate
from tests import golden
from tests.conftest import Options, pool_at
from tests.methods import CLOCK
from tests.scripted import act, complete, delegate, finish, is_main

LOOK = {"task_instruction": "Read the time in clock.png", "context": "It hangs in Prague.", "model": "auto",
        "tools": ["ExecuteCodeAction"]}  # fmt: skip
ADD = {**LOOK, "task_instruction": "Convert it to UTC", "tools": [], "id": "utc", "needs": ["t1"]}
TURNS = {
    "orchestra-o1": [delegate(LOOK, ADD), "?", delegate(), complete("05:49")],
    "aorchestra": [delegate(LOOK), complete("05:49")],
    "react": [],
}


@pytest.mark.parametrize("method", TURNS)
def test_the_requests_of_a_run_are_those_of_its_golden_file(method, endpoint, tmp_path):
    turns, steps = iter(TURNS[method]), iter([act("ExecuteCodeAction", code="7 + 1")])
    works = lambda: next(steps, finish("It is 7:49.", summary="The clock shows 7:49."))  # noqa: E731
    server = endpoint(lambda request: next(turns) if is_main(request) else works())
    options = Options(method=method, parallel=1, unsafe_code=True)
    orchestrate("What is the time in UTC?", [CLOCK], pool_at(server.url), options, tmp_path / "run")
    golden.check(method, server.requests)
