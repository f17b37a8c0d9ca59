"""Compare two runs: where they part, and what that changed.

    orchestra-min diff RUN RUN

Calls are compared by their place in the run, as r1/main/a1 or r1/t2/s3, and by their request; the
address of a model is no part of it. Lines with - are of the first run, lines with + of the second.
Exit codes: 0 the runs did the same, 1 they differ, 2 a folder cannot be read.
"""

from __future__ import annotations

import argparse
import difflib
import json
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from orchestra.command import outside
from orchestra.command.flags import OneLineParser
from orchestra.command.outside import damage_is_one_line
from orchestra.command.programs import run_program
from orchestra.command.runs import table
from orchestra.command.terminal import put, usd
from orchestra.kernel.folder import (
    LAST_STEP,
    Event,
    Manifest,
    pool_row,
    read_events,
    read_manifest,
)
from orchestra.kernel.tape import (
    SUMMARY,
    Exchange,
    Failure,
    exchanges,
    seen,
)
from orchestra.kernel.vocabulary import ConfigError, Place
from orchestra.report.totals import summarize, totals_of

OF_A_MODEL = ("chat", "transcription")  # kinds of exchanges
NOT_COUNTED = "models"  # the list of models, which the terminal does not count either
NO_PART_OF_A_REPLY = ("id", "created", "usage")  # they differ in each answer
NOT_COMPARED = ("base_url", "api_key_env")  # of a backend
SUBTASK_FIELDS = ("instruction", "context", "agent", "backend", "tools", "needs")
COLUMNS = 80
SHOWN = 12  # lines of a parting
COMPARED = 200  # lines of a request in which it looks for them
BEFORE = 24  # characters of a long line before its first difference
VALUES_CHARS = 60  # of a setting in one line
QUESTION = "question"  # a setting
SHORT_CHARS = 60  # of an answer in the short form
# How two runs part: another request or reply at the same place, or a call that only one made
Way = Literal["request", "reply", "only first", "only second"]
Pair = tuple[Exchange | None, Exchange | None]
Row = Mapping[str, Any]


# ---- what two runs do not share ------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """A run in figures, and its Totals. Reused are also the calls that a fork copied."""

    run: str  # its folder
    answer: str
    state: str
    rounds: int
    model_calls: int
    tool_calls: int
    reused_model_calls: int
    reused_tool_calls: int
    tokens: int
    cost_usd: float | None
    paid_usd: float | None
    saved_usd: float | None
    latency_s: float | None  # of its last invocation; reused calls take no time


@dataclass(frozen=True)
class Changed:
    """A setting of run.json by its name, or the decision of a round ("" if there is none)."""

    name: str
    first: Any
    second: Any


@dataclass(frozen=True)
class Parting:
    """The first place where the runs part. The lines are those of the request if that differs, else
    of the reply. A run that made no call there has none.
    """

    place: str
    way: Way
    kind: str  # chat, search ...
    first: tuple[str, ...]
    second: tuple[str, ...]


@dataclass(frozen=True)
class Round:
    """The calls of a round, in which `same` have the same request and reply in both runs."""

    round: int
    first_calls: int
    second_calls: int
    same: int
    first_usd: float | None
    second_usd: float | None


@dataclass(frozen=True)
class Difference:
    """What two runs do not share. The first is the older one."""

    first: Figures
    second: Figures
    settings: tuple[Changed, ...]
    parting: Parting | None  # None: all calls are the same
    decisions: tuple[Changed, ...]
    rounds: tuple[Round, ...]
    same: int  # calls with the same request and reply at the same place, the list of models too
    moved: int  # calls of the second run whose request the first one made elsewhere

    @property
    def answer_changed(self) -> bool:
        return self.first.answer != self.second.answer

    @property
    def is_empty(self) -> bool:
        """Whether the runs did the same. Their settings may differ."""
        changed = self.answer_changed or self.first.state != self.second.state
        return self.parting is None and not self.decisions and not changed


def difference(first: Path, second: Path) -> Difference:
    """What two runs do not share. Both folders are only read, and may come from someone else.
    Raises ConfigError for a damaged one.
    """
    a = _Run(first)
    b = _Run(second)
    pairs = list(_pairs(a.calls, b.calls))
    same = [x for x, y in pairs if _is_same(x, y)]
    apart = [pair for pair in pairs if not _is_same(*pair)]
    return Difference(
        first=a.figures(),
        second=b.figures(),
        settings=tuple(_settings(a.manifest, b.manifest)),
        parting=_parting(*apart[0]) if apart else None,
        decisions=tuple(_decisions(a.events, b.events)),
        rounds=tuple(_rounds(a, b, same)),
        same=len(same),
        moved=_moved(pairs),
    )


class _Run:
    """A run folder that has been read. Its calls are in the order of their places."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)
        self.events = read_events(folder)
        tape = exchanges(folder / "tape.jsonl")
        self.summary = summarize(folder, self.manifest, self.events, tape)
        self.calls = sorted(tape, key=lambda call: _in_order(call.call))

    def figures(self) -> Figures:
        tools = [call for call in self.counted() if not _is_of_a_model(call)]
        totals = self.summary.totals
        return Figures(
            run=str(self.folder),
            answer=self.summary.answer,
            state=self.summary.ending.state,
            rounds=self.summary.rounds,
            model_calls=totals.calls,
            tool_calls=len(tools),
            reused_model_calls=totals.reused_calls,
            reused_tool_calls=sum(call.reused != "" for call in tools),
            tokens=totals.tokens,
            cost_usd=totals.cost_usd,
            paid_usd=totals.paid_usd,
            saved_usd=totals.saved_usd,
            latency_s=self.summary.latency_s,
        )

    def counted(self, round: int | None = None) -> list[Exchange]:
        """Its calls, or those of a round."""
        calls = [call for call in self.calls if call.request["kind"] != NOT_COUNTED]
        return [call for call in calls if round in (None, call.round)]

    def cost_usd(self, calls: Iterable[Exchange]) -> float | None:
        return totals_of(self.manifest, calls).cost_usd


def _is_of_a_model(call: Exchange) -> bool:
    return call.request["kind"] in OF_A_MODEL


def _in_order(call: str) -> tuple[int, int, int, str]:
    """The main agent's attempts come before the sub-tasks of their round, and the summary of a
    sub-task after its steps.
    """
    place = Place.parse(call)
    if place is None:
        return (0, 0, 0, call)
    step = LAST_STEP if place.part == SUMMARY else place.step
    return (place.round, place.subtask, step, place.part)


# ---- calls, aligned ------------------------------------------------------------------------------


def _is_same(x: Exchange | None, y: Exchange | None) -> bool:
    if x is None or y is None:
        return False
    return x.key == y.key and _reply(x) == _reply(y)


def _reply(call: Exchange) -> Any:
    """What came back, without what differs in each answer."""
    if isinstance(call.outcome, Failure):
        return call.outcome.row()
    answer = call.outcome.value
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, dict):
        return answer
    match data.get("choices"):
        case [{"message": message}, *_]:
            return message
    return {
        name: value for name, value in data.items() if name not in NO_PART_OF_A_REPLY
    }


def _pairs(first: Sequence[Exchange], second: Sequence[Exchange]) -> Iterator[Pair]:
    """The calls of both runs side by side, in the order of their places. At one place, equal
    requests form a pair; the others do so in their order.
    """
    at: dict[str, tuple[list[Exchange], list[Exchange]]] = defaultdict(lambda: ([], []))
    for call in first:
        at[call.call][0].append(call)
    for call in second:
        at[call.call][1].append(call)
    for place in sorted(at, key=_in_order):
        mine, theirs = at[place]
        left = []
        for call in theirs:
            equal = next(
                (n for n, other in enumerate(mine) if other.key == call.key), None
            )
            if equal is None:
                left.append(call)
            else:
                yield mine.pop(equal), call
        yield from zip_longest(mine, left)


def _moved(pairs: Iterable[Pair]) -> int:
    """How many requests the first run made at another place than the second."""
    here: Counter[str] = Counter()
    elsewhere: Counter[str] = Counter()
    for x, y in pairs:
        if x and y and x.key == y.key:
            continue
        here.update([x.key] if x else [])
        elsewhere.update([y.key] if y else [])
    return (here & elsewhere).total()


def _rounds(a: _Run, b: _Run, same: Sequence[Exchange | None]) -> Iterator[Round]:
    equal = Counter(
        call.round for call in same if call and call.request["kind"] != NOT_COUNTED
    )
    for number in sorted({call.round for call in (*a.counted(), *b.counted())}):
        first = a.counted(number)
        second = b.counted(number)
        yield Round(
            round=number,
            first_calls=len(first),
            second_calls=len(second),
            same=equal[number],
            first_usd=a.cost_usd(first),
            second_usd=b.cost_usd(second),
        )


def _parting(x: Exchange | None, y: Exchange | None) -> Parting:
    """The first pair of calls that are not the same."""
    call = x or y
    assert call is not None
    way: Way = "only first" if x else "only second"
    if x and y:
        way = "reply" if x.key == y.key else "request"
    shown = _request if way == "request" else _reply
    first = _lines(shown(x)) if x else ()
    second = _lines(shown(y)) if y else ()
    return Parting(call.call, way, call.request["kind"], first, second)


def _request(call: Exchange) -> Any:
    return seen(call.request)


def _lines(value: Any) -> tuple[str, ...]:
    """JSON as lines to read: one for each setting, and the lines of each text. Of a reply that is a
    text, the text alone.
    """
    if isinstance(value, dict) and value.get("role") == "assistant":
        value = value.get("content") or value
    if isinstance(value, dict):
        texts = (f"{name}: {_text(inner)}" for name, inner in sorted(value.items()))
        return tuple(line for text in texts for line in text.splitlines())
    return tuple(_text(value).splitlines())


def _text(value: Any) -> str:
    match value:
        case str():
            return value
        case {
            "role": str(role),
            "content": str(content),
        }:  # a message as a model reads it
            return f"[{role}]\n{content}"
        case [dict(), *_]:
            return "\n".join(map(_text, value))
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


# ---- decisions and settings ----------------------------------------------------------------------


def _decisions(first: Iterable[Event], second: Iterable[Event]) -> Iterator[Changed]:
    a = _decided(first)
    b = _decided(second)
    for number in sorted(a.keys() | b.keys()):
        x = a.get(number)
        y = b.get(number)
        if _compared(x) != _compared(y):
            yield Changed(f"round {number}", _sentence(x, y), _sentence(y, x))


def _decided(events: Iterable[Event]) -> dict[int, Row]:
    """The last attempt at a decision of each round: the decision, or {} for a mistake."""
    decided = (event for event in events if event["event"] == "decision")
    return {event["at"][0]: event.get("decision") or {} for event in decided}


def _compared(decision: Row | None) -> Any:
    """What makes a decision: its reasons do not."""
    if decision is None:
        return None
    return decision.get("action"), decision.get("answer", ""), _subtasks(decision)


def _sentence(decision: Row | None, other: Row | None) -> str:
    """A decision, without the sub-tasks that the other one has, too."""
    if decision is None:
        return ""
    if not decision:
        return "makes no usable decision"
    if decision.get("action") == "complete":
        return f"completes with {decision.get('answer', '')!r}"
    theirs = _subtasks(other or {})
    mine = _subtasks(decision)
    changed = [
        _words(id, u, theirs.get(id)) for id, u in mine.items() if theirs.get(id) != u
    ]
    return f"delegates {'; '.join(changed) or 'only ' + ', '.join(mine)}"


def _subtasks(decision: Row) -> dict[str, dict[str, Any]]:
    """The compared fields of each sub-task, by its id."""
    found = {}
    for u in decision.get("subtasks", ()):
        found[str(u.get("id"))] = {name: u.get(name) or "" for name in SUBTASK_FIELDS}
    return found


def _words(id: str, u: Row, other: Row | None) -> str:
    """A sub-task: its instruction and tools, or what is not as in the other one of its name."""
    if other is None or other["instruction"] != u["instruction"]:
        tools = f" with {_listed(u['tools'])}" if u["tools"] else ""
        return f"{id}{tools}: {u['instruction']}"
    changed = [field for field in SUBTASK_FIELDS if u[field] != other[field]]
    values = [f"{field}: {_listed(u[field]) or 'none'}" for field in changed]
    return f"{id}, {', '.join(values)}"


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _settings(first: Manifest, second: Manifest) -> Iterator[Changed]:
    a = _flat(first)
    b = _flat(second)
    for name in {**a, **b}:
        x, y = a.get(name), b.get(name)
        if isinstance(x, dict) and isinstance(y, dict):
            for key in {**x, **y}:
                if x.get(key) != y.get(key):
                    yield Changed(f"{name} {key}", x.get(key), y.get(key))
        elif x != y:
            yield Changed(name, x, y)


def _flat(manifest: Manifest) -> dict[str, Any]:
    """The settings of run.json by name, without the addresses of servers."""
    found: dict[str, Any] = {QUESTION: manifest.question}
    found["media"] = [f"{name} {sha256[:8]}" for _, name, sha256 in manifest.media]
    found["main"] = manifest.pool.main
    for backend in pool_row(manifest.pool)["backend"]:
        about = {
            name: value for name, value in backend.items() if name not in NOT_COMPARED
        }
        found[f"backend {backend['name']}"] = about
    for place, value in manifest.more.get("what_if", {}).items():
        found[f"--what-if {place}"] = value
    return {**found, **manifest.options.row()}


# ---- the whole report ----------------------------------------------------------------------------


def text(found: Difference) -> str:
    """The difference, as text of 80 columns."""
    parts = [
        f"- {found.first.run}\n+ {found.second.run}",
        _question(found),
        _parting_text(found.parting),
        _settings_text(found),
        _figures_text(found),
        _decisions_text(found),
        _calls_text(found),
    ]
    return "\n\n".join(part for part in parts if part)


def _question(found: Difference) -> str:
    """Said first: runs of two questions cannot be the same."""
    both = [(s.first, s.second) for s in found.settings if s.name == QUESTION]
    if not both:
        return ""
    return "\n".join(["The runs answer different questions.", *_marked(*both[0])])


def _parting_text(parting: Parting | None) -> str:
    if parting is None:
        return "The runs made the same calls."
    lines = textwrap.wrap(f"First difference: {where(parting)}.", COLUMNS)
    return "\n".join([*lines, *short_diff(parting.first, parting.second)])


def where(
    parting: Parting, first: str = "the first run", second: str = "the second run"
) -> str:
    """The place at which two runs of these names part, and how."""
    ways: dict[Way, str] = {
        "request": "its request differs",
        "reply": "the same request got another reply",
        "only first": f"only {first} made this call",
        "only second": f"only {second} made this call",
    }
    return f"{parting.place} ({parting.kind}): {ways[parting.way]}"


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
        lines[SHOWN:] = [f"  ... and {hidden} more line{'s' * (hidden > 1)}"]
    return lines


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    """How many characters or lines both begin with."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((n for n, (x, y) in pairs if x != y), min(len(first), len(second)))


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


def _settings_text(found: Difference) -> str:
    rows = []
    for s in found.settings:
        first = _json(s.first)
        second = _json(s.second)
        if s.name == QUESTION:
            continue
        if len(s.name) + len(first) + len(second) < VALUES_CHARS:
            rows.append(f"  {s.name:<12} {first} -> {second}")
        else:
            rows.append(f"  {s.name}")
            rows += [f"    {line}"[:COLUMNS] for line in _marked(first, second)]
    return _titled("Changed settings", rows)


def _json(value: Any) -> str:
    if value is None:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _titled(title: str, rows: Sequence[str]) -> str:
    return "\n".join([title, *rows]) if rows else ""


def _figures_text(found: Difference) -> str:
    """The answers, and a row for each figure."""
    a, b = found.first, found.second
    first = " ".join(a.answer.split()) or "(none)"
    second = " ".join(b.answer.split()) or "(none)"
    if a.answer == b.answer:
        rows = _wrapped(f"  {'answer':<12}{first}", "")
    else:
        rows = ["  answer", *_wrapped(f"- {first}"), *_wrapped(f"+ {second}")]
    figures = [("ended as", a.state, b.state)]
    for name in ("rounds", "model_calls", "tool_calls", "tokens"):
        figures.append(
            (name.replace("_", " "), str(getattr(a, name)), str(getattr(b, name)))
        )
    figures.append(("cost", usd(a.cost_usd), usd(b.cost_usd)))
    figures.append(("latency", _seconds(a.latency_s), _seconds(b.latency_s)))
    rows += [f"  {name:<12}{_arrow(*both)}" for name, *both in figures]
    if b.reused_model_calls or b.reused_tool_calls:
        rows += [f"  {line}" for line in textwrap.wrap(reuse(b), COLUMNS - 2)]
    return _titled("Outcome", rows)


def _arrow(first: str, second: str) -> str:
    return first if first == second else f"{first} -> {second}"


def _seconds(latency_s: float | None) -> str:
    return "unknown" if latency_s is None else f"{latency_s:.1f} s"


def reuse(run: Figures) -> str:
    """What a run took from another tape, and what it paid."""
    models, tools = run.reused_model_calls, run.reused_tool_calls
    made = _counted(run.model_calls - models, run.tool_calls - tools)
    saved = f"saved {usd(run.saved_usd)}"
    return (
        f"reused {_counted(models, tools)} ({saved}), made {made} ({usd(run.paid_usd)})"
    )


def _counted(of_models: int, of_tools: int) -> str:
    """As in 3 model calls and 1 tool call."""
    parts = []
    for count, name in ((of_models, "model call"), (of_tools, "tool call")):
        if count:
            parts.append(f"{count} {name}" + ("" if count == 1 else "s"))
    return " and ".join(parts) or "no call"


def _decisions_text(found: Difference) -> str:
    rows = []
    for d in found.decisions:
        rows.append(f"  {d.name}")
        for mark, sentence in (("-", d.first), ("+", d.second)):
            rows += _wrapped(
                f"{mark} {' '.join(sentence.split()) or 'has no such round'}"
            )
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


def _calls_text(found: Difference) -> str:
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
    return f"{title}\n{textwrap.indent(table('round calls same cost', rows), '  ')}"


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
        differ = ", ".join(
            f"{s.name} ({_shortened(_json(s.first))} -> {_shortened(_json(s.second))})"
            for s in found.settings
        )
        shown.append(f"no model call of {name} was reused; settings differ: {differ}")
    if found.parting:
        shown.append(f"first difference: {where(found.parting, name, 'this run')}")
    return [*shown, _about_answer(found)]


def lines_of(first: Path, second: Path) -> list[str]:
    """The short form for two folders; none if one of them cannot be read any more."""
    try:
        return lines(difference(first, second))
    except (ConfigError, OSError):
        return []


def changes(found: Difference, decisions: bool) -> Iterator[str]:
    """What a test refuses: a changed answer and, with `decisions`, each changed decision."""
    if found.answer_changed:
        yield _about_answer(found)
    for d in found.decisions if decisions else ():
        first = _shortened(d.first or "no such round")
        second = _shortened(d.second or "no such round")
        yield f"the decision of {d.name} changed: {first} -> {second}"


def _about_answer(found: Difference) -> str:
    """Whether the answer changed, in one line."""
    if not (found.first.answer or found.second.answer):
        return "neither run has an answer"
    if not found.answer_changed:
        return f"the answer is that of {Path(found.first.run).name}"
    first = _shortened(found.first.answer)
    second = _shortened(found.second.answer)
    return f"the answer changed: {first!r} -> {second!r}"


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= SHORT_CHARS else f"{text[: SHORT_CHARS - 4]} ..."


# ---- the command ---------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    p = OneLineParser(
        prog="orchestra-min diff",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    for name in ("first", "second"):
        p.add_argument(name, type=Path, metavar="RUN", help=f"the {name} run folder")
    p.add_argument("--json", action="store_true", help="the data, as one JSON object")

    def work() -> int:
        a = p.parse_args(argv)
        for folder in (a.first, a.second):
            outside.check_run(folder)
        with damage_is_one_line(a.second):
            found = difference(a.first, a.second)
            shown = json.dumps(asdict(found)) if a.json else text(found)
        put(shown)
        return 0 if found.is_empty else 1

    return run_program(p.prog, work)
