"""Compare two runs: where they part, and what that changed.

    orchestra-min diff RUN RUN

Calls are compared by their place in the run, as r1/main/a1 or r1/t2/s3, and by their request. Lines
with - are of the first run, lines with + of the second. Exit codes: 0 the runs did the same, 1 they
differ, 2 a folder cannot be read.
"""

from __future__ import annotations

import argparse
import difflib
import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

from orchestra.runtime import command_line, console
from orchestra.runtime.tape import TapeMiss
from orchestra.runtime.trajectory import usd
from orchestra.variation import Difference, Figures, Parting, Setting, difference
from orchestra.vocabulary import ConfigError

COLUMNS = 80
SHOWN = 12  # lines of a parting
COMPARED = 200  # lines of a request in which it looks for them
BEFORE = 24  # characters of a long line before its first difference
VALUES_CHARS = 60  # of a setting in one line
QUESTION = "question"  # a setting
ANSWER_CHARS = 60  # in the short form


# ---- the whole report ----------------------------------------------------------------------------


def text(found: Difference) -> str:
    """The difference, as text of 80 columns."""
    parts = [
        f"- {found.first.run}\n+ {found.second.run}",
        _question(found),
        _parting(found.parting),
        _settings(found),
        _figures(found),
        _decisions(found),
        _calls(found),
    ]
    return "\n\n".join(part for part in parts if part)


def _question(found: Difference) -> str:
    """Said first: runs of two questions cannot be the same."""
    both = [(s.first, s.second) for s in found.settings if s.name == QUESTION]
    if not both:
        return ""
    return "\n".join(["The runs have two questions.", *_marked(*both[0])])


def _parting(parting: Parting | None) -> str:
    if parting is None:
        return "The runs made the same calls."
    lines = textwrap.wrap(f"The runs part at {where(parting)}.", COLUMNS)
    lines += short_diff(parting.first, parting.second)
    return "\n".join(lines)


def where(
    parting: Parting, first: str = "the first run", second: str = "the second run"
) -> str:
    """The place at which two runs of these names part, and how."""
    call = f"{parting.place} ({parting.kind})"
    match parting.way:
        case "request":
            return f"{call}: the request is another one"
        case "reply":
            return f"{call}: the same request got another reply"
        case "only first":
            return f"{call}: only {first} made this call"
        case "only second":
            return f"{call}: only {second} made this call"


def short_diff(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """The lines that differ, with - and +, and one line before them. A long line is shown from
    shortly before its first difference.
    """
    if not (first and second):  # one of the runs made no call: how it begins
        shown = [_marked(*pair) for pair in zip_longest(first, second)][: SHOWN // 3]
        return [line for lines in shown for line in lines]
    begin = _common(first, second)
    lines = [f"  {first[begin - 1]}"[:COLUMNS]] if begin else []
    a = first[begin : begin + COMPARED]
    b = second[begin : begin + COMPARED]
    blocks = difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    for kind, a_from, a_to, b_from, b_to in blocks:
        if kind != "equal":
            for pair in zip_longest(a[a_from:a_to], b[b_from:b_to]):
                lines += _marked(*pair)
    hidden = len(lines) - SHOWN
    if hidden > 0:
        lines[SHOWN:] = [f"  ... and {hidden} more lines"]
    return lines


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    """How many characters or lines both begin with."""
    count = 0
    for x, y in zip(first, second, strict=False):
        if x != y:
            break
        count += 1
    return count


def _marked(first: str | None, second: str | None) -> Iterator[str]:
    """A line of each run, as far as there is one."""
    begin = _common(first or "", second or "")
    if first is not None:
        yield f"- {_from(first, begin)}".rstrip()
    if second is not None:
        yield f"+ {_from(second, begin)}".rstrip()


def _from(line: str, begin: int) -> str:
    """A line, cut to the width of the terminal around the character `begin`."""
    room = COLUMNS - 2
    if len(line) <= room:
        return line
    start = max(0, begin - BEFORE)
    shown = f"...{line[start:]}" if start else line
    return shown if len(shown) <= room else f"{shown[: room - 3]}..."


def _settings(found: Difference) -> str:
    rows = []
    for s in found.settings:
        if s.name == QUESTION:
            continue
        first = _json(s.first)
        second = _json(s.second)
        if len(s.name) + len(first) + len(second) < VALUES_CHARS:
            rows.append(f"  {s.name:<12} {first} -> {second}")
        else:
            rows.append(f"  {s.name}")
            rows += [f"    {line}"[:COLUMNS] for line in _marked(first, second)]
    return _titled("Changed settings", rows)


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _titled(title: str, rows: Sequence[str]) -> str:
    return "\n".join([title, *rows]) if rows else ""


def _figures(found: Difference) -> str:
    """The answers, and a row for each figure."""
    a, b = found.first, found.second
    rows = _answers(a, b)
    for name, first, second in _rows(a, b):
        rows.append(f"  {name:<12}{_arrow(first, second)}")
    if b.reused_model_calls or b.reused_tool_calls:
        rows += [f"  {line}" for line in textwrap.wrap(reuse(b), COLUMNS - 2)]
    return _titled("Outcome", rows)


def _answers(a: Figures, b: Figures) -> list[str]:
    if a.answer == b.answer:
        return _wrapped(f"  {'answer':<12}{_one_line(a.answer)}", "")
    shown = _wrapped(f"- {_one_line(a.answer)}") + _wrapped(f"+ {_one_line(b.answer)}")
    return ["  answer", *shown]


def _one_line(answer: str) -> str:
    return " ".join(answer.split()) or "(none)"


def _arrow(first: str, second: str) -> str:
    return first if first == second else f"{first} -> {second}"


def _rows(a: Figures, b: Figures) -> Iterator[tuple[str, str, str]]:
    yield "ended as", a.state, b.state
    for name in ("rounds", "model_calls", "tool_calls", "tokens"):
        yield name.replace("_", " "), str(getattr(a, name)), str(getattr(b, name))
    yield "cost", usd(a.cost_usd), usd(b.cost_usd)
    yield "latency", _seconds(a.latency_s), _seconds(b.latency_s)


def _seconds(latency_s: float | None) -> str:
    return "unknown" if latency_s is None else f"{latency_s:.1f} s"


def reuse(run: Figures) -> str:
    """What a run took from another tape, and what it paid."""
    reused = _counted(run.reused_model_calls, run.reused_tool_calls)
    made = _counted(
        run.model_calls - run.reused_model_calls, run.tool_calls - run.reused_tool_calls
    )
    saved = f"saved {usd(run.saved_usd)}"
    return f"reused {reused} ({saved}), made {made} ({usd(run.paid_usd)})"


def _counted(of_models: int, of_tools: int) -> str:
    """As in 3 model calls and 1 tool call."""
    parts = []
    for count, name in ((of_models, "model call"), (of_tools, "tool call")):
        if count:
            parts.append(f"{count} {name}" + ("" if count == 1 else "s"))
    return " and ".join(parts) or "no call"


def _decisions(found: Difference) -> str:
    rows = []
    for d in found.decisions:
        rows.append(f"  round {d.round}")
        for mark, sentence in (("-", d.first), ("+", d.second)):
            line = f"{mark} {' '.join(sentence.split()) or 'has no such round'}"
            rows += _wrapped(line)
    return _titled("Changed decisions", rows)


def _wrapped(line: str, indent: str = "    ") -> list[str]:
    """At most three lines."""
    return textwrap.wrap(
        line[: 4 * COLUMNS],
        COLUMNS,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        max_lines=3,
        placeholder=" ...",
    )


def _calls(found: Difference) -> str:
    """A row for each round, as far as the runs have calls in it."""
    rows = []
    for r in found.rounds:
        row = {
            "round": r.round or "-",
            "calls": _arrow(str(r.first_calls), str(r.second_calls)),
            "same": r.same,
            "cost": _arrow(usd(r.first_usd), usd(r.second_usd)),
        }
        rows.append(row)
    title = f"Calls by round; the same in both runs: {found.same}"
    if found.moved:
        title += f", the same request at another place: {found.moved}"
    table = console.table("round calls same cost", rows)
    return f"{title}\n{textwrap.indent(table, '  ')}"


# ---- the short form ------------------------------------------------------------------------------


def lines(found: Difference) -> list[str]:
    """What the second run took from the first, or why it took nothing, where they part, and whether
    the answer changed: at most four lines.
    """
    name = Path(found.first.run).name
    shown = []
    if found.second.reused_model_calls or found.second.reused_tool_calls:
        shown.append(reuse(found.second))
    if found.settings and not found.second.reused_model_calls:
        differ = ", ".join(map(_changed, found.settings))
        shown.append(f"no model call of {name} was reused; settings differ: {differ}")
    if found.parting:
        place = where(found.parting, name, "this run")
        shown.append(f"parts from {name} at {place}")
    shown.append(_about_answer(found))
    return shown


def _changed(setting: Setting) -> str:
    """A setting of both runs in a few words."""
    first = _shortened(_json(setting.first))
    second = _shortened(_json(setting.second))
    return f"{setting.name} ({first} -> {second})"


def lines_of(first: Path, second: Path) -> list[str]:
    """The short form for two folders; none if one of them cannot be read any more."""
    try:
        return lines(difference(first, second))
    except (ConfigError, TapeMiss, OSError):
        return []


def changes(found: Difference, decisions: bool) -> Iterator[str]:
    """What a test refuses: a changed answer and, with `decisions`, each changed decision."""
    if found.answer_changed:
        yield _about_answer(found)
    for d in found.decisions if decisions else ():
        first = _shortened(d.first or "no such round")
        second = _shortened(d.second or "no such round")
        yield f"the decision of round {d.round} changed: {first} -> {second}"


def _about_answer(found: Difference) -> str:
    """Whether the answer changed, in one line."""
    if not found.answer_changed:
        return f"the answer is that of {Path(found.first.run).name}"
    first = _shortened(found.first.answer)
    second = _shortened(found.second.answer)
    return f"the answer changed: {first!r} -> {second!r}"


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= ANSWER_CHARS else f"{text[: ANSWER_CHARS - 4]} ..."


# ---- the command ---------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    p = argparse.ArgumentParser(
        prog="orchestra-min diff",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    for name in ("first", "second"):
        p.add_argument(name, type=Path, metavar="RUN", help=f"the {name} run folder")
    p.add_argument("--json", action="store_true", help="the data, as one JSON object")
    a = p.parse_args(argv)

    def work() -> int:
        found = difference(a.first, a.second)
        console.put(json.dumps(asdict(found)) if a.json else text(found))
        return 0 if found.is_empty else 1

    return command_line.run_program(p.prog, work)
