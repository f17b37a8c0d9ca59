"""What each method sends, as a file that can be read: tests/golden/METHOD.md."""

import json
import os

from tests.conftest import ROOT
from tests.scripted import Request, last_text

SHOWN = ("model", "temperature", "logprobs")


def in_order(monkeypatch):
    """Parallel calls of one sub-agent go out one after the other. (Use it with parallel=1.)"""
    monkeypatch.setattr("orchestra.methods.talk.MAX_THREADS", 1)


def _shown(number: int, request: Request, sent: dict[str, int]) -> str:
    """One request; a message that was sent before is named by the request that had it first."""
    about = [f"{key} {request[key]}" for key in SHOWN if key in request]
    if described := request.get("response_format"):
        about.append(f"schema {described['json_schema']['name']}")
    about += [f"tool {tool['function']['name']}" for tool in request.get("tools", ())]
    rows = [f"## {number}: {', '.join(about)}\n"]
    for m in request["messages"]:
        content = last_text({"messages": [m]})
        first = sent.setdefault(content, number)
        text = f"~~~text\n{content}\n~~~" if first == number else f"As in {first}."
        rows.append(f"**{m['role']}**\n\n{text}\n")
    return "\n".join(rows)


def check(name: str, requests: list[Request]) -> None:
    """The requests of a run are those of tests/golden/NAME.md. UPDATE_GOLDEN=1 writes the file:
    read the change before you commit it.
    """
    sent = dict[str, int]()
    rows = [_shown(number, request, sent) for number, request in enumerate(requests, 1)]
    text = "\n".join([f"# What `{name}` sends\n", *rows])
    assert text.splitlines() == _stored(f"{name}.md", text).splitlines()


def same(name: str, value: object) -> None:
    """A JSON value is that of tests/golden/NAME.json; UPDATE_GOLDEN=1 writes it."""
    text = json.dumps(value, ensure_ascii=False, indent=1) + "\n"
    assert json.loads(text) == json.loads(_stored(f"{name}.json", text))


def _stored(name: str, text: str) -> str:
    file = ROOT / "tests" / "golden" / name
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text)
    return file.read_text()
