"""A run on disk: one folder that can be copied, replayed and resumed.

    run.json          the question, its media, the pool and the options: all that a replay needs
    tape.jsonl        every exchange (tape.py)
    trajectory.jsonl  tau = (s_1, y_1, Z_1, ...): one event a line, written as it happens
    media/  work/     the files of the task; the folders of sub-agents

What else run.json has, among its options or next to them, a method or a layer reads from `more`.
The kernel only keeps it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

from orchestra.kernel.money import Purse, add_usd
from orchestra.kernel.prompts import visible
from orchestra.kernel.tape import Appender, Redact, rows_of
from orchestra.kernel.vocabulary import (
    Backend,
    Complete,
    ConfigError,
    Decision,
    Media,
    Modality,
    Place,
    Pool,
    Price,
    Reply,
    State,
    Task,
)

VERSION = 3  # of run.json
EVENT_VERSION = 5  # of a line of trajectory.jsonl
LAST_STEP = 1 << 30  # the step in the place of a result: after every step
Event = dict[str, Any]
Listener = Callable[[Event], None]


# ---- run.json ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Options:
    """The settings of a run that the kernel knows. `method` and `agent` are names for run.json;
    the kernel gets the objects. `k_max` is K_max of Eq. 10; None: no limit. `parallel`: threads.

    >>> Options.of(method="aorchestra", rounds=3, context="full").more
    {'context': 'full'}
    """

    method: str = ""
    agent: str = ""
    rounds: int | None = None  # the method's own
    steps: int = 30  # of a sub-agent
    k_max: int | None = None
    parallel: int = 8
    budget_usd: float | None = None
    timeout_s: float = 120.0  # of one attempt of a call
    patience_s: float = 120.0  # of waiting at rate limits, in one call
    context_tokens: int = 0  # L_ctx of Eq. 20; 0: the method's own
    more: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, **given: Any) -> Options:
        """Options of these names; those that the kernel does not know are kept in `more`."""
        known = {f.name for f in fields(cls)} - {"more"}
        own = {name: value for name, value in given.items() if name in known}
        more = {name: value for name, value in given.items() if name not in known}
        return cls(**own, more=more)

    def row(self) -> dict[str, Any]:
        """All options as run.json has them."""
        row = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "more"}
        return {**row, **self.more}


@dataclass(frozen=True)
class Manifest:
    """What run.json holds. `more`: its keys of layers."""

    question: str
    media: tuple[tuple[Modality, str, str], ...]  # modality, name, SHA-256
    pool: Pool
    options: Options
    more: Mapping[str, Any] = field(default_factory=dict)

    def task(self, folder: Path) -> Task:
        """Raises ConfigError for a file that is missing or not the one of the run."""
        media = []
        for modality, name, sha256 in self.media:
            path = folder / "media" / Path(name).name
            if not path.is_file() or sha256_of(path) != sha256:
                raise ConfigError(
                    f"{path} is missing or changed; copy the whole run folder"
                )
            media.append(Media(modality, name, path, sha256))
        return Task(self.question, tuple(media))

    def row(self) -> dict[str, Any]:
        """run.json, which is also the first event of a trajectory."""
        names = ("modality", "name", "sha256")
        return {
            "v": VERSION,
            "question": self.question,
            "media": [dict(zip(names, m, strict=True)) for m in self.media],
            "pool": pool_row(self.pool),
            "options": self.options.row(),
            **self.more,
        }


MANIFEST_KEYS = ("v", "question", "media", "pool", "options")


def read_manifest(folder: Path) -> Manifest:
    """Raises ConfigError: not a run folder, another version, a damaged file."""
    path = Path(folder) / "run.json"
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        if row["v"] != VERSION:
            raise ConfigError(f"{path} is of version {row['v']}, not {VERSION}")
        return manifest_of(row)
    except FileNotFoundError:
        raise ConfigError(f"{folder} is not a run folder (no run.json)") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from None
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as error:
        raise ConfigError(f"{path} is damaged: {error}") from None


def manifest_of(row: Mapping[str, Any]) -> Manifest:
    """Raises KeyError, TypeError or ValueError for a row that is not a run.json."""
    if not isinstance(row["question"], str):
        raise TypeError("the question is not a text")
    options = dict(row["options"])
    options.setdefault(
        "k_max", options.get("parallel")
    )  # of runs before there was k_max
    return Manifest(
        question=row["question"],
        media=tuple(map(_media_of, row["media"])),
        pool=pool_of(row["pool"]),
        options=Options.of(**options),
        more={key: value for key, value in row.items() if key not in MANIFEST_KEYS},
    )


def _media_of(row: Mapping[str, Any]) -> tuple[Modality, str, str]:
    if row["modality"] not in get_args(Modality):
        raise ValueError(f"{row['modality']!r} is not a modality")
    return row["modality"], row["name"], row["sha256"]


def pool_of(row: Mapping[str, Any]) -> Pool:
    """A pool as run.json has it. Raises KeyError, TypeError, ValueError."""
    backends = []
    for entry in row["backend"]:
        price = entry.get("price_usd_per_mtok")
        backends.append(
            Backend(
                **{**entry, "price_usd_per_mtok": Price(**price) if price else None}
            )
        )
    main = row.get("main") or backends[0].name
    if main not in [backend.name for backend in backends]:
        raise ValueError(f"{main!r} is not a backend")
    experts = row.get("expert_model_mapping") or {}
    return Pool(tuple(backends), main, row.get("engines") or {}, experts)


def pool_row(pool: Pool) -> dict[str, Any]:
    """A pool as run.json has it."""
    return {
        "backend": [asdict(b) for b in pool.backends],
        "main": pool.main,
        "engines": dict(pool.engines),
        "expert_model_mapping": dict(pool.experts),
    }


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def begin(
    folder: Path,
    manifest: Manifest,
    files: Sequence[tuple[Modality, Path]],
    redact: Redact = str,
) -> Manifest:
    """Make a run folder: copy the files, and write run.json as the last step. Returns the manifest
    with these files. Raises ConfigError.
    """
    if (
        folder.exists()
        and not folder.is_dir()
        or folder.is_dir()
        and any(folder.iterdir())
    ):
        raise ConfigError(
            f"{folder} is not an empty folder; give another one, or resume it"
        )
    try:
        (folder / "media").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made ({error.strerror})") from None
    media: list[tuple[Modality, str, str]] = []
    for modality, path in files:
        name = plain_name(path, {name.casefold() for _, name, _ in media}, redact)
        copy = folder / "media" / name
        try:
            shutil.copyfile(path, copy)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read ({error.strerror})") from None
        media.append((modality, name, sha256_of(copy)))
    more = dict(manifest.more)
    begun = Manifest(
        manifest.question, tuple(media), manifest.pool, manifest.options, more
    )
    return write_manifest(folder, begun, redact)


def plain_name(path: Path, taken: Collection[str], redact: Redact = str) -> str:
    """A name for a copy that a model can repeat without mistakes: letters, digits, _ and -. None of
    the `taken` names (casefolded) equals it.
    """
    stem = re.sub(r"[^\w-]+", "_", visible(path.stem)).strip("_-")[:60]
    if not stem or redact(stem) != stem:  # models read the name
        stem = "media"
    suffix = re.sub(r"[^\w.]+", "", visible(path.suffix))[:10]
    name = f"{stem}{suffix}"
    number = 1
    while name.casefold() in taken:
        number += 1
        name = f"{stem}_{number}{suffix}"
    return name


def write_manifest(folder: Path, manifest: Manifest, redact: Redact = str) -> Manifest:
    """Write run.json without secrets, in one piece. Returns the manifest as it was written, so that
    a replay asks for the same.
    """
    text = redact(json.dumps(manifest.row(), indent=1, ensure_ascii=False))
    write_whole(folder / "run.json", text)
    return read_manifest(folder)


def write_whole(path: Path, text: str) -> None:
    """Write a file and rename it into place: it is complete or absent, whatever happens."""
    part = path.with_name(f"{path.name}.part")
    with part.open("w", encoding="utf-8", errors="replace") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)


# ---- the trajectory ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ending:
    """How a run ended: answered, fallback, stopped or interrupted. Programs read `cause`, people
    `why`. `finished`: the method came to its end; if not, a resume goes on.
    """

    state: str
    cause: str = ""
    why: str = ""
    finished: bool = True


class Recorder:
    """Appends events to a file (in a replay, only to memory) and passes them to the listeners.

    `at` is the place of an event, (round, sub-task, step). Measured values are in `timing` alone;
    the rest is the same in every replay.
    """

    def __init__(
        self,
        folder: Path | None,
        listeners: Iterable[Listener] = (),
        redact: Redact = str,
    ) -> None:
        self.events: list[Event] = []
        self.listeners = tuple(listeners)
        self.redact = redact
        self.began_s = time.monotonic()
        self._file = Appender(folder / "trajectory.jsonl") if folder else None

    def emit(
        self,
        event: str,
        place: Sequence[int | str],
        latency_s: float | None = None,
        **content: Any,
    ) -> None:
        at = [number for number in place if isinstance(number, int)]
        row = {"v": EVENT_VERSION, "event": event, "at": at, **content}
        took = {} if latency_s is None else {"latency_s": latency_s}
        row["timing"] = {"at_s": time.time(), **took}
        if self._file:
            self._file.append(
                self.redact(json.dumps(row, ensure_ascii=False, default=str))
            )
        self.events.append(row)
        self.tell(row)

    def tell(self, row: Event) -> None:
        for listener in self.listeners:
            listener(row)

    def notify(self, message: str) -> None:
        """Send the listeners a message that is not an event."""
        self.tell({"event": "notice", "at": [], "message": message})

    def decision(
        self, s: State, attempt: int, replies: Sequence[Reply], **outcome: Any
    ) -> None:
        """One attempt of a decision: its reply, and y_t or the mistake."""
        self.emit(
            "decision",
            Place(s.round, 0, attempt),
            rounds=s.rounds,
            budget_usd=s.budget_usd,
            waiting=s.waiting,
            reply=replies[-1].text if replies else "",
            cost_usd=add_usd(*(reply.cost_usd for reply in replies)),
            **outcome,
        )

    def end(self, ending: Ending, answer: str, rounds: int, purse: Purse) -> None:
        """The last row of every run, however it ended."""
        results = [event for event in self.events if event["event"] == "result"]
        self.emit(
            "end",
            (rounds + 2,),
            latency_s=time.monotonic() - self.began_s,
            answer=answer,
            state=ending.state,
            cause=ending.cause,
            why=ending.why,
            rounds=rounds,
            calls=purse.calls,
            cost_usd=add_usd(*purse.costs),
            tokens=purse.tokens,
            failed_subtasks=sum(event["status"] == "failed" for event in results),
            fallback=ending.state
            != "answered",  # a run without an answer has none, too
            finished=ending.finished,
        )
        if self._file:
            self._file.unlock()
            self._file = None  # what a sub-agent still does is on the tape alone


def decision_row(y_t: Decision) -> dict[str, Any]:
    """y_t as JSON: {"action": "delegate" | "complete", ...}."""
    if isinstance(y_t, Complete):
        return {"action": "complete", **vars(y_t)}
    subtasks = [vars(u) for u in y_t.subtasks]
    return {"action": "delegate", **vars(y_t), "subtasks": subtasks}


def read_events(folder: Path) -> list[Event]:
    """The events of the last invocation of a run, in the order of their places, without lines that
    cannot be read.
    """
    found: list[Event] = []
    for row in rows_of(folder / "trajectory.jsonl"):
        if row.get("event") == "run":
            found = []
        at = row.get("at")
        is_place = isinstance(at, list) and all(isinstance(n, int) for n in at)
        if isinstance(row.get("event"), str) and is_place:
            found.append(row)
    return in_order(found)


def in_order(events: Iterable[Event]) -> list[Event]:
    """The steps of parallel sub-tasks are written in any order."""
    return sorted(events, key=lambda event: tuple(event["at"]))


def first_difference(recorded: Sequence[Event], again: Sequence[Event]) -> str:
    """The first place where the events of a replay differ from the recorded ones, or "". Times and
    sentences for people do not count, nor do what an older version did not write and the last
    digit of a sum.
    """
    before = _compared(recorded)
    now = _compared(again)
    for old, new in zip(before, now, strict=False):
        names = [name for name in old if old[name] != new.get(name)]
        if names:
            name = names[0]
            values = f"recorded {old[name]!r}, now {new.get(name)!r}"
            event = " ".join(str(old["event"]).split())
            return f"{event} at {old['at']}: {name}: {values}"
    return (
        "" if len(before) == len(now) else f"{len(before)} events, and now {len(now)}"
    )


def _compared(events: Sequence[Event]) -> list[Event]:
    kept = [event for event in in_order(events) if event["event"] != "run"]
    text = json.dumps(kept, default=str)
    rows: list[Event] = json.loads(text, parse_float=lambda x: round(float(x), 12))
    return [
        {k: v for k, v in row.items() if k not in ("timing", "why", "v")}
        for row in rows
    ]
