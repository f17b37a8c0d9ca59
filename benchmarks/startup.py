#!/usr/bin/env python3
"""From the start of the program to its first request, against `import openai` and one call.

python benchmarks/startup.py [N=9]      medians of N, taken in turn; and --help
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CALL = """
import openai, sys
client = openai.OpenAI(base_url=sys.argv[1], api_key="none")
client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
"""
arrived: list[float] = []


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        arrived.append(time.perf_counter())
        body = b'{"error": {"message": "enough"}}'
        self.send_response(401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def first_request_s(command: list[str], **environment: str) -> float:
    started = time.perf_counter()
    env = {**os.environ, **environment}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # files are compiled once, not at every start
    subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=False)
    return arrived[-1] - started


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    ours, bare, helps = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for n in range(1 + (int(sys.argv[1]) if len(sys.argv) > 1 else 9)):
            bare.append(first_request_s([sys.executable, "-c", CALL, url]))
            ask = ["orchestra_min.py", "--question", "x", "--model", "m", "--out", f"{folder}/{n}"]
            ours.append(first_request_s([sys.executable, *ask], OPENAI_BASE_URL=url))
            started = time.perf_counter()
            show = [sys.executable, "orchestra_min.py", "--help"]
            subprocess.run(show, cwd=ROOT, capture_output=True, check=True)
            helps.append(time.perf_counter() - started)
    a, b, h = (statistics.median(xs[1:]) for xs in (ours, bare, helps))
    print(f"start to first request {a:.3f} s; import openai + one call {b:.3f} s")
    print(f"ratio {a / b:.2f} (mark 0.6); --help {h:.3f} s (mark 0.3)")


if __name__ == "__main__":
    main()
