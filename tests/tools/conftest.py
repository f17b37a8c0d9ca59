import contextlib
import functools
import hashlib
import json
import os
import shlex
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestra.runtime.secrets import Secrets
from orchestra.toolkit import Environment, ToolError
from orchestra.tools.own import own_tools
from orchestra.tools.shipped import all_tools
from tests.conftest import FREE, Chat, Engine, Media, Pool, Purse, Tape, Task, pool_at

rapidocr = pytest.mark.skipif(not find_spec("rapidocr"), reason="needs rapidocr (make .venv/local)")
MODEL = os.environ.get("WHISPER_MODEL", "") if find_spec("faster_whisper") else ""
whisper = pytest.mark.skipif(
    not MODEL, reason="needs faster-whisper (make .venv/local) and its model: WHISPER_MODEL=FOLDER"
)
TOKEN = "ORCHESTRA_TEST_TOKEN"  # a key that the command of a server may name
ANALYSIS = {"image": "ImageAnalysisAction", "audio": "ParseAudioAction", "video": "VideoAnalysisAction"}  # fmt: skip


class Bench:
    """The environment of a sub-agent over these files, and a tape to replay. `own`: the user's tools
    and MCP servers.
    """

    model: Any  # the scripted endpoint

    def __init__(self, folder: Path, pool: Pool, *files: Any, own: Any = ((), ()), **fields: Any):
        hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for _, path in files]
        media = tuple(Media(k, p.name, p, h) for (k, p), h in zip(files, hashes, strict=True))
        self.folder, self.pool, self.own, self.fields = folder, pool, own, fields
        self.task = Task("Which platform does the train leave from?", media)

    def use(self, tool: str, mode: str = "record", **params: Any) -> str:
        """The observation of a tool."""
        given = {"purse": Purse(), "folder": self.folder / "work", **self.fields}
        with contextlib.closing(Tape(self.folder / "tape.jsonl", mode)) as tape:
            env = Environment(self.task, self.pool["small"], self.pool, Chat(tape), tape, **given)
            with own_tools(*self.own, tape) as own, tape.call("r1", "t1", "s1", tool):
                return {**all_tools(), **own}[tool](env, params)

    def outcome(self, *args: str, **params: Any) -> str:
        """The observation or the error."""
        try:
            return self.use(*args, **params)
        except ToolError as error:
            return str(error)

    def analyse(self, mode: str = "record", kind: str = "", query: str = "?", **params: Any) -> str:
        """The observation of the first file by the tool for its kind, or for `kind`."""
        file = self.task.media[0]
        kind = kind or file.modality
        params[f"{kind}_path"] = file.name
        return self.use(ANALYSIS[kind], mode, query=query, **params)


@pytest.fixture
def bench(tmp_path: Path, endpoint: Any) -> Callable[..., Bench]:
    """Environments with local engines, or with a `model` that always replies what it `says`."""
    (tmp_path / "run").mkdir()

    def make(*files: Any, says: Any = None, price: Any = FREE, **fields: Any) -> Bench:
        model = endpoint(says if callable(says) else lambda _: says)
        pool = local_pool(model.url) if says is None else pool_at(model.url, price=price)
        made = Bench(tmp_path / "run", pool, *files, **fields)
        made.model = model
        return made

    return make


def local_pool(url: str = "http://127.0.0.1:9/v1") -> Pool:
    """A pool that analyses pictures and sounds with the local engines."""
    return pool_at(url).with_(engines={k: Engine("local") for k in ("image", "audio")})


def raw(schema=None, pages=1, answer=None, calls=9):
    """The command of an MCP server whose tools have this schema and return this answer."""
    arguments = schema or {"type": "object", "properties": {}}, pages, answer, calls
    program = Path(__file__).with_name("raw_server.py")
    return shlex.join([sys.executable, str(program), *map(json.dumps, arguments)])


@pytest.fixture
def using(tmp_path):
    """The tools of MCP servers, to be called with their parameters."""

    @contextlib.contextmanager
    def use(*commands, mode="record"):
        with contextlib.closing(Tape(tmp_path / "tape.jsonl", mode, Secrets([TOKEN]))) as tape:
            env = SimpleNamespace(tape=tape)
            env.local = functools.partial(Environment.local, env)
            with own_tools([], commands, tape) as found, tape.call("r1"):

                def call(name, **given):
                    return found[name](env, given)

                yield SimpleNamespace(tools=found, env=env, call=call)

    return use
