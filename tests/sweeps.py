"""Questions for evaluate.py, a model that knows their answers, and sweeps over them."""

import atexit
import functools
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from unittest import mock

from fixtures import results
from orchestra.evaluation import command as evaluate
from tests.scripted import complete, finish, is_main

OFFICIAL = {
    "id": 7, "question": "What is number 7?", "answer": "7", "Level": "Easy", "category": "Art", "omni_modal_input": [{"type": "image", "id": "i", "path": "images/clock.png"}],
}  # fmt: skip


def number_asked(request):
    """The scripted model gives the number in the question."""
    if "You check one answer" in request["messages"][0]["content"]:
        return "Correct" if len(request["messages"]) > 1 else "I think so"
    n = re.findall(r"number (\d+)", json.dumps(request["messages"]))[0]
    return complete(n) if is_main(request) else finish(n)


def data_file(folder, count=6):
    """Questions 1 to `count`; the right answer of every third is another number."""
    rows = [
        {"question": f"What is number {n}?", "answer": str(n if n % 3 else -n), "level": f"L{n % 2}", "category": "A B"}
        for n in range(1, count + 1)
    ]  # fmt: skip
    (folder / "data.json").write_text(json.dumps(rows))


def words(folder, *more):
    base = ["run", "--data", folder / "data.json", "--out", folder / "out", "--method", "react"]
    return [str(word) for word in (*base, "--model", "m", *more)]


def sweep(folder, url, *more):
    """The exit code and the newest row of each question, by id."""
    with mock.patch.dict(os.environ, {"OPENAI_BASE_URL": url}):
        code = evaluate.main(words(folder, *more))
    out = Path(more[-1] if "--out" in more else folder / "out")
    rows = (out / "rows.jsonl").read_text().splitlines() if code < 2 else []
    return code, {row["id"]: row for row in map(json.loads, rows)}


@functools.cache
def recorded(name):
    """A sweep of docs/RESULTS.md, unpacked for this process."""
    folder = Path(tempfile.mkdtemp(prefix="orchestra-results-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    results.unpack(results.PACKED, folder)
    return folder / name


def judged(folder, url, *more):
    """The exit code of `evaluate score` with the judge j, and its verdicts by question."""
    with mock.patch.dict(os.environ, {"OPENAI_BASE_URL": url}):
        code = evaluate.main(["score", str(folder), "--judge", "j", *map(str, more)])
    rows = map(json.loads, (folder / "scores/judge.jsonl").read_text().splitlines())
    return code, {row["id"]: row["score"] for row in rows}
