#!/usr/bin/env python3
"""How many calls an endpoint with a limit refuses during a sweep with --workers auto, and how much of the limit is used.

    python benchmarks/rate_limits.py [QUESTIONS=300]

One server answers at most 12 calls at a time, the other at most 40 calls a second; each call takes 0.2 s, and what is over the limit
gets status 429 without Retry-After. A question is one ReAct agent with three calls. The best time is that of a sweep that always
uses all of the limit.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from unittest import mock

from common import in_new_process, running

from tests.scripted import act, finish

CALL_S, CALLS = 0.2, 3
LIMITS = {"12 calls at a time": (12, 1e9), "40 calls a second": (10**9, 40.0)}
BUSY = b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


def whole(value: object) -> bytes:
    """A response with this JSON."""
    data = json.dumps(value).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


class Limited:
    """The server: `most` calls at a time, and a bucket of one second of calls."""

    def __init__(self, most: int, a_second: float) -> None:
        self.most, self.a_second = most, a_second
        self.left, self.filled_s = a_second, time.monotonic()
        self.in_flight = self.refused = self.calls = 0

    def admits(self) -> bool:
        now_s = time.monotonic()
        gained = (now_s - self.filled_s) * self.a_second
        self.left, self.filled_s = min(self.a_second, self.left + gained), now_s
        return self.in_flight < self.most and self.left >= 1

    async def handle(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                if head.startswith(b"get"):
                    counts = {"calls": self.calls, "refused": self.refused}
                    writer.write(whole(counts))
                    continue
                length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
                writer.write(await self.answer(await reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def answer(self, body: bytes) -> bytes:
        self.calls += 1
        if not self.admits():
            self.refused += 1
            return BUSY
        self.left -= 1
        self.in_flight += 1
        await asyncio.sleep(CALL_S)
        self.in_flight -= 1
        seen = body.count(b"Observation")
        text = finish("42") if seen >= CALLS - 1 else act("NoSuchAction", n=seen)
        message = {"role": "assistant", "content": text}
        choices = [{"index": 0, "finish_reason": "stop", "message": message}]
        usage = {"prompt_tokens": 900, "completion_tokens": 40}
        return whole({"choices": choices, "usage": usage})

    async def serve(self) -> None:
        server = await asyncio.start_server(self.handle, "127.0.0.1", 0, backlog=1024)
        print(server.sockets[0].getsockname()[1], flush=True)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, sys.stdin.read)


def measure(url: str, questions: int) -> dict[str, float]:
    """A sweep by the command itself."""
    import requests

    from orchestra.evaluation import command as evaluate

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict("os.environ", {"OPENAI_BASE_URL": url}),
    ):
        data, out = Path(folder, "data.jsonl"), Path(folder, "out")
        asked = (
            {"question": f"What is {n}?", "answer": "42"} for n in range(questions)
        )
        data.write_text("\n".join(map(json.dumps, asked)))
        flags = f"run --data {data} --out {out} --method react --model m".split()
        began_s = time.monotonic()
        with redirect_stderr(StringIO()) as told:
            assert evaluate.main(flags) == 0, told.getvalue()[-2000:]
        took_s = time.monotonic() - began_s
    counts: dict[str, float] = requests.get(f"{url}/counts", timeout=5).json()
    return {**counts, "wall_s": took_s}


def main(questions: int) -> None:
    for name, (most, a_second) in LIMITS.items():
        with running(__file__, "serve", most, a_second) as url:
            row = in_new_process(__file__, "measure", url, questions)
        answered = row["calls"] - row["refused"]
        best_s = answered / min(most / CALL_S, a_second)
        share = row["refused"] / row["calls"]
        print(
            f"{name}: {answered} answered, {row['refused']} refused ({share:.1%} of all); {row['wall_s']:.1f} s, "
            f"{row['wall_s'] / best_s:.2f} of the best time"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(Limited(int(sys.argv[2]), float(sys.argv[3])).serve())
    elif sys.argv[1:2] == ["measure"]:
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]))))
    else:
        main(*map(int, sys.argv[1:] or ["300"]))
