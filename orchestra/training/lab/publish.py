"""`--publish PAGE.md`: the table, the ranking and the curves in a page, between the lines

<!-- lab -->
<!-- end of lab -->
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestra.runtime.run_folder import write_whole
from orchestra.training.lab.curves import svg
from orchestra.training.lab.rank import ranking
from orchestra.training.lab.table import table
from orchestra.vocabulary import ConfigError

BEGIN, END = "<!-- lab -->\n", "<!-- end of lab -->\n"
PICTURE = "lab.svg"  # next to the page


def section(results: Sequence[dict[str, Any]]) -> str:
    """What stands between the lines."""
    curves = f"![Tasks solved against what was used]({PICTURE})"
    return "\n".join(["", table(results), curves, "", ranking(results), ""])


def publish(results: Sequence[dict[str, Any]], page: Path) -> None:
    """Write them. Raises ConfigError for a page without the lines."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ConfigError(
            f"--publish {page}: has no lines {BEGIN.strip()}, {END.strip()}"
        )
    write_whole(page, before + BEGIN + section(results) + END + after)
    write_whole(page.with_name(PICTURE), svg(results))
