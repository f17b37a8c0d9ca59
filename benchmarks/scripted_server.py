#!/usr/bin/env python3
"""A scripted endpoint in a process of its own, light enough not to be what is measured.

    python benchmarks/scripted_server.py DELAY_S K      prints its port, serves until its input closes

The main agent delegates K sub-tasks, then completes; a sub-agent uses EchoAction twice, then finishes. With K = 0, every agent finishes
at once.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable

import common  # noqa: F401  the program on the path

from tests.scripted import act, complete, delegate, finish

Respond = Callable[
    [bytes], tuple[float, str]
]  # a request's body to seconds and a reply


def reply(body: bytes, k: int) -> str:
    if k == 0:
        return finish("42")
    if b"You are the main agent" in body:
        return main_agent(body, k)
    if body.count(b"Observation:") < 2:
        return act("EchoAction", text="hello")
    return finish(
        f"found it ({re.findall(rb'look at number ([0-9]+)', body)[-1].decode()})",
        summary="",
    )


def main_agent(body: bytes, k: int) -> str:
    """AOrchestra's K tuples one by one, Orchestra-o1's K tasks at once; then the answer."""
    done = body.count(b"found it (")
    if done >= k:
        return complete("42")
    task = {"context": "", "model": "auto", "tools": ["EchoAction"]}
    if b"one sub-agent after another" in body:
        params = {"task_instruction": f"look at number {done}", **task}
        return json.dumps(
            {"action": "delegate_task", "reasoning": "", "params": params}
        )
    return delegate(
        *({"task_instruction": f"look at number {n}", **task} for n in range(k))
    )


async def serve(respond: Respond) -> None:
    async def handle(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                delay_s, text = respond(body)
                await asyncio.sleep(delay_s)
                message = {"role": "assistant", "content": text}
                usage = {"prompt_tokens": 900, "completion_tokens": 40}
                choices = [{"index": 0, "finish_reason": "stop", "message": message}]
                answer = {
                    "object": "chat.completion",
                    "choices": choices,
                    "usage": usage,
                }
                data = json.dumps(answer).encode()
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
