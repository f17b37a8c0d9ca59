"""A program that runs us: its own calls and its own cassettes are untouched."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import requests
import vcr

from orchestra_min import orchestrate
from tests.conftest import pool_at
from tests.program import replay
from tests.scripted import complete


def test_calls_of_the_host_program_are_untouched_before_during_and_after(endpoint, tmp_path):
    import openai  # takes long

    numbers = count()
    other = endpoint(lambda request: f"mine {next(numbers)}")
    client = openai.OpenAI(base_url=other.url, api_key="none")
    messages: Any = [{"role": "user", "content": "mine"}]

    url = f"{other.url}/chat/completions"
    by = (
        lambda: client.chat.completions.create(model="m", messages=messages).to_dict(),
        lambda: requests.post(url, json={"messages": messages}, timeout=5).json(),
    )

    def mine(*_: Any) -> None:
        with ThreadPoolExecutor(1) as thread:
            for ask in by:
                reply = thread.submit(ask).result()
                said = reply["choices"][0]["message"]["content"]
                assert said == f"mine {len(other.requests) - 1}"

    mine()
    pool = pool_at(endpoint(lambda request: complete("42")).url)
    orchestrate("?", (), pool, None, tmp_path / "run", listeners=[mine])
    tape = (tmp_path / "run" / "tape.jsonl").read_text()
    replay(tmp_path / "run", listeners=[mine])
    mine()
    assert len(other.requests) > 8 and "mine" not in tape


# fails at d04ee41
def test_a_run_inside_a_cassette_of_the_host_program_has_its_own_tape(endpoint, tmp_path):
    server = endpoint(lambda request: complete("42"))
    with vcr.use_cassette(str(tmp_path / "mine.yaml")):
        for name in ("first", "second"):
            assert orchestrate("?", (), pool_at(server.url), None, tmp_path / name).answer == "42"
    server.close()
    for name in ("first", "second"):
        assert replay(tmp_path / name).answer == "42"
