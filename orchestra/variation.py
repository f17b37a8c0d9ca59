"""Two runs compared: where they part, and what that changed.

Calls are aligned by their place in the run (r1/main/a1, r1/t2/s3 ...), and at one place by their
request. Two requests are equal if the model sees the same: the address of the server is left out.
Of the two runs, the first is the older one, as the recording, and the second the newer one.

Both folders are only read. They may come from someone else.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple

from orchestra.money import add_usd
from orchestra.runtime import jsonl, tape_file, trajectory
from orchestra.runtime.run_folder import Manifest, read_manifest
from orchestra.runtime.summary import Prices, Summary, summarized
from orchestra.runtime.trajectory import Event
from orchestra.vocabulary import SUMMARY, Place

OF_A_MODEL = ("chat", "transcription")  # kinds of exchanges
NOT_COUNTED = "models"  # the list of models, which the terminal does not count either
NO_PART_OF_A_REPLY = ("id", "created", "usage")  # they differ in each answer
NOT_COMPARED = ("base_url", "api_key_env")  # of a backend
SUBTASK_FIELDS = ("instruction", "context", "agent", "backend", "tools", "needs")
# How two runs part: another request or reply at the same place, or a call that only one made
Way = Literal["request", "reply", "only first", "only second"]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Figures:
    """A run in figures. Costs are those of all its calls; `saved_usd` is the part that it took from
    another tape, `paid_usd` the rest. Reused are also the calls that a fork copied.
    """

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
class Setting:
    """A setting of run.json that the two runs do not share."""

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
class Decisions:
    """The decisions of a round that differ, each as a sentence; "" if there is none."""

    round: int
    first: str
    second: str


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
    """What two runs do not share."""

    first: Figures
    second: Figures
    settings: tuple[Setting, ...]
    parting: Parting | None  # None: all calls are the same
    decisions: tuple[Decisions, ...]  # that changed
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
    """What two runs do not share. Raises ConfigError and TapeMiss for a damaged folder."""
    a = _Run(first)
    b = _Run(second)
    pairs = list(_pairs(a.calls, b.calls))
    same = [x for x, y in pairs if x and y and x.does_the_same(y)]
    apart = next(
        ((x, y) for x, y in pairs if not (x and y and x.does_the_same(y))), None
    )
    return Difference(
        first=a.figures(),
        second=b.figures(),
        settings=tuple(_settings(a.manifest, b.manifest)),
        parting=_parting(a, b, *apart) if apart else None,
        decisions=tuple(_decisions(a.events, b.events)),
        rounds=tuple(_rounds(a.calls, b.calls, same)),
        same=len(same),
        moved=_moved(pairs),
    )


# ---- a run ---------------------------------------------------------------------------------------


class Call(NamedTuple):
    """An exchange on a tape, without what it holds."""

    offset: int  # of its line
    place: str
    kind: str
    request: str  # the SHA-256 of what the model or the tool saw
    reply: str
    tokens: int
    cost_usd: float | None
    reused: bool

    @property
    def is_of_a_model(self) -> bool:
        return self.kind in OF_A_MODEL

    @property
    def round(self) -> int:
        return tape_file.round_of(self.place)

    def does_the_same(self, other: Call) -> bool:
        return (self.request, self.reply) == (other.request, other.reply)


class _Run:
    """A run folder that has been read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tape = folder / "tape.jsonl"
        self.manifest = read_manifest(folder)
        self.events = trajectory.read(folder / "trajectory.jsonl")
        rows = tape_file.exchanges(self.tape)
        self.summary: Summary = summarized(folder, self.manifest, self.events, rows)
        prices = Prices(self.manifest)
        entries = tape_file.entries(self.tape)
        calls = [_call(e, self.row_at(e.offset), prices) for e in entries]
        self.calls = sorted(calls, key=lambda call: _in_order(call.place))

    def row_at(self, offset: int) -> Row:
        return jsonl.row_at(self.tape, offset)

    def figures(self) -> Figures:
        calls = _counted(self.calls)
        of_models = [call for call in calls if call.is_of_a_model]
        reused = [call for call in calls if call.reused]
        reused_of_models = sum(call.is_of_a_model for call in reused)
        return Figures(
            run=str(self.folder),
            answer=self.summary.answer,
            state=self.summary.ending.state,
            rounds=self.summary.rounds,
            model_calls=len(of_models),
            tool_calls=len(calls) - len(of_models),
            reused_model_calls=reused_of_models,
            reused_tool_calls=len(reused) - reused_of_models,
            tokens=sum(call.tokens for call in self.calls),
            cost_usd=_cost(self.calls),
            paid_usd=_cost(call for call in self.calls if not call.reused),
            saved_usd=_cost(reused),
            latency_s=self.summary.latency_s,
        )


def _counted(calls: Iterable[Call]) -> list[Call]:
    return [call for call in calls if call.kind != NOT_COUNTED]


def _cost(calls: Iterable[Call]) -> float | None:
    return add_usd(*(call.cost_usd for call in calls))


def _call(entry: tape_file.Entry, row: Row, prices: Prices) -> Call:
    as_paid = {name: value for name, value in row.items() if name != "reused"}
    total = prices.of(as_paid)
    return Call(
        offset=entry.offset,
        place=entry.call,
        kind=row["request"]["kind"],
        request=tape_file.key_of(row["request"]),
        reply=_hash(_reply(row)),
        tokens=total.tokens,
        cost_usd=total.cost_usd,
        reused="reused" in row or "kept" in row,
    )


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _seen(row: Row) -> Row:
    """The part of the request that its key holds."""
    return tape_file.without_address(row["request"])


def _reply(row: Row) -> Any:
    """What came back, without what differs in each answer."""
    if "failure" in row:
        return row["failure"]
    answer = row["answer"]
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, dict):
        return answer
    choices = data.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0].get("message")
    return {k: v for k, v in data.items() if k not in NO_PART_OF_A_REPLY}


def _in_order(place: str) -> tuple[int, int, int, str]:
    """The main agent's attempts come before the sub-tasks of their round, and the summary of a
    sub-task after its steps.
    """
    found = Place.parse(place)
    if found is None:
        return (0, 0, 0, place)
    step = trajectory.LAST if found.part == SUMMARY else found.step
    return (found.round, found.subtask, step, found.part)


# ---- calls, aligned ------------------------------------------------------------------------------


Pair = tuple[Call | None, Call | None]


def _pairs(first: Sequence[Call], second: Sequence[Call]) -> Iterator[Pair]:
    """The calls of both runs side by side, in the order of their places."""
    at: dict[str, tuple[list[Call], list[Call]]] = defaultdict(lambda: ([], []))
    for call in first:
        at[call.place][0].append(call)
    for call in second:
        at[call.place][1].append(call)
    for place in sorted(at, key=_in_order):
        yield from _pairs_at_one_place(*at[place])


def _pairs_at_one_place(
    first: Sequence[Call], second: Sequence[Call]
) -> Iterator[Pair]:
    """Equal requests form a pair; the others do so in their order."""
    waiting: dict[str, deque[Call]] = defaultdict(deque)
    for call in first:
        waiting[call.request].append(call)
    left: list[Call] = []
    paired: set[int] = set()  # offsets on the first tape
    for call in second:
        if waiting[call.request]:
            equal = waiting[call.request].popleft()
            paired.add(equal.offset)
            yield equal, call
        else:
            left.append(call)
    others = [call for call in first if call.offset not in paired]
    yield from zip_longest(others, left)


def _moved(pairs: Iterable[Pair]) -> int:
    """How many requests the first run made at another place than the second."""
    here: Counter[str] = Counter()
    elsewhere: Counter[str] = Counter()
    for x, y in pairs:
        if x and y and x.request == y.request:
            continue
        here.update([x.request] if x else [])
        elsewhere.update([y.request] if y else [])
    return (here & elsewhere).total()


def _rounds(
    first: Sequence[Call], second: Sequence[Call], same: Sequence[Call]
) -> Iterator[Round]:
    equal = Counter(call.round for call in _counted(same))
    in_first = _counted(first)
    in_second = _counted(second)
    for number in sorted({call.round for call in (*in_first, *in_second)}):
        of_first = [call for call in in_first if call.round == number]
        of_second = [call for call in in_second if call.round == number]
        yield Round(
            round=number,
            first_calls=len(of_first),
            second_calls=len(of_second),
            same=equal[number],
            first_usd=_cost(of_first),
            second_usd=_cost(of_second),
        )


def _parting(a: _Run, b: _Run, x: Call | None, y: Call | None) -> Parting:
    """The first pair of calls that are not the same."""
    first = a.row_at(x.offset) if x else None
    second = b.row_at(y.offset) if y else None
    call = x or y
    assert call is not None
    if x and y:
        way: Way = "reply" if x.request == y.request else "request"
    else:
        way = "only first" if x else "only second"
    shown = _seen if way == "request" else _reply
    return Parting(
        place=call.place,
        way=way,
        kind=call.kind,
        first=_lines(shown(first)) if first else (),
        second=_lines(shown(second)) if second else (),
    )


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
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(inner, dict) for inner in value):
        return "\n".join(map(_message, value))
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _message(message: Row) -> str:
    """A message of a chat as a model reads it."""
    role = message.get("role")
    content = message.get("content")
    if isinstance(role, str) and isinstance(content, str):
        return f"[{role}]\n{content}"
    return json.dumps(message, ensure_ascii=False, sort_keys=True)


# ---- decisions -----------------------------------------------------------------------------------


def _decisions(first: Iterable[Event], second: Iterable[Event]) -> Iterator[Decisions]:
    a = _decided(first)
    b = _decided(second)
    for number in sorted(a.keys() | b.keys()):
        x = a.get(number)
        y = b.get(number)
        if _compared(x) != _compared(y):
            yield Decisions(number, _sentence(x, y), _sentence(y, x))


def _decided(events: Iterable[Event]) -> dict[int, Row]:
    """The last attempt at a decision of each round: the decision, or {} for a mistake."""
    found: dict[int, Row] = {}
    for event in events:
        if event["event"] == "decision":
            found[event["at"][0]] = event.get("decision") or {}
    return found


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
        _words(name, u, theirs.get(name))
        for name, u in mine.items()
        if theirs.get(name) != u
    ]
    return f"delegates {'; '.join(changed) or 'only ' + ', '.join(mine)}"


def _subtasks(decision: Row) -> dict[str, dict[str, Any]]:
    """The compared fields of each sub-task, by its id."""
    found = {}
    for u in decision.get("subtasks", ()):
        found[str(u.get("id"))] = {name: u.get(name) or "" for name in SUBTASK_FIELDS}
    return found


def _words(name: str, u: Row, other: Row | None) -> str:
    """A sub-task: its instruction and tools, or what is not as in the other one of its name."""
    if other is None or other["instruction"] != u["instruction"]:
        tools = f" with {_listed(u['tools'])}" if u["tools"] else ""
        return f"{name}{tools}: {u['instruction']}"
    changed = [field for field in SUBTASK_FIELDS if u[field] != other[field]]
    values = [f"{field}: {_listed(u[field]) or 'none'}" for field in changed]
    return f"{name}, {', '.join(values)}"


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


# ---- settings ------------------------------------------------------------------------------------


def _settings(first: Manifest, second: Manifest) -> Iterator[Setting]:
    a = _flat(first)
    b = _flat(second)
    for name in {**a, **b}:
        if a.get(name) != b.get(name):
            yield Setting(name, a.get(name), b.get(name))


def _flat(manifest: Manifest) -> dict[str, Any]:
    """The settings of run.json by name, without the addresses of servers."""
    row = manifest.row()
    found: dict[str, Any] = {"question": manifest.question}
    found["media"] = [f"{m.name} {m.sha256[:8]}" for m in manifest.media]
    found["main"] = manifest.pool.main
    if manifest.pool.main_only:
        found["main_only"] = True
    for backend in row["pool"]["backend"]:
        about = {k: v for k, v in backend.items() if k not in NOT_COMPARED}
        found[f"backend {backend['name']}"] = about
    options = row["options"]
    if manifest.options.texts:
        options = {**options, "texts": _digests(manifest.options.texts)}
    return {**found, **options}


def _digests(files: Mapping[str, str]) -> list[str]:
    """The names of the files of --texts, each with the beginning of its SHA-256."""
    rows = []
    for name, text in files.items():
        rows.append(f"{name} {hashlib.sha256(text.encode()).hexdigest()[:8]}")
    return rows
