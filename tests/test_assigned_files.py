"""The tools of a sub-task that names a file which is neither picture, sound nor video."""

import pytest

from tests.conftest import needs_sandbox
from tests.program import CLOCK
from tests.scripted import act, complete, delegate, finish

TASK = "How many people live in Brno, by data.csv?"
READ = act("ReadFileAction", query="?", file_path="data.csv")
COMPUTE = act("ExecuteCodeAction", code="print(open('media/data.csv').read())")


@needs_sandbox
@pytest.mark.parametrize(
    ("tool", "works"),
    [
        ("ReadFileAction", True),
        ("ExecuteCodeAction", True),
        ("ImageAnalysisAction", False),
        ("GoogleSearchAction", False),
    ],
)
def test_a_tool_that_cannot_open_a_table_is_a_mistake_of_the_same_round(tool, works, run, tmp_path):
    table = tmp_path / "data.csv"
    table.write_text("city,people\nBrno,379526\n")
    given = delegate({"task_instruction": TASK, "tools": [tool]})
    right = delegate({"task_instruction": TASK, "tools": ["ReadFileAction"]})
    decisions = [given] if works else [given, right]
    first = COMPUTE if tool == "ExecuteCodeAction" else READ

    def work(text):
        return finish("379526") if "379526" in text else first

    seen = run(*decisions, complete("379526"), work=work, media=[table, CLOCK])
    mistakes = [e["mistake"] for e in seen.events if e.get("mistake")]
    assert seen.answer == "379526" and len(mistakes) == len(decisions) - 1
    assert all("ReadFileAction" in mistake for mistake in mistakes)
