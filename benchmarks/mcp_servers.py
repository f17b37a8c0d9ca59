#!/usr/bin/env python3
"""MCP servers of other projects: list their tools, call some, record the calls and replay them without starting the server.

python benchmarks/mcp_servers.py FOLDER [NAME ...]

FOLDER gets the servers: npm packages, and two virtual environments, one of them for servers that
need mcp 1. Needs npm and the registries of npm and PyPI.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import common  # noqa: F401  the program on the path

from orchestra.kernel.tape import Mode, Tape
from orchestra.kernel.tool import Environment
from orchestra.kernel.vocabulary import ModelMistake, Task, ToolError
from orchestra.tools.own import own_tools
from tests.scripted import Server

SCOPE = "@modelcontextprotocol/server-"
NPM = ["everything", "filesystem", "memory", "sequential-thinking"]
PYPI = {
    "venv": ["git", "time", "fetch"],
    "venv1": ["calculator", "sqlite"],
}  # venv1: mcp 1


class Site(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


def install(folder: Path) -> None:
    if not (folder / "node_modules").exists():
        subprocess.run(
            ["npm", "install", "--prefix", folder, *(SCOPE + n for n in NPM)],
            check=True,
        )
    for name, packages in PYPI.items():
        if not (folder / name).exists():
            subprocess.run([sys.executable, "-m", "venv", folder / name], check=True)
            wanted = [f"mcp-server-{p}" for p in packages] + ["mcp<2"] * (
                name == "venv1"
            )
            subprocess.run(
                [folder / name / "bin" / "pip", "install", "-q", *wanted], check=True
            )


def calls(
    folder: Path, page: str
) -> dict[str, tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """By server: the arguments of its command, and calls of its tools."""
    town = {"name": "Ulm", "entityType": "town", "observations": ["lies on the Danube"]}
    link = {"from": "Ulm", "to": "Danube", "relationType": "lies on"}
    thought = {"thought": "First", "thoughtNumber": 1, "totalThoughts": 1}
    edit = {
        "path": f"{folder}/note.txt",
        "edits": [{"oldText": "nine", "newText": "ten"}],
    }
    repo, database = str(folder / "repo"), f"{folder}/test.db"
    return {
        "everything": ("", [
            ("echo", {"message": "hello"}), ("get-tiny-image", {}), ("get-sum", {"a": 2, "b": 40}),
            ("get-resource-reference", {"resourceType": "Text", "resourceId": 1}),
            ("get-resource-reference", {"resourceType": "Blob", "resourceId": 1}),
            ("get-resource-links", {"count": 2}), ("get-structured-content", {"location": "Chicago"}),
        ]),
        "filesystem": (str(folder), [("edit_file", edit), ("read_text_file", {"path": f"{folder}/note.txt"}),
                                     ("read_text_file", {"path": "/etc/hostname"}), ("edit_file", {"path": "x", "edits": [{"oldText": 1}]})]),
        "memory": ("", [("create_entities", {"entities": [town]}), ("create_relations", {"relations": [link]}),
                        ("create_entities", {"entities": [{"name": "Ulm"}]}), ("read_graph", {})]),
        "sequential-thinking": ("", [("sequentialthinking", {**thought, "nextThoughtNeeded": False})]),
        "git": (f"--repository {repo}", [("git_status", {"repo_path": repo}), ("git_add", {"repo_path": repo, "files": ["a.txt"]}), ("git_status", {"repo_path": repo})]),
        "time": ("--local-timezone UTC", [("convert_time", {"source_timezone": "Europe/Berlin", "time": "12:00", "target_timezone": "Asia/Tokyo"})]),
        "fetch": ("--ignore-robots-txt --allow-private-ips", [("fetch", {"url": page, "max_length": 60})]),
        "calculator": ("", [("calculate", {"expression": "2 + 40"})]),
        "sqlite": (f"--db-path {database}", [("write_query", {"query": "CREATE TABLE town (name TEXT)"}), ("list_tables", {})]),
    }  # fmt: skip


def use(
    command: str, wanted: list[tuple[str, dict[str, Any]]], folder: Path, mode: Mode
) -> list[str]:
    """Names of the tools, their manuals, and the result of each call."""
    with contextlib.closing(Tape(folder / "tape.jsonl", mode)) as tape:
        env: Any = SimpleNamespace(tape=tape)
        env.local = partial(Environment.local, env)
        kept = folder / "listed.json"
        listed = json.loads(kept.read_text()) if mode == "replay" else None
        with own_tools([], [command], folder / "mcp.log", (), listed) as own:
            tools = own.tools
            kept.write_text(json.dumps(own.listed))
            manuals = [
                f"{t.manual}\n{json.dumps(t.schema(Task('?')))}" for t in tools.values()
            ]
            seen = [f"{len(tools)} tools: {', '.join(tools)}", "\n".join(manuals)]
            for n, (name, params) in enumerate(wanted):
                with tape.call("r1", "t1", f"s{n}", name):
                    try:
                        seen.append(tools[name](env, params))
                    except (ToolError, ModelMistake) as error:
                        seen.append(f"{type(error).__name__}: {error}")
    return seen


def main(folder: Path, only: list[str]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    install(folder)
    (folder / "note.txt").write_text("nine servers\n")
    for name in ("repo/a.txt", "page/index.html"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("<p>A page of text.</p>")
    subprocess.run(["git", "init", "-q", folder / "repo"], check=True)
    (folder / "test.db").unlink(missing_ok=True)
    site = Server(partial(Site, directory=folder / "page"))
    wrong = 0
    for name, (arguments, wanted) in calls(folder, f"{site.url}/").items():
        if only and name not in only:
            continue
        venvs = [f"{venv}/bin" for venv, names in PYPI.items() if name in names]
        program = folder / (venvs or ["node_modules/.bin"])[0] / f"mcp-server-{name}"
        run, starter = folder / "runs" / name, folder / f"start-{name}"
        run.mkdir(parents=True, exist_ok=True)
        (run / "tape.jsonl").unlink(missing_ok=True)
        script = f'echo started >> {run}/starts\nexec {shlex.quote(str(program))} "$@"'
        starter.write_text(f"#!/bin/sh\n{script}\n")
        starter.chmod(0o755)
        (run / "starts").write_text("")
        command = f"{starter} {arguments}".strip()
        try:
            seen = use(command, wanted, run, "record")
        except Exception as error:
            print(f"{name}: WRONG {type(error).__name__}: {error}")
            wrong += 1
            continue
        again = use(command, wanted, run, "replay")
        starts = len((run / "starts").read_text().split())
        same = again == seen and starts == 1
        wrong += not same
        print(
            f"{name}: {seen[0]}; {starts} start; replay {'the same' if same else 'WRONG'}"
        )
        for (tool, _), text in zip(wanted, seen[2:], strict=True):
            print(
                f"    {tool}: {' '.join(text.split())[: int(os.environ.get('CHARS', '200'))]}"
            )
        (run / "manuals.txt").write_text(seen[1])
    site.close()
    return wrong


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
