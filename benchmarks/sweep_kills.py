#!/usr/bin/env python3
"""kill -9 of a sweep at random moments, then the same command again: is a row lost or written twice, is anything paid twice?

python benchmarks/sweep_kills.py [KILLS=10] [QUESTIONS=40]        8 questions in flight, each with 8 sub-tasks of 5 calls a round
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path

from common import ROOT, killed
from kills import Endpoint, answers_on, script


def paid(out: Path) -> list[tuple[str, str, str]]:
    """The answers on the tapes of a sweep."""
    runs = sorted((out / "runs").iterdir())
    return [(str(run), *answer) for run in runs for answer in answers_on(run)]


def main(kills: int = 10, questions: int = 40) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data, out = Path(folder, "data.jsonl"), Path(folder, "out")
        rows = (
            {"question": f"What is {n}?", "answer": "42"}
            for n in range(1, questions + 1)
        )
        data.write_text("\n".join(map(json.dumps, rows)))
        server = Endpoint(script, delay_s=0.05)
        flags = f"run --data {data} --out {out} --model m --workers 8".split()
        command, in_flight = (
            [sys.executable, str(ROOT / "orchestra_min.py"), "evaluate", *flags],
            list[int](),
        )
        while True:
            after_s = random.random() * 3 if len(in_flight) < kills else None
            calls = killed(command, server, after_s)
            if calls is None:
                break
            in_flight.append(calls)
        lines = [
            json.loads(line)["id"]
            for line in (out / "rows.jsonl").read_text().splitlines()
        ]
        answers, beyond = paid(out), len(server.requests) - len(paid(out))
        server.close()
        assert sorted(lines, key=int) == [str(n) for n in range(1, questions + 1)], (
            lines
        )
        assert len(answers) == len(set(answers)), (
            "an answer on a tape was paid for twice"
        )
        print(
            f"{len(in_flight)} kills: {len(lines)} rows of {questions} questions, none lost, none twice; {len(answers)} calls, "
            f"{beyond} beyond the minimum, {sum(in_flight)} were in flight at the kills"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
