"""orchestra/lines.py and what is read of such files."""

from __future__ import annotations

import json
import time

import pytest

from orchestra import trajectory
from orchestra.lines import Appender
from orchestra.outcomes import holds_paid


def test_a_closed_file_takes_no_line_and_its_number_is_no_other_file_s(tmp_path):
    closed = Appender(tmp_path / "a")
    number = closed._fd
    closed.close()
    with (tmp_path / "b").open("w") as other:
        assert other.fileno() != number
        with pytest.raises(OSError):
            closed.append({"meant": "for a"})
    assert (tmp_path / "b").read_text() == ""


def test_a_file_that_nobody_has_any_more_gives_its_number_back(tmp_path):
    numbers = set()
    for _ in range(20):
        appender = Appender(tmp_path / "a")
        numbers.add(appender._fd)
        appender.close()
        del appender
    assert len(numbers) <= 2


def test_a_long_trajectory_is_read_in_a_time_that_grows_with_it(tmp_path):
    def seconds(events: int) -> float:
        rows = [{"event": "run", "at": [0]}]
        rows += [{"event": "step", "at": [1, 1, n]} for n in range(events)]
        file = tmp_path / str(events)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        began = time.process_time()
        assert len(trajectory.read(file)) == events + 1
        return time.process_time() - began

    seconds(100)
    assert seconds(40_000) < 40 * max(seconds(4_000), 0.005)


@pytest.mark.parametrize(
    "call, outcome, kept",
    [
        (
            "r1/main/a1",
            {"error": {"library": "httpx2", "type": "ReadTimeout", "message": ""}},
            True,
        ),
        (
            "r1/main/a1",
            {"error": {"library": "httpx2", "type": "ConnectTimeout", "message": ""}},
            False,
        ),
        ("mcp", {"result": "{}"}, False),
        ("r1/t1/s1", {"result": "{}"}, True),
    ],
)
def test_what_nothing_was_paid_for_is_not_worth_keeping(call, outcome, kept, tmp_path):
    request = {"method": "POST", "uri": "http://x/v1/chat/completions"}
    row = {"v": 1, "call": call, "key": "k", "request": request, **outcome}
    (tmp_path / "tape.jsonl").write_text(json.dumps(row) + "\n")
    assert holds_paid(tmp_path / "tape.jsonl") == kept
