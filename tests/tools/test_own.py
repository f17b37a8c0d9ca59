"""The user's own functions as tools."""

import asyncio
import json
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from orchestra.kernel.tool import Environment
from orchestra.tools.python_function import MAX_RESULT_CHARS, tool_of
from tests.conftest import ConfigError
from tests.program import called
from tests.scripted import act, complete, delegate, finish, is_main, last_text


def function(parameters: str, body: str = "'A tool.'", start: str = "def") -> Any:
    names: dict[str, Any] = {"Environment": Environment}
    exec(f"{start} mine({parameters}): {body}", names)
    return names["mine"]


@pytest.mark.parametrize(("given", "words"), [
    (function("day"), "the parameter 'day' needs a type"), (function("day: str", "return day"), "needs a docstring"),
    (function("day: 'Weekday'"), "name 'Weekday' is not defined"), (function("_day: str"), "leading underscores"),
    (function("*days: str"), "a . or / next to it"), (function("day: str", start="async def"), "is async"),
    (function("day: str, env: 'Environment'"), "must be its first parameter"), (dict, "is not a function"),
])  # fmt: skip
def test_what_can_not_be_a_tool_is_told_before_anything_is_paid(given, words):
    with pytest.raises(ConfigError, match=f"^--tools x: .*{words}"):
        tool_of(given, "--tools x")


FAILING = """
def price_of(what: str) -> str:
    "What a thing costs."
    return {"pen": "2"}[what]
"""


def raising(error: BaseException) -> Any:
    def mine(day: str) -> str:
        "A tool."
        raise error

    return mine


def giving(value: Any) -> Any:
    def mine(day: str) -> Any:
        "A tool."
        return value

    return mine


def ours(env: str = "ours") -> str:
    "A tool."
    return f"it is {env}"


DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(("given", "words"), [
    (raising(LookupError("no such day")), "LookupError: no such day"), (raising(SystemExit("no more")), "SystemExit: no more"),
    (raising(asyncio.CancelledError("no more")), "CancelledError: no more"), (giving("a half \ud800 character"), "a half \ufffd character"),
    (ours, "it is ours"), (giving(DEEP), "RecursionError: "), (giving("x" * (MAX_RESULT_CHARS + 1)), "its result is too long"),
], ids=range(7))  # fmt: skip
def test_whatever_a_tool_of_the_user_does_is_an_observation(given, words, bench):
    tools = bench(own=[given])
    seen = [tools.outcome(given.__name__, mode, day="Monday") for mode in ("record", "replay")]
    assert words in seen[0].encode("utf-8", "replace").decode().replace("?", "\ufffd")
    assert seen[0] == seen[1] or "half" in words


def test_the_line_that_failed_in_a_tool_is_told(endpoint, in_an_empty_folder):
    Path("mine.py").write_text(FAILING)

    def respond(request):
        if is_main(request):
            task = {"task_instruction": "look", "tools": ["price_of"]}
            return complete("x") if "t1" in last_text(request) else delegate(task)
        return finish("x") if "KeyError" in last_text(request) else act("price_of", what="quill")

    done = called("?", "--tools", "mine.py:price_of", at=endpoint(respond).url)
    assert "price_of at mine.py:4: KeyError: 'quill'" in done.stderr


class Size(Enum):
    S = "s"
    L = "l"


@dataclass
class Order:
    what: str
    sizes: list[Size]


def ordered(words: set[str], order: Order, when: dict[date, int], limit: int | None = 9, kind: str = "x") -> str:  # fmt: skip
    "A tool."
    return f"{len(words)} {order.what} {order.sizes[0].value} {list(when)[0].year} {limit} {kind}"


def test_a_model_is_shown_the_form_of_every_parameter(tmp_path, bench):
    tools = bench(own=[ordered])
    given = {"words": ["b", "a"], "order": {"what": "tea", "sizes": ["s"]}, "limit": None}
    given |= {"when": {"2026-01-02": 1}, "kind": "chat"}
    seen = [tools.outcome("ordered", mode, **given) for mode in ("record", "replay")]
    assert "2 tea s 2026 9 chat" in seen[0] and seen[0] == seen[1]
    mine = tool_of(ordered)
    sizes = mine.schema(tools.task)["properties"]["order"]["properties"]["sizes"]
    assert sizes["type"] == "array" and sizes["items"]["enum"] == ["s", "l"]
    assert '"enum": ["s", "l"]' in mine.signature
    row = json.loads(next(tmp_path.rglob("tape.jsonl")).read_text())
    assert row["request"]["words"] == ["b", "a"] and row["request"]["kind"] == "tool:ordered"


@pytest.mark.parametrize("name", ["ordered", "ReadFileAction", "finish"])
def test_a_tool_can_not_take_the_name_of_another(name, bench):
    other = giving("x")
    other.__name__ = name
    with pytest.raises(ConfigError, match="is taken"):
        bench(own=[ordered, other]).use("ordered")
