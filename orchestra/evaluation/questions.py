"""One question: read from a file, answered in a run folder of its own, and scored.

Everything here is a function of its arguments, so a question can be answered in a thread, in
another process or on another machine.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonlines
from pydantic import AliasChoices, BeforeValidator, ConfigDict, Field

from orchestra.evaluation.scores import exact, matches
from orchestra.minigaia.agent import WorldAgent
from orchestra.money import Purse
from orchestra.runtime.chat import Chat
from orchestra.runtime.options import Options
from orchestra.runtime.parsing import after_thinking
from orchestra.runtime.pool import Checked, Pool
from orchestra.runtime.prompts import fenced, render, say
from orchestra.runtime.secrets import Secrets
from orchestra.runtime.tape import Tape
from orchestra.runtime.trajectory import Event, Listener, Trajectory, ended, read
from orchestra.vocabulary import Backend, BudgetExceeded, ConfigError, EndpointError
from orchestra_min import orchestrate, resume

Row = dict[str, Any]
Tell = Callable[[str], None]
Files = dict[str, bytes]  # by their path in a folder
FREE = "timeout_s", "patience_s"  # options that may change when a sweep goes on
STARVED = "budget exhausted"  # in the `why` of a run whose budget was too small
MEDIA_KEY = re.compile("(image|audio|video)(_path)?s?$")  # of other data sets
RATE_LIMIT = re.compile(r"\bstatus (429|503)\b")

# ---- a file of questions -------------------------------------------------------------------------


def _field(*keys: str, **how: Any) -> Any:
    """A field that data sets name by any of these keys, in lower case."""
    return Field(validation_alias=AliasChoices(*keys), **how)


def _media(entry: Any) -> Any:
    """A path, or an object with type and path, as (modality, path)."""
    if isinstance(entry, dict):
        return str(entry.get("type", entry.get("modality", ""))).lower(), entry.get(
            "path"
        )
    return "", entry


QUESTION = "question", "problem", "query", "prompt"
Kind = Literal["image", "audio", "video", ""]  # "": that of the file's content


class Question(Checked):
    """`media`: (modality, path) each."""

    model_config = ConfigDict(
        extra="ignore", coerce_numbers_to_str=True, str_strip_whitespace=True
    )
    question: str = _field(*QUESTION, min_length=1)
    answer: str = _field("answer", "final_answer", "ground_truth", "gold", min_length=1)
    media: tuple[Annotated[tuple[Kind, str], BeforeValidator(_media)], ...] = _field(
        "media", "omni_modal_input", "files", default=()
    )
    id: str = _field("id", "task_id", "_id", "qid", default="")
    level: str = _field("level", "difficulty", default="")
    category: str = _field("category", "topic", "subject", default="")
    facts: Any = ()  # of MiniGAIA, for --world

    @property
    def name(self) -> str:
        """The name of its run folder."""
        return re.sub(r"[^\w-]", "_", self.id)[:80]

    @property
    def row(self) -> Row:
        """The start of its row in rows.jsonl."""
        about = {"level": self.level, "category": self.category, "right": self.answer}
        return {"id": self.id, **about, "status": "failed"}


def load(file: Path, media: Path | None = None) -> list[Question]:
    """The questions of a file, as `rows` reads it. Paths of media are relative to `media` (default:
    the folder of the file). Raises ConfigError.
    """
    found: dict[str, Question] = {}
    for number, row in enumerate(rows(file), 1):
        try:
            if not isinstance(row, dict):
                raise ConfigError("needs an object with question and answer")
            keys = {
                k.strip().lower().replace(" ", "_"): v
                for k, v in row.items()
                if v is not None
            }
            keys |= (
                {"media": [keys["file_name"]]} if keys.get("file_name") else {}
            )  # GAIA
            if odd := [k for k, v in keys.items() if v and MEDIA_KEY.match(k)]:
                raise ConfigError(f"{odd[0]}: name its files in media")
            q = Question(**keys)
            paths = tuple(
                (kind, _located(path, media or file.parent)) for kind, path in q.media
            )
            q = q.model_copy(update={"id": q.id or str(number), "media": paths})
            if q.name in found:
                raise ConfigError(
                    f"another question has an id like {q.id!r}; change it"
                )
        except ConfigError as error:
            raise ConfigError(f"{file}: question {number}: {error}") from None
        found[q.name] = q
    if not found:
        raise ConfigError(f"{file}: has no question in it")
    return list(found.values())


def rows(file: Path) -> list[Any]:
    """The items of a JSON array, of an object that holds one, or of JSON lines. Raises
    ConfigError.
    """
    try:
        text = file.read_text(encoding="utf-8-sig").strip()
        try:
            data = json.loads(text or "[]")
        except ValueError:
            if text.startswith("["):
                raise
            data = [*jsonlines.Reader(text.split("\n")).iter(skip_empty=True)]
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file}: cannot be read as JSON or JSON lines ({error})"
        ) from None
    if isinstance(data, dict) and not {*QUESTION} & {
        key.strip().lower() for key in data
    }:
        lists = [value for value in data.values() if isinstance(value, list)]
        data = lists[0] if len(lists) == 1 else data
    return data if isinstance(data, list) else [data]


def _located(path: str, root: Path) -> str:
    """The absolute path of a media file: `path` under `root`, or else its name in `root`."""
    inside = Path(os.path.normpath(path))
    if inside.is_absolute() or ".." in inside.parts:
        raise ConfigError(f"media {path!r} needs a path inside {root}; see --media")
    places = [root / inside, root / inside.name]
    return str(next((p for p in places if p.is_file()), places[0]).absolute())


# ---- the judge -----------------------------------------------------------------------------------


def verdict(
    q: Question, given: str, judge: Backend, chat: Chat, purse: Purse
) -> bool | None:
    """Whether a language model judges the answer to be correct; None after two unusable replies.
    Raises EndpointError, and BudgetExceeded if the purse cannot pay for the call.
    """
    if exact(given, q.answer) or not given:
        return bool(given)
    texts = {
        "question": fenced(q.question),
        "answer": fenced(q.answer),
        "reply": fenced(given),
    }
    messages = [{"role": "user", "content": render("evaluation/judge.md", **texts)}]
    for attempt in ("a1", "a2"):
        with chat.tape.call("judge", attempt):
            reply = chat(judge, messages, purse).text
        word = after_thinking(reply).strip(" \n\t.*`\"'")
        if word in ("Correct", "Incorrect"):
            return word == "Correct"
        messages += [{"role": "assistant", "content": reply}]
        messages += [{"role": "user", "content": say("evaluation/notes", "again")}]
    return None


# ---- one question, answered ----------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What all questions of a sweep share."""

    out: Path
    pool: Pool
    options: Options
    judge: Backend | None = None
    world: bool = False  # MiniGAIA's world plays the sub-agents

    def folder(self, q: Question) -> Path:
        """The newest run folder of a question: 7, or 7.2 if it was begun again. If its run ended
        because its share of the budget was too small: the next one.
        """
        first = self.out / "runs" / q.name
        newest = max(
            [first, *filter(begun, first.parent.glob(f"{q.name}.[0-9]*"))], key=_attempt
        )
        end = ended(read(newest / "trajectory.jsonl"))
        return _next(newest) if end and STARVED in end["why"] else newest


def _attempt(folder: Path) -> int:
    return int(folder.suffix[1:] or 1)


def _next(folder: Path) -> Path:
    return folder.with_name(f"{folder.stem}.{_attempt(folder) + 1}")


def begun(folder: Path) -> bool:
    """Whether a run in this folder may have made a call."""
    tape = folder / "tape.jsonl"
    return tape.is_file() and tape.stat().st_size > 0


def answered(
    q: Question,
    plan: Plan,
    share_usd: float = math.inf,
    files: Files | None = None,
    tell: Tell | None = None,
    cancelled: threading.Event | None = None,
) -> Row:
    """Answer and score one question, continuing its run folder if there is one. Returns its row.

    `files`: the result of `files_of`, for a worker that shares no disk; the row then has the files
    of the run. `tell` is called with a message for each retry; without it, the messages are in the
    row as "notices". The status is "failed" if an endpoint failed, a file cannot be used or a rate
    limit outlasted the patience, and "starved" if the share was too small.
    """
    if files is not None:
        return _elsewhere(q, plan, share_usd, files)
    notices, folder = list[str](), plan.folder(q)
    row = {**q.row, "resumed": begun(folder), "run": folder.name}

    def listen(event: Event) -> None:
        if event["event"] == "notice":
            (tell or notices.append)(event["message"])

    try:
        run = _run(q, plan, folder, share_usd, listen, cancelled)
        row |= {k: v for k, v in vars(run).items() if k != "events"} | {
            "run": Path(run.run).name
        }
        if at := _limited(run.events):
            row["why"] = f"rate limit in r{at[0]}/t{at[1]}"
        elif share_usd < math.inf and STARVED in run.why:
            row["status"] = "starved"
        else:
            purse = Purse(
                share_usd - (run.cost_usd or 0.0) if share_usd < math.inf else None
            )
            row |= _scores(q, plan, run, purse, listen, cancelled) | {"status": "done"}
    except BudgetExceeded as error:  # of the judge
        row |= {"status": "starved", "why": str(error)}
    except (EndpointError, ConfigError, OSError) as error:
        row |= {"why": " ".join(str(error).split()), "cost_usd": None}
    return {**row, "notices": notices}


def _run(
    q: Question,
    plan: Plan,
    folder: Path,
    limit_usd: float,
    listen: Listener,
    cancelled: Any,
) -> Trajectory:
    """The run of a question: a new one, a resumed one, or a fork of one that ended, from the round
    in which a rate limit outlasted the patience.
    """
    o, how = (
        plan.options.with_(agent=WorldAgent(q.facts)) if plan.world else plan.options,
        {"listeners": (listen,), "pool": plan.pool, "cancelled": cancelled},
    )
    if not begun(folder):
        shutil.rmtree(folder, ignore_errors=True)  # killed before its first call
        o = o.with_(budget_usd=limit_usd) if limit_usd < math.inf else o
        return orchestrate(q.question, q.media, options=o, out=folder, **how)
    how |= o.again()
    past = read(folder / "trajectory.jsonl")
    end, at = ended(past), _limited(past)
    if (
        not end or not at or (end["fallback"] and at[0] == end["rounds"])
    ):  # resume retries those
        return resume(folder, **how)
    shutil.rmtree(_next(folder), ignore_errors=True)  # killed while it was copied
    before_usd = past[0]["options"]["budget_usd"] or 0.0
    if limit_usd < before_usd * (1 - 1e-9):  # too little for a fork
        return _run(q, plan, _next(folder), limit_usd, listen, cancelled)
    return resume(folder, at[0], _next(folder), **how)


def _limited(events: Sequence[Event]) -> list[int]:
    """Round and number of the first sub-task that failed at a rate limit; [] if none did."""
    failed = (e for e in events if e["event"] == "result" and e["status"] == "failed")
    return next((list(e["at"]) for e in failed if RATE_LIMIT.search(e["error"])), [])


def _scores(
    q: Question,
    plan: Plan,
    run: Trajectory,
    purse: Purse,
    listen: Listener,
    cancelled: Any,
) -> Row:
    given = run.answer.strip()
    row: Row = {
        "exact": exact(given, q.answer),
        "match": matches(given, q.answer, q.question),
    }
    if judge := plan.judge:
        file = Path(run.run) / "judge.jsonl"
        with closing(
            Tape(file, "resume", Secrets([judge.api_key_env]), cancelled)
        ) as tape:
            chat = Chat(tape, plan.options.timeout_s, plan.options.patience_s)
            chat.notify = partial(_notify, listen)
            row["judge"] = verdict(q, given, judge, chat, purse)
    return row | {"judge_usd": purse.spent_usd}


# ---- a worker that shares no disk ----------------------------------------------------------------


def files_of(q: Question, plan: Plan) -> Files:
    """The files that a question needs: those of its run folder, and its media."""
    media = {path.lstrip("/"): Path(path).read_bytes() for _, path in q.media}
    return _files(plan.folder(q)) | media


def _files(folder: Path) -> Files:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {
        f"runs/{path.relative_to(folder.parent)}": path.read_bytes() for path in paths
    }


def write(files: Mapping[str, bytes], folder: Path) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def _elsewhere(q: Question, plan: Plan, share_usd: float, files: Files) -> Row:
    with tempfile.TemporaryDirectory() as scratch:
        write(files, top := Path(scratch))
        media = tuple((kind, f"{top}{path}") for kind, path in q.media)
        here = q.model_copy(update={"media": media})
        row = answered(here, replace(plan, out=top), share_usd)
        return {**row, "files": _files(top / "runs" / row["run"])}


def _notify(listen: Listener, message: str, status: int) -> None:
    """What a Recorder does with a notice of a chat."""
    listen({"event": "notice", "message": message, "status": status})
