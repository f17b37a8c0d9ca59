import contextlib
import hashlib
import json
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestra.kernel.tape import redact_keys
from orchestra.kernel.tool import Environment
from orchestra.kernel.vocabulary import ToolError
from orchestra.methods import all_tools
from orchestra.tools.own import own_tools
from tests.conftest import FREE, Chat, Media, Options, Pool, Purse, Tape, Task, pool_at

rapidocr = pytest.mark.skipif(not find_spec("rapidocr"), reason="needs rapidocr (make .venv/local)")
MODEL = os.environ.get("WHISPER_MODEL", "") if find_spec("faster_whisper") else ""
whisper = pytest.mark.skipif(
    not MODEL, reason="needs faster-whisper (make .venv/local) and its model: WHISPER_MODEL=FOLDER"
)
TOKEN = "ORCHESTRA_TEST_TOKEN"  # a key that the command of a server may name
ANALYSIS = {"image": "ImageAnalysisAction", "audio": "ParseAudioAction", "video": "VideoAnalysisAction"}  # fmt: skip


class Bench:
    """The environment of a sub-agent over these files, and a tape to replay. `own`: the user's tools;
    `options`: of the run.
    """

    model: Any  # the scripted endpoint

    def __init__(
        self,
        folder: Path,
        pool: Pool,
        *files: Any,
        own: Any = (),
        purse: Any = None,
        **options: Any,
    ):
        hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for _, path in files]
        media = tuple(Media(k, p.name, p, h) for (k, p), h in zip(files, hashes, strict=True))
        self.folder, self.pool, self.own, self.purse = folder, pool, own, purse
        self.options = Options.of(**options)
        self.task = Task("Which platform does the train leave from?", media)

    def use(self, tool: str, mode: str = "record", **params: Any) -> str:
        """The observation of a tool."""
        with contextlib.closing(Tape(self.folder / "tape.jsonl", mode)) as tape:
            given = self.purse or Purse(), self.folder / "work", self.options
            env = Environment(self.task, self.pool["small"], self.pool, Chat(tape), tape, *given)
            with own_tools(self.own, [], self.folder / "mcp.log", all_tools()) as own:
                with tape.call("r1", "t1", "s1", tool):
                    return {**all_tools(), **own.tools}[tool](env, params)

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
    """A pool that analyses pictures and sounds with the libraries."""
    local = {"engine": "local"}
    return replace(pool_at(url), engines={"image": local, "audio": local})


def raw(schema=None, pages=1, answer=None, calls=9):
    """The command of an MCP server whose tools have this schema and return this answer."""
    arguments = schema or {"type": "object", "properties": {}}, pages, answer, calls
    program = Path(__file__).with_name("raw_server.py")
    return shlex.join([sys.executable, str(program), *map(json.dumps, arguments)])


@pytest.fixture
def using(tmp_path):
    """The tools of MCP servers, to be called with their parameters. `listed`: what servers listed in
    a run that is replayed.
    """

    @contextlib.contextmanager
    def use(*commands, listed=None):
        mode, redact = "replay" if listed else "record", redact_keys([TOKEN])
        with contextlib.closing(Tape(tmp_path / "tape.jsonl", mode, (), redact)) as tape:
            none: Any = None
            env = Environment(none, none, none, none, tape, none, tmp_path)
            with (
                own_tools([], commands, tmp_path / "mcp.log", (), listed, redact) as own,
                tape.call("r1"),
            ):

                def call(name, **given):
                    return own.tools[name](env, given)

                yield SimpleNamespace(env=env, call=call, **own._asdict())

    return use
