"""--log: the metrics go to a tracker as well, through its own library.

Each start of the program, a resume too, is a run of its own there, with the name of --out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

PROJECT = "da-grpo"
Row = dict[str, float]


class Tracker(Protocol):
    """Where the metrics of a run are shown."""

    def log(self, row: Row, step: int) -> None:
        """The metrics after `step` steps."""

    def close(self) -> None:
        """The run has ended."""


class Silent:
    """No --log: metrics.jsonl alone."""

    def log(self, row: Row, step: int) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


class Hosted:
    """trackio or wandb, which have the same functions."""

    def __init__(self, library: Any, out: Path, options: dict[str, Any]) -> None:
        self.library = library
        library.init(project=PROJECT, name=out.resolve().name, config=options)

    def log(self, row: Row, step: int) -> None:
        self.library.log(row, step=step)

    def close(self) -> None:
        self.library.finish()


class Tensorboard:
    """Event files in OUT/tensorboard. A resume replaces what was logged after its checkpoint."""

    def __init__(self, out: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = str(out / "tensorboard")
        self.writer = SummaryWriter(folder, purge_step=step + 1)

    def log(self, row: Row, step: int) -> None:
        for name, value in row.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


def start(log: str | None, out: Path, options: dict[str, Any], step: int) -> Tracker:
    """The tracker of --log, from the number of steps taken so far."""
    if log is None:
        return Silent()
    if log == "tensorboard":
        return Tensorboard(out, step)
    from importlib import import_module

    return Hosted(import_module(log), out, options)
