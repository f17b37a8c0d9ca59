"""Why a run did what it did: the papers' equations with the numbers of the run.

    orchestra-min explain RUN            every decision and sub-task
    orchestra-min explain RUN r2         round 2
    orchestra-min explain RUN r2/t1      sub-task 1 of round 2

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

from orchestra.explain import deciding, placing, recorded_run
from orchestra.explain.panel import Panel
from orchestra.explain.recorded_run import RecordedRun
from orchestra.explain.rendering import html, text
from orchestra.runtime import command_line, console
from orchestra.runtime.summary import summary
from orchestra.runtime.user_code import is_spec, name_of
from orchestra.vocabulary import ConfigError, Delegate, Place

__all__ = ["Panel", "html", "main", "panels", "text"]


def panels(folder: Path) -> list[Panel]:
    """The panels of a run, round by round. Raises ConfigError or TapeMiss for a damaged folder."""
    run = recorded_run.read(folder)
    return [*_about_own_code(run), *_of_rounds(run)]


def _about_own_code(run: RecordedRun) -> Iterator[Panel]:
    """Which equations the user's own Python took the place of."""
    options = run.options
    seams = (
        ("20 and 22", "orchestrator", options.method),
        ("5-12", "scheduler", options.scheduler),
        ("19-20", "memory", options.memory),
    )
    for equation, seam, spec in seams:
        if is_spec(spec):
            own = f"its own {seam} ({name_of(spec)})"
            yield Panel("", equation, f"The run used {own}, so these are not shown.")


def _of_rounds(run: RecordedRun) -> Iterator[Panel]:
    is_last_chance = False
    whole = run
    for round, following in zip_longest(whole.rounds, whole.rounds[1:]):
        run = whole.in_round(round.state.round)
        has_scheduler = not is_spec(run.options.scheduler)
        has_memory = not is_spec(run.options.memory)
        is_last_chance |= round.state.round > round.state.rounds
        if has_memory:
            yield from deciding.context(run, round)
        yield from deciding.stop(run, round, is_last_chance)
        if has_scheduler:
            yield from placing.chosen_batch(run, round)
            yield from placing.executors(run, round)
        next_usd = following.state.budget_usd if following else None
        yield from deciding.budget(run, round, next_usd)
        # If nothing was affordable, the next decision is the last one.
        is_last_chance = isinstance(round.y_t, Delegate) and not round.ran


# ---- the command ---------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    p = argparse.ArgumentParser(
        prog="orchestra-min explain",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    p.add_argument("folder", type=Path, metavar="RUN", help="a run folder")
    p.add_argument("place", nargs="?", metavar="PLACE", help="as in r2 or r2/t1")
    p.add_argument("--json", action="store_true", help="the data, as a JSON array")
    a = p.parse_args(argv)

    def work() -> None:
        shown = panels(a.folder)
        if a.place is not None:
            shown = _at(a.place, shown)
        if a.json:
            console.put(json.dumps([asdict(panel) for panel in shown]))
        elif shown:
            console.put("\n\n".join(text(panel) for panel in shown))
        else:
            console.put("Nothing to explain: the run used none of these equations.")
        ending = summary(a.folder).ending
        if ending.why and not a.json:
            console.put(f"The run ended as {ending.state}: {ending.why}")

    return command_line.run_program(p.prog, work)


def _at(where: str, shown: Sequence[Panel]) -> list[Panel]:
    """The panels of a round or sub-task, and those of the whole run. Raises ConfigError."""
    place = Place.parse(where)
    if place is None:
        raise ConfigError(f"{where} is not a place; write r2 or r2/t1")
    prefix = f"r{place.round}"
    prefix += f"/t{place.subtask}" if place.subtask else ""
    found = [p for p in shown if f"{p.place}/".startswith(f"{prefix}/")]
    if not found:
        places = ", ".join(dict.fromkeys(p.place for p in shown if p.place))
        raise ConfigError(f"nothing to explain at {where}; places: {places or 'none'}")
    return [*(p for p in shown if not p.place), *found]
