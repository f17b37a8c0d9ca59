"""What a scripted run sent, request by request, against a file of tests/golden.

A file that is missing is written, and the test fails once: read the file before you commit it.
"""

from difflib import unified_diff
from itertools import groupby
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


def in_order(monkeypatch):
    """Parallel calls of one sub-agent go out one after the other. (Use it with parallel=1.)"""
    monkeypatch.setattr("subagents.fan_out.MAX_THREADS", 1)


def check(name, requests):
    """Model, temperature and names of the tools of each request, and its messages role by role."""
    rows = [(len([*same]), text) for text, same in groupby(map(_text, requests))]
    sent = "".join(f"=== {times} x {text}\n" for times, text in rows).splitlines(keepends=True)
    file = FOLDER / f"{name}.md"
    known = file.read_text().splitlines(keepends=True) if file.exists() else []
    if not known:
        file.write_text("".join(sent))
    difference = "".join(unified_diff(known, sent, str(file), "what was sent", n=2))
    assert not difference, "\n" + difference


def _text(request):
    tools = ", ".join(tool["function"]["name"] for tool in request.get("tools", ())) or "none"
    head = f"{request['model']}, temperature {request.get('temperature')}, tools {tools}"
    return "\n".join([head, *(f"--- {m['role']}\n{m['content']}" for m in request["messages"])])
