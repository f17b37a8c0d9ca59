"""Serves a policy of the laboratory behind the chat API of OpenAI, on this machine.

    python -m orchestra.training.lab.serve FOLDER [--port 8210]

FOLDER has the weights, such as runs/lab/models/da-0. A request's last message is a state in the
compact language, and the reply the likeliest decision in it. One request is answered at a time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from orchestra.command.programs import run_program
from orchestra.kernel.vocabulary import ConfigError
from orchestra.training.installed import exit_unless_installed

PROGRAM = "orchestra.training.lab.serve"
PORT = 8210
CHAT = "/v1/chat/completions"
Decider = Callable[[str], str]  # a state in the compact language -> a decision


def decider(folder: Path) -> Decider:
    """The likeliest decisions of a policy. Raises ConfigError if the folder has none."""
    from orchestra.training.lab import model

    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder}: has no config.json; give a folder of models/")
    sampler = model.sampler(model.load(folder))

    def decide(state: str) -> str:
        prompt, _ = model.encode(state, "")
        (group,) = sampler.sample([prompt], seeds=[0], n=1, temperature=0.0)
        return group.texts[0]

    return decide


def completion(request: Any, decide: Decider) -> dict[str, Any]:
    """The response to a request. Raises KeyError, IndexError or TypeError for another format, and
    KeyError for a word that is not of the language.
    """
    state = request["messages"][-1]["content"]
    text = decide(state)
    prompt_tokens = len(state.split()) + 1  # and the mark of the reply
    completion_tokens = len(text.split()) + 1  # and the end
    return {
        "object": "chat.completion",
        "model": request.get("model", ""),
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }


def handler(decide: Decider, name: str) -> type[BaseHTTPRequestHandler]:
    """Answers requests with the decisions of a policy."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(200, {"object": "list", "data": [{"id": name}]})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path != CHAT:
                self.reply(404, {"error": {"message": f"only {CHAT} is served"}})
                return
            try:
                self.reply(200, completion(json.loads(body), decide))
            except (ValueError, KeyError, IndexError, TypeError) as error:
                problem = f"not a state in the compact language: {error!r}"
                self.reply(400, {"error": {"message": problem}})

        def reply(self, status: int, value: Any) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """No line for each request."""

    return Handler


def run(arguments: Sequence[str] | None) -> None:
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}", description="serve a policy of the laboratory"
    )
    parser.add_argument("folder", type=Path, help="as runs/lab/models/da-0")
    parser.add_argument("--port", type=int, default=PORT, help="(%(default)s)")
    flags = parser.parse_args(arguments)
    decide = decider(flags.folder)
    try:
        server = HTTPServer(
            ("127.0.0.1", flags.port), handler(decide, flags.folder.name)
        )
    except OSError as error:
        raise ConfigError(f"--port {flags.port}: {error.strerror}") from None
    print(f"http://127.0.0.1:{flags.port}/v1", file=sys.stderr, flush=True)
    server.serve_forever()


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    return run_program(PROGRAM, lambda: run(arguments))


if __name__ == "__main__":
    exit_unless_installed(PROGRAM, "torch", "transformers", "peft")
    sys.exit(main())
