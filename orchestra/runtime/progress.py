"""What a user sees while a run works: a line for each decision and result, and in a terminal a line
below them that says who is at work, since when, and what it has cost.

With --verbose: the thought, action and observation of each step.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from orchestra.money import add_usd
from orchestra.runtime.interruption import of_process as interruption
from orchestra.runtime.trajectory import Event, Listener, describe, printable, usd
from orchestra.vocabulary import Place

LINE_CHARS = 200
TEXT_CHARS = 1000  # of a thought or an observation, with --verbose
Tell = Callable[[str], None]  # prints a line


@contextlib.contextmanager
def progress(a: argparse.Namespace, tell: Tell) -> Iterator[tuple[Listener, ...]]:
    """The listeners of a command's runs. Inside, what others print goes to standard error, too."""
    show = partial(_tell_event, a, tell)
    with contextlib.redirect_stdout(sys.stderr):
        if a.quiet:
            logging.getLogger("orchestra").setLevel(logging.ERROR)
            yield ()
        elif sys.stderr.isatty():
            with _status_line() as update:
                yield (show, update)
        else:
            yield (show,)


def _tell_event(a: argparse.Namespace, tell: Tell, event: Event) -> None:
    kinds = ["decision", "result", "notice"]
    if a.compare:
        kinds.append("run")
    if a.verbose and event["event"] == "step":
        for line in step_lines(event):
            tell(line)
    if event["event"] in kinds:
        tell(describe(event)[:LINE_CHARS])


def step_lines(step: Event) -> Iterator[str]:
    """A step as mini-swe-agent prints it: thought, action, observation and cost."""
    place = Place(*step["at"])
    params = ", ".join(f"{key}={value!r}" for key, value in step["params"].items())
    cost = f" ({usd(step['spent_usd'])} so far)" if "spent_usd" in step else ""
    yield f"{place} {step['action']}({params[:TEXT_CHARS]}){cost}"
    name = "error" if step["failed"] else "observation"
    for title, text in (("thought", step["memory"]), (name, step["observation"])):
        shown = text[:TEXT_CHARS].strip().replace("\n", "\n    ")
        if shown:
            yield f"    {title}: {shown}"


@dataclass
class Work:
    """A sub-task at work: who does it, since when, its step, and what it has spent."""

    who: str
    since_s: float
    step: int = 1
    spent_usd: float | None = 0.0

    def text(self, now_s: float) -> str:
        step = f" step {self.step}," if self.step > 1 else ""
        return f"{self.who},{step} {now_s - self.since_s:.0f} s"


class Status:
    """What it has cost, who is at work, and since when, from the events of a run.

    >>> status = Status(now=lambda: 10.0)
    >>> status.listen({"event": "run", "at": [0], "pool": {"main": "small"}})
    >>> status.text(now_s=12.0)
    'USD 0.0000; small decides, 2 s'
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.main = ""
        self.since_s = now()
        self.running: dict[tuple[int, ...], Work] = {}
        self.ended_usd: float | None = 0.0  # the cost of what has ended
        self.notice = ""  # the newest, as of an attempt that failed

    def listen(self, event: Event) -> None:
        at = tuple(event["at"][:2])
        match event["event"]:
            case "run":
                self.main = event["pool"]["main"]
                self.running.clear()
                self._decides()
            case "decision":
                self.ended_usd = add_usd(self.ended_usd, event["cost_usd"])
                self._decides()
            case "subtask":
                u = event["subtask"]
                who = f"{Place(*at)} ({u['id']}) {u['backend']}"
                self.running[at] = Work(who, self.now())
                self.notice = ""
            case "step":
                self._step(self.running.get(at), event)
            case "result":
                self.ended_usd = add_usd(self.ended_usd, event["cost_usd"])
                self.running.pop(at, None)
                self._decides()
            case "notice":
                self.notice = event["message"]

    def _decides(self) -> None:
        """The main agent works from now on, unless sub-tasks do."""
        self.since_s = self.now()
        self.notice = ""

    def _step(self, work: Work | None, event: Event) -> None:
        """The next step begins."""
        if work is not None:
            work.step = event["at"][2] + 1
            work.since_s = self.now()
            work.spent_usd = event.get("spent_usd", 0.0)
        self.notice = ""

    def text(self, now_s: float) -> str:
        """One line; what matters most comes first, as a narrow terminal cuts it off."""
        works = list(self.running.values())
        cost_usd = add_usd(self.ended_usd, *(work.spent_usd for work in works))
        parts = [usd(cost_usd)]
        if len(works) > 1:
            parts.append(f"{len(works)} sub-tasks")
        parts += [work.text(now_s) for work in works]
        if not works:
            who = f"{self.main} decides" if self.main else "starting"
            parts.append(f"{who}, {now_s - self.since_s:.0f} s")
        if self.notice:
            parts.append(self.notice)
        return printable("; ".join(parts))


@contextlib.contextmanager
def _status_line() -> Iterator[Listener]:
    """A spinner with the Status of the newest run."""
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task
    from rich.text import Text

    status = Status()

    class StatusColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            text = Text(status.text(time.monotonic()), no_wrap=True)
            text.truncate(max(console.width - 4, 20), overflow="ellipsis")
            return text

    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    columns = (SpinnerColumn(), StatusColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        shown.add_task("", total=None)
        interruption.hide_display = shown.stop
        yield status.listen
