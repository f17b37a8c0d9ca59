"""Why a run did what it did: the papers' equations with the numbers of the run.

    orchestra-min explain RUN            every decision and sub-task
    orchestra-min explain RUN r2         round 2
    orchestra-min explain RUN r2/t1      sub-task 1 of round 2
    orchestra-min explain RUN --code     the same, each equation with the code that computed it

Eq. 5 chooses the model of a sub-task, Eq. 7 its tools, and Eq. 9-10 the sub-tasks that run now.
Eq. 20 chooses what the main agent reads, Eq. 21 says what is left of the budget, and Eq. 22 when to
stop. Equations that the run did not use are not shown. > marks what was chosen.

The numbers are computed again by the functions that ran. No model is called, and no file that the
run names is loaded.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path

from orchestra.command import outside
from orchestra.command.flags import OneLineParser
from orchestra.command.outside import damage_is_one_line
from orchestra.command.programs import run_program
from orchestra.command.terminal import put
from orchestra.kernel.folder import Options
from orchestra.kernel.vocabulary import ConfigError, Delegate, Place
from orchestra.report.explain import deciding, placing
from orchestra.report.explain.panel import Panel
from orchestra.report.explain.rounds import Round, rounds
from orchestra.report.explain.text import text
from orchestra.report.totals import summary


def panels(folder: Path) -> list[Panel]:
    """The panels of a run, round by round. Raises ConfigError for a damaged folder."""
    found = rounds(folder)
    with damage_is_one_line(folder):
        return list(_panels_of(folder, found))


def _panels_of(folder: Path, found: Sequence[Round]) -> Iterator[Panel]:
    options = found[0].options if found else Options()
    has_own_method = ":" in options.method
    has_own_tools = bool(options.more.get("tools") or options.more.get("mcp"))
    if has_own_method:
        yield Panel(
            "",
            "5-20, 22",
            "The run used the user's own method: these are not recorded.",
        )
    elif has_own_tools:
        yield Panel("", "5-12", "What the user's own tools can do is not recorded.")
    logprobs = deciding.log_probabilities(folder)
    is_last_chance = False
    for round, following in zip_longest(found, found[1:]):
        is_last_chance |= round.state.round > round.state.rounds
        next_usd = following.state.budget_usd if following else None
        if not has_own_method:
            yield from deciding.context(round)
            yield from deciding.stop(round, logprobs, is_last_chance)
        if not (has_own_method or has_own_tools):
            yield from placing.chosen_batch(round)
            yield from placing.executors(round)
        yield from deciding.budget(round, next_usd)
        # If nothing was affordable, the next decision is the last one.
        is_last_chance = isinstance(round.y_t, Delegate) and not round.ran


# ---- the command ---------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    p = OneLineParser(
        prog="orchestra-min explain",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    p.add_argument("folder", type=Path, metavar="RUN", help="a run folder")
    p.add_argument("place", nargs="?", metavar="PLACE", help="as in r2 or r2/t1")
    p.add_argument("--code", action="store_true", help="with the code that computed it")
    p.add_argument("--json", action="store_true", help="the data, as a JSON array")

    def work() -> None:
        a = p.parse_intermixed_args(argv)
        outside.check_run(a.folder)
        shown = panels(a.folder)
        if a.place is not None:
            shown = _at(a.place, shown)
        if a.json:
            put(json.dumps([asdict(panel) for panel in shown]))
            return
        nothing = "Nothing to explain: the run used none of these equations."
        first = {p.source: p for p in reversed(shown)}  # code is shown once
        texts = [text(p, a.code and p is first[p.source]) for p in shown]
        put("\n\n".join(texts) or nothing)
        seen = summary(a.folder)
        if seen.origin:
            put(f"The run is a {seen.origin}.")
        if seen.ending.why:
            put(f"The run ended as {seen.ending.state}: {seen.ending.why}")

    return run_program(p.prog, work)


def _at(where: str, shown: Sequence[Panel]) -> list[Panel]:
    """The panels of a round or sub-task, and those of the whole run. Raises ConfigError."""
    place = Place.parse(where)
    if place is None:
        raise ConfigError(f"{where} is not a place; write r2 or r2/t1")
    prefix = (
        str(Place(place.round, place.subtask)) if place.subtask else f"r{place.round}"
    )
    found = [p for p in shown if f"{p.place}/".startswith(f"{prefix}/")]
    if not found:
        places = ", ".join(dict.fromkeys(p.place for p in shown if p.place))
        raise ConfigError(f"nothing to explain at {where}; places: {places or 'none'}")
    return [*(p for p in shown if not p.place), *found]
