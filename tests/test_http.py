"""What the program sends and reads over HTTP, in vcrpy cassettes; `make cassettes` records them again.

A request that differs from the recorded one in method, path or body fails its test. There is no
cassette of a web page, because vcrpy does not see the sockets of tools/guard.py;
tests/tools/test_web.py and tests/attacks/test_network.py fetch pages over loopback.
"""

import json
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import vcr.stubs

from fixtures import record_cassettes
from orchestra.command import pool_file
from orchestra.kernel.tool import Environment
from orchestra.methods.orchestra_o1 import stop_probability
from orchestra.tools import hearing, search_engines
from tests.conftest import Chat, Engine, Pool, Price, Purse, Tape, Task, pool_at
from tests.program import SPEECH
from tests.scripted import Raw

CASSETTES = Path(__file__).with_name("cassettes")
KEY = "sk-key-of-the-cassettes-1234567890"
MODEL = "models/qwen-coder-1.5b.gguf"
CAPITAL = [{"role": "user", "content": "What is the capital of Czechia?"}]
ACTIONS = ["complete", "delegate_task"]
ACTION = {"action": {"type": "string", "enum": ACTIONS}}
SCHEMA = "decision", {"type": "object", "properties": ACTION, "required": ["action"]}


@pytest.fixture
def cassette(request, endpoint, monkeypatch):
    """Play a cassette with sockets blocked; with --record-cassettes, record it from an endpoint: its
    URL, or a function that answers requests.
    """
    recording = request.config.getoption("--record-cassettes")

    @contextmanager
    def use(name, source):
        path, url = CASSETTES / f"{name}.yaml", f"{record_cassettes.HOST}/v1"
        if recording:
            url = source if isinstance(source, str) else endpoint(source).url
        else:
            request.getfixturevalue("no_network")
        mode = {"record_mode": "all" if recording else "none", "drop_unused_requests": recording}
        with record_cassettes.RECORDER.use_cassette(path, **mode) as played:
            yield url
        assert recording or played.all_played
        assert KEY not in path.read_text()

    def read1(response, amount=-1, decode_content=None):  # vcrpy's knows no decode_content
        return response._content.read1(amount)

    monkeypatch.setattr(vcr.stubs.VCRHTTPResponse, "read1", read1)
    monkeypatch.setenv("KEY_OF_THE_TEST", KEY)
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    return use


@pytest.fixture
def chat(tmp_path):
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape, tape.call("r1", "main"):
        yield Chat(tape)


def backend_at(url):
    fields = {"max_output_tokens": 40, "options": {"temperature": 0.0}}
    prices = {"price": Price(1.0, 10.0), "api_key_env": "KEY_OF_THE_TEST"}
    return pool_at(url, MODEL, **prices, **fields).backends[0]


def test_a_decision_follows_the_schema_with_its_probability_and_cost(cassette, chat):
    decide = [{"role": "user", "content": "The answer is 42. Reply with the action."}]
    with cassette("decision", record_cassettes.MODEL_SERVER) as url:
        reply = chat(backend_at(url), decide, purse := Purse(), SCHEMA, logprobs=True)
    assert json.loads(reply.text)["action"] in ACTIONS and not reply.cut
    assert 0 < stop_probability(reply.logprobs) <= 1
    assert {len(row["top_logprobs"]) for row in reply.logprobs} == {5}
    output = len(reply.logprobs)
    assert reply.cost_usd == pytest.approx((purse.tokens - output + 10 * output) / 1e6)


def test_the_only_model_of_a_server_is_found(cassette):
    with cassette("models", record_cassettes.MODEL_SERVER) as url:
        (found,) = pool_file.with_models(pool_at(url, "")).backends
    assert found.model == MODEL


def test_a_rate_limited_call_waits_and_costs_nothing(cassette, chat, monkeypatch):
    pauses_s, limit = [], {"error": {"message": "slow down", "code": 429}}
    answers = [Raw(429, limit, retry_after=s) for s in ("2", "0")] + ["Prague"]
    monkeypatch.setattr(chat.tape, "wait", pauses_s.append)
    monkeypatch.setattr("orchestra.kernel.attempts.PAUSE_S", 0.25)
    with cassette("rate_limit", lambda request: answers.pop(0)) as url:
        assert chat(backend_at(url), CAPITAL, purse := Purse()).text == "Prague"
    assert pauses_s == [0, 2.0, 0.5]  # Retry-After: 0 leaves the program's own pause
    assert (purse.calls, purse.tokens) == (1, 110)


def test_a_transcription_sends_model_hint_and_sound(cassette, chat):
    engine, task, purse = (
        Engine("endpoint", MODEL, "whisper-1", 0.01),
        Task("The equinox?"),
        Purse(),
    )
    with cassette("transcription", record_cassettes.transcription) as url:
        pool = Pool((backend_at(url),), MODEL)
        env = Environment(task, pool[MODEL], pool, chat, chat.tape, purse, Path())
        text = hearing._transcription(env, engine, SPEECH.read_bytes(), minutes=1.0)
    assert "September 23" in text and purse.costs == purse.paid == [0.01]


def test_a_search_reads_title_link_and_text_of_each_page(cassette, monkeypatch):
    with cassette("search", record_cassettes.search) as url:
        monkeypatch.setenv("SERPER_URL", f"{url}/search")
        rows = search_engines.serper({"q": "tram to the observatory", "num": 2})
    assert [row["title"].partition(":")[0] for row in rows] == ["Northfield Observatory"] * 2
    assert rows[0]["link"] == "http://intranet.test/observatory.html"
    assert "The Northfield Observatory stands on the" in rows[0]["text"]
