"""The user's own functions as tools."""

import json

import pytest

from orchestra.tools.python_function import MAX_RESULT_CHARS, from_file
from tests.conftest import ConfigError
from tests.program import tool_file


@pytest.mark.parametrize(("source", "words"), [
    ("def other(): 'A tool.'", "has no 'mine'"), ("def mine(day): 'A tool.'", "the parameter 'day' needs a type"),
    ("def mine(day: str): return day", "needs a docstring"), ("def mine(day: 'Weekday'): 'A tool.'", "name 'Weekday' is not defined"),
    ("def mine(_day: str): 'A tool.'", "leading underscores"), ("def mine(*days: str): 'A tool.'", "no . or / around it"),
    ("async def mine(day: str): 'A tool.'", "must not be async"), ("def mine(day: str) 'A tool.'", "SyntaxError: .*line 1"),
    ("def mine(day: str, env: 'Environment'): 'A tool.'", "must be its first parameter"),
    ("none.py", "add :NAME"), ("/none.py:f", "No such file or directory: '/none.py'"),
])  # fmt: skip
def test_what_can_not_be_a_tool_is_told_before_anything_is_paid(source, words, tmp_path):
    (tmp_path / "my_tools.py").write_text(source)
    with pytest.raises(ConfigError, match=words):
        from_file(source if "none.py" in source else f"{tmp_path}/my_tools.py:mine")


DEEP = "def mine(day: str) -> list:\n  'A tool.'\n  deep = []\n  for _ in range(100_000): deep = [deep]\n  return deep"
BESIDE = """from __future__ import annotations
import helper_of_mine; from dataclasses import dataclass
@dataclass
class Opening: day: str
def mine(day: str): 'A tool.'; import closing_times; return f'{Opening(day).day} to {helper_of_mine.CLOSES}, {closing_times.SUNDAY}'"""


@pytest.mark.parametrize(("source", "words"), [
    ("def mine(day: str): 'A tool.'; raise LookupError('no such day')", "LookupError: no such day"),
    ("import sys\ndef mine(day: str): 'A tool.'; sys.exit('no more')", "SystemExit: no more"),
    (r"def mine(day: str): 'A tool.'; return 'a half \ud800 character'", "a half \ufffd character"),
    ("def mine(env: str = 'ours'): 'A tool.'; return f'it is {env}'", "it is ours"), (DEEP, "RecursionError: "), (BESIDE, "Monday to 17, 12"),
    (f"def mine(day: str): 'A tool.'; return 'x' * {MAX_RESULT_CHARS + 1}", "its result is too long"),
    ("import asyncio\ndef mine(day: str): 'A tool.'; raise asyncio.CancelledError('no more')", "CancelledError: no more"),
])  # fmt: skip
def test_whatever_a_tool_of_the_user_does_is_an_observation(source, words, tmp_path, bench):
    texts = {"my_tools": source, "helper_of_mine": "CLOSES = 17", "closing_times": "SUNDAY = 12"}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    tools = bench(own=([f"{tmp_path}/my_tools.py:mine"], ()))
    seen = [tools.outcome("mine", mode, day="Monday") for mode in ("record", "replay")]
    assert words in seen[0] and seen[0] == seen[1]


FORMS = """from dataclasses import dataclass
from datetime import date
from enum import Enum
class Size(Enum): S = "s"; L = "l"
@dataclass
class Order: what: str; sizes: list[Size]
def mine(words: set[str], order: Order, when: dict[date, int], limit: int | None = 9, kind: str = "x") -> str:
    "A tool."
    return f"{len(words)} {order.what} {order.sizes[0].value} {list(when)[0].year} {limit} {kind}"
"""


def test_a_model_is_shown_the_form_of_every_parameter(tmp_path, bench):
    (tmp_path / "forms.py").write_text(FORMS)
    tools = bench(own=([f"{tmp_path}/forms.py:mine"], ()))
    given = {"words": ["b", "a"], "order": {"what": "tea", "sizes": ["s"]}, "limit": None}
    given |= {"when": {"2026-01-02": 1}, "kind": "chat"}
    seen = [tools.outcome("mine", mode, **given) for mode in ("record", "replay")]
    assert "2 tea s 2026 None chat" in seen[0] and seen[0] == seen[1]
    mine = from_file(f"{tmp_path}/forms.py:mine")
    sizes = mine.schema(tools.task)["properties"]["order"]["properties"]["sizes"]
    assert sizes["type"] == "array" and sizes["items"]["enum"] == ["s", "l"]
    assert '"enum": ["s", "l"]' in mine.signature
    row = json.loads(next(tmp_path.rglob("tape.jsonl")).read_text())
    assert row["request"]["words"] == ["b", "a"] and row["request"]["kind"] == "tool:mine"


def test_a_tool_can_not_take_the_name_of_another(tmp_path, bench):
    with pytest.raises(ConfigError, match="is taken"):
        bench(own=([tool_file(tmp_path)] * 2, ())).use("library_hours")
