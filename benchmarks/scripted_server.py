#!/usr/bin/env python3
"""A scripted endpoint in a process of its own, light enough not to be what is measured.

    python benchmarks/scripted_server.py DELAY_S K      prints its port, serves until its input closes

The main agent delegates K sub-tasks, then completes; a sub-agent uses EchoAction twice, then finishes.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def reply(body: bytes, k: int) -> str:
    if b"You are the main agent" in body:
        if b"=> found" in body:
            return json.dumps({"action": "complete", "reasoning": "", "params": {"answer": "42"}})
        task = {"task_instruction": "look", "context": "", "model": "auto", "tools": ["EchoAction"]}
        params = {"tasks": [task | {"task_instruction": f"look at number {n}"} for n in range(k)]}
        return json.dumps({"action": "delegate_task", "reasoning": "", "params": params})
    if body.count(b"Observation:") < 2:
        return json.dumps({"action": "EchoAction", "params": {"text": "hello"}, "memory": "m"})
    params = {"result": "found", "status": "done", "summary": "It was seen."}
    return json.dumps({"action": "finish", "params": params, "memory": "m"})


Respond = Callable[[bytes], tuple[float, str]]  # a request's body to seconds and a reply


@contextmanager
def running(*command: object) -> Iterator[str]:
    """The base URL of a server in a process of its own: `command` is a script that calls `serve`."""
    words = [sys.executable, *map(str, command)]
    with subprocess.Popen(words, stdin=-1, stdout=-1, text=True) as server:
        assert server.stdin and server.stdout
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
        server.stdin.close()


def in_new_process(*command: object) -> Any:
    """The JSON that a script prints on its last line."""
    words = [sys.executable, "-W", "ignore", *map(str, command)]
    printed = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(printed.splitlines()[-1])


async def serve(respond: Respond) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                delay_s, text = respond(body)
                await asyncio.sleep(delay_s)
                message = {"role": "assistant", "content": text}
                usage = {"prompt_tokens": 900, "completion_tokens": 40}
                choice = {"index": 0, "finish_reason": "stop", "message": message}
                data = json.dumps(
                    {"object": "chat.completion", "choices": [choice], "usage": usage}
                ).encode()
                head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
                writer.write(head.encode() + data)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    DELAY_S, K = float(sys.argv[1]), int(sys.argv[2])
    asyncio.run(serve(lambda body: (DELAY_S, reply(body, K))))
