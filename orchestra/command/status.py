"""In a terminal, a line that says who is at work, since when, and what it has cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from orchestra.command.terminal import interruption, printable, usd
from orchestra.kernel.folder import Event, Listener
from orchestra.kernel.money import add_usd
from orchestra.kernel.vocabulary import Place


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
    """Collects the status from the events of a run.

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
        kind = event["event"]
        at = tuple(event["at"][:2])
        self.notice = event["message"] if kind == "notice" else ""
        if kind == "run":
            self.main = event["pool"]["main"]
            self.running.clear()
        elif kind == "subtask":
            u = event["subtask"]
            who = f"{Place(*at)} ({u['id']}) {u['backend']}"
            self.running[at] = Work(who, self.now())
        elif kind == "step" and at in self.running:
            spent_usd = event.get("spent_usd", 0.0)
            who = self.running[at].who
            self.running[at] = Work(who, self.now(), event["at"][2] + 1, spent_usd)
        elif kind in ("decision", "result"):
            self.ended_usd = add_usd(self.ended_usd, event["cost_usd"])
            self.running.pop(at, None)
        if kind in ("run", "decision", "result"):
            self.since_s = (
                self.now()
            )  # the main agent works from now on, unless sub-tasks do

    def text(self, now_s: float) -> str:
        """One line; what matters most comes first, as a narrow terminal cuts it off."""
        works = list(self.running.values())
        parts = [usd(add_usd(self.ended_usd, *(work.spent_usd for work in works)))]
        if len(works) > 1:
            parts.append(f"{len(works)} sub-tasks")
        parts += [work.text(now_s) for work in works]
        if not works:
            who = f"{self.main} decides" if self.main else "starting"
            parts.append(f"{who}, {now_s - self.since_s:.0f} s")
        if self.notice:
            parts.append(self.notice)
        return printable("; ".join(parts))


@contextmanager
def status_line() -> Iterator[Listener]:
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
    with Progress(
        SpinnerColumn(), StatusColumn(), console=console, transient=True
    ) as shown:
        shown.add_task("", total=None)
        interruption.hide_display = shown.stop
        yield status.listen
