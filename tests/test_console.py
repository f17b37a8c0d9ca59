"""orchestra/console.py and orchestra/progress.py: what a terminal is shown."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from orchestra import console
from orchestra.progress import Progress

EVIL = "Look at [/b] [link=http://x]here[/link] :smile:"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "stream, said", [(Terminal, "a\\x1b[31mb\n\tc\n"), (io.StringIO, "a\x1b[31mb\n\tc\n")]
)
def test_a_terminal_obeys_no_answer_and_a_pipe_gets_it_as_it_is(stream, said, monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, stream())
    console.tell("a\x1b[31mb\n\tc")
    console._say("a\x1b[31mb\n\tc")
    assert sys.stdout.getvalue() == sys.stderr.getvalue() == said


def test_the_progress_shows_a_model_s_markup_as_text():
    screen = Console(file=io.StringIO(), force_terminal=True, width=160)
    progress = Progress(screen)
    subtask = {"id": "t1", "instruction": EVIL}
    progress({"event": "subtask", "at": (1, 1, 0), "subtask": subtask})
    why = {"action": "delegate", "subtasks": [subtask], "reasoning": EVIL}
    progress({"event": "decision", "at": (1, 0, 1), "decision": why, "timing": {}})
    progress.close()
    shown = screen.file.getvalue()
    assert shown.count("[/b] [link=http://x]") >= 2 and "\x1b]8;" not in shown
