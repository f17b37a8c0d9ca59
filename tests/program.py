"""The program as its user meets it, as a process of its own or in this one, and what a run wrote."""

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import orchestra_min
from orchestra.kernel.folder import Event, read_manifest
from orchestra.methods import METHODS  # noqa: F401
from orchestra.tools.python_function import tool_of
from tests.conftest import FREE, ROOT, Options, pool_at
from tests.scripted import agent, complete, finish, is_main, last_text, thought

PROGRAM = ROOT / "orchestra_min.py"
CLOCK = ROOT / "fixtures" / "media" / "clock.png"
SPEECH = ROOT / "tests" / "sounds" / "equinox.wav"  # as a cassette has it
Done = subprocess.CompletedProcess[str]
OBJECTS = ("agents", "redact", "send")  # given to orchestrate, and again to a replay
ONCE = ("listeners", "cancelled", "more", "sources")  # given to orchestrate alone
HOURS = '''from pathlib import Path
Path(__file__).with_name("loaded").touch()
def library_hours(day: str) -> str:
    """When the town library is open.

    day: a day of the week
    """
    return f"closed on {day}"'''


def library_hours(day: str) -> str:
    """When the town library is open.

    day: a day of the week
    """
    return f"closed on {day}"


OWN_TOOLS = {"library_hours": tool_of(library_hours)}  # as --tools makes it


def start(folder: Path, *arguments: Any, at: str = "", run: Any = subprocess.Popen, **how: Any):
    """The program in a process of its own, in `folder`, with OPENAI_BASE_URL=`at`."""
    where = {"OPENAI_BASE_URL": at} if at else {}
    how = {**dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE), "text": True, **how}
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    return run(command, cwd=folder, env={**os.environ, **where}, **how)


def program(folder: Path, *arguments: Any, **how: Any) -> Done:
    """Start it and wait for its end."""
    return start(folder, *arguments, run=subprocess.run, timeout=60, **how)


def called(*arguments: Any, at: str = "", **variables: str) -> Done:
    """The same in this process: half a second cheaper."""
    out, err = io.StringIO(), io.StringIO()
    where = {"OPENAI_BASE_URL": at} if at else {}
    with (
        mock.patch.dict(os.environ, {**where, **variables}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = orchestra_min.main([str(a) for a in arguments])
    return Done(arguments, code, out.getvalue(), err.getvalue())


def replay(folder: Path, **given: Any) -> orchestra_min.Outcome:
    return orchestra_min.replay(Path(folder), **given)


def resume(folder: Path, **how: Any) -> orchestra_min.Outcome:
    """A resume that names the pool again, as its owner would."""
    folder = Path(folder)
    return orchestra_min.resume(folder, **{"pool": read_manifest(folder).pool, **how})


def cut_end(folder: str | Path) -> None:
    """Take the end row off a run, as if it had been killed before."""
    file = Path(folder, "trajectory.jsonl")
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))


def line_of(done: Done, code: int = 2) -> str:
    """The last line on standard error of a command that failed, without the indented next steps;
    progress may be before it.
    """
    assert (done.returncode, done.stdout) == (code, ""), (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return [line for line in done.stderr.splitlines() if line[:1] != " "][-1]


def content(events: Iterable[Event]) -> list[Event]:
    """The events of a run without what is measured: the same in each of its replays."""
    rows = sorted(events, key=lambda e: tuple(e["at"]))
    return json.loads(json.dumps([{k: v for k, v in e.items() if k != "timing"} for e in rows]))


def files_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its time of change and its bytes."""
    files = [p for p in folder.rglob("*") if p.is_file()]
    return {str(p.relative_to(folder)): (p.stat().st_mtime_ns, p.read_bytes()) for p in files}


def tool_file(folder: Path) -> str:
    """A tool of the user's, as --tools names it. Its file leaves `loaded` next to it."""
    (folder / "mine.py").write_text(HOURS)
    return f"{folder}/mine.py:library_hours"


def pool_file(folder, url, key="", **prices):
    """A pool file of backends with these prices, in USD per million tokens in and out."""
    about = f'base_url = "{url}"\nskills = {{ txt = 1, img = 1, aud = 1 }}\napi_key_env = "{key}"'
    price = "price_usd_per_mtok = {{ input = {}, output = {} }}\n".format
    rows = [f'[[backend]]\nname = "{n}"\n{about}\n{price(*usd)}' for n, usd in prices.items()]
    (folder / "pool.toml").write_text("".join(rows))
    return folder / "pool.toml"


def any_method(request: dict[str, Any]) -> str:
    """The answer 42 in the format of whichever method asks."""
    system = request["messages"][0]
    if system["role"] == "user":
        return "Answer: 42"  # an agent or an expert
    if "tools" in request or "tool_call" in system["content"]:
        return '<tool_call>{"name": "answer", "arguments": {"model": "answer-1"}}</tool_call>'
    if "agent_name" in system["content"]:
        return thought(agent("A", "SCAgent", "guess"))
    return complete("42") if is_main(request) else finish("42")


class Runs:
    """`run(*turns, work=...)`: the main agent's replies in order; `work`, or what it makes of the
    prompt, answers every other call. `respond(request)` answers all. Every run is replayed.

    `change` is of the pool, `change_parts` of the parts. A method or tools that are no names are
    objects.
    """

    def __init__(self, endpoint, folder, method):
        self.endpoint, self.parent, self.method = endpoint, folder, method

    def __call__(
        self, *turns, work=None, respond=None, names=(), price=FREE, fields=None, change=lambda pool: pool,
        question="What is it?", media=(), out="run", change_parts=None, **how,
    ):  # fmt: skip
        queue, self.method = iter(turns), how.setdefault("method", self.method)
        given = {name: how.pop(name) for name in OBJECTS if name in how}
        once = {name: how.pop(name) for name in ONCE if name in how}
        if not isinstance(self.method, str):
            given["method"] = how.pop("method")
        if isinstance(how.get("tools"), Mapping):
            given["tools"] = how.pop("tools")
        if change_parts:
            given["change"] = change_parts

        def reply(request):
            if turns and self.is_main(request):
                return next(queue)
            answer = any_method(request) if work is None else work
            return answer(last_text(request)) if callable(answer) else answer

        self.server = self.endpoint(respond or reply)
        self.requests, self.folder = self.server.requests, self.parent / out
        pool = change(pool_at(self.server.url, *names, price=price, **fields or {}))
        files = media, pool, Options.of(**how), self.folder
        result = orchestra_min.orchestrate(question, *files, **once, **given)
        replay(self.folder, parallel=17, **given)  # raises TapeMiss if anything differs
        return result

    def is_main(self, request):
        if self.method in ("react", "toolorchestra", "mas-orchestra"):
            return request["messages"][0]["role"] == "system"
        return is_main(request)

    @property
    def mains(self):
        """The last messages that the main agent was sent."""
        return [last_text(r) for r in self.requests if self.is_main(r)]

    @property
    def prompts(self):
        """Those that the others were sent."""
        return [last_text(r) for r in self.requests if not self.is_main(r)]

    @property
    def models(self):
        return [r["model"] for r in self.requests]


def runs(method):
    """A fixture."""
    return pytest.fixture(lambda endpoint, tmp_path: Runs(endpoint, tmp_path, method))
