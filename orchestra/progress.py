"""The event stream on a terminal: the rounds, and the sub-tasks of each side by side."""

from __future__ import annotations

import time

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orchestra.log import describe, printable, seconds, usd
from orchestra.trajectory import Event


class Progress:
    """Rounds, and the sub-tasks of the round side by side, on standard error."""

    def __init__(self, console: Console | None = None) -> None:
        self._rows: dict[tuple[int, int], dict[str, str]] = {}
        self._started: dict[tuple[int, int], float] = {}
        self._headline = "deciding ..."
        self._live = Live(
            get_renderable=self._table,
            console=console or Console(stderr=True, markup=False, emoji=False),
            refresh_per_second=4,
        )
        self._live.start()

    def __call__(self, event: Event) -> None:
        key = (event["at"][0], event["at"][1] if len(event["at"]) > 1 else 0)
        match event["event"]:
            case "decision":
                self._headline = printable(describe(event))
            case "subtask":
                u = event["subtask"]
                self._started[key] = time.monotonic()
                self._rows[key] = {
                    "id": u["id"],
                    "what": printable(u["instruction"]),
                    "status": "running",
                    "cost": "",
                }
            case "step":
                self._rows[key]["status"] = printable(f"step {event['at'][2]}: {event['action']}")
            case "result":
                self._rows[key] |= {
                    "status": printable(f"{event['status']}: {event['answer'] or event['error']}"),
                    "cost": usd(event["cost_usd"]),
                }
                self._rows[key]["time"] = seconds(event)
            case "end":
                self._headline = printable(describe(event))

    def _table(self) -> Table:
        table = Table(
            title=Text(self._headline), title_justify="left", box=None, header_style="bold"
        )
        for name, width in (
            ("round", 5),
            ("task", 6),
            ("what", 40),
            ("status", 50),
            ("time", 8),
            ("cost", 12),
        ):
            table.add_column(name, max_width=width, no_wrap=True, overflow="ellipsis")
        for (round_, j), row in list(self._rows.items()):
            elapsed = row.get("time") or f"{time.monotonic() - self._started[round_, j]:.0f} s"
            cells = str(round_), row["id"], row["what"], row["status"], elapsed, row["cost"]
            table.add_row(*map(Text, cells))  # a model wrote some: no markup of it is obeyed
        return table

    def close(self) -> None:
        self._live.stop()
