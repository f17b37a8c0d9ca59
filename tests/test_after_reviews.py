"""What outside readers found: money that was billed and not booked, replays of resumed runs, odd users' tools."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

import orchestra_min
from orchestra import repository, secrets, transports, trust
from orchestra.backends import Chat
from orchestra.lines import read
from orchestra.money import Purse
from orchestra.outcomes import built_on
from orchestra.replay import Tape, TapeMiss
from orchestra.run_folder import Manifest, Options, read_manifest, write_manifest
from orchestra.vocabulary import ConfigError, EndpointError, Price, Task
from tests.conftest import ROOT, pool_at
from tests.scripted import Raw, complete, completion, delegate, finish, is_main, last_text
from tools.own import from_file

PAID = Price(1.0, 1.0, 1.0)


def answering(*answers: Any) -> Any:
    left = list(answers)
    return lambda request: left.pop(0) if len(left) > 1 else left[0]


def ask(tape: Tape, url: str, purse: Purse | None = None, call: str = "a", **how: Any) -> str:
    with tape.logical_call(call):
        chat = Chat(tape, timeout_s=how.pop("timeout_s", 5.0))
        name = how.pop("name", "small")
        backend = replace(pool_at(url, price=PAID)["small"], name=name)
        return chat(backend, [{"role": "user", "content": "x"}], purse or Purse(), **how).text


# ---- replays of what was resumed -----------------------------------------------------------------


@pytest.mark.parametrize("refusal", [Raw(402, {"error": {}}), {**completion(""), "choices": []}])
def test_a_resumed_run_replays(refusal, endpoint, tmp_path):
    """The refusal and the answer after it stand under one key."""
    server = endpoint(answering(refusal, "fine"))
    for mode in ("record", "resume", "replay", "resume", "replay"):
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape:
            if mode == "record":
                with pytest.raises(EndpointError):
                    ask(tape, server.url)
            else:
                assert ask(tape, server.url) == "fine"
    assert len(server.requests) == 2


@pytest.mark.parametrize("host", ["127.0.0.1", "LOCALHOST"])
def test_a_refusal_that_came_late_changes_no_call_before_it(host, endpoint, tmp_path):
    """An endpoint takes a schema, and later refuses it: each call replays, and resumes, as it was."""
    taken = []

    def respond(request: dict[str, Any]) -> Any:
        if "response_format" not in request:
            return "plain"
        taken.append(request)
        return "{}" if len(taken) == 1 else Raw(400, {"error": {}})

    server = endpoint(respond)
    url = server.url.replace("127.0.0.1", host)
    schema = ("action", {"type": "object"})
    for mode in ("record", "resume", "replay"):
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape:
            said = [ask(tape, url, call=c, schema=schema) for c in ("a", "b", "c")]
            assert said == ["{}", "plain", "plain"]
    assert len(server.requests) == 4


def test_two_models_in_one_call_are_each_asked_as_they_were(endpoint, tmp_path):
    """A tool asks a model of its own in the step of a sub-agent; only that one wants the newer limit."""

    def respond(request: dict[str, Any]) -> Any:
        if request["model"] == "newer" and "max_tokens" in request:
            return Raw(400, {"error": {"message": "use max_completion_tokens"}})
        return request["model"]

    server = endpoint(respond)
    pool = pool_at(server.url, "older", "newer", max_output_tokens=99)
    for mode in ("record", "replay"):
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape:
            chat, messages = Chat(tape), [{"role": "user", "content": "x"}]
            for call in ("a", "b"):
                with tape.logical_call(call):
                    said = [chat(pool[name], messages, Purse()).text for name in pool.names]
                assert said == ["older", "newer"]
    assert len(server.requests) == 5


def test_one_model_at_two_addresses_in_one_call_is_asked_at_each_as_it_was(endpoint, tmp_path):
    def refusing(request: dict[str, Any]) -> Any:
        return Raw(400, {"error": {}}) if "response_format" in request else "plain"

    servers = [endpoint(lambda request: "{}"), endpoint(refusing)]
    how = {"schema": ("action", {"type": "object"})}
    for mode in ("record", "replay"):
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape:
            for call in ("a", "b"):
                said = [ask(tape, s.url, None, call, name=s.url, **how) for s in servers]
                assert said == ["{}", "plain"]
    assert [len(s.requests) for s in servers] == [2, 3]


@pytest.mark.parametrize("library", ["openai", "requests"])
def test_an_answer_that_can_not_be_decoded_is_on_the_tape_as_that(library, endpoint, tmp_path):
    broken = Raw(200, b"this is no gzip", content_encoding="gzip")
    server = endpoint(lambda request: Raw(200, broken.body, **broken.headers))
    for mode in ("record", "replay"):
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape:
            if library == "openai":
                with pytest.raises(EndpointError, match="broke off its answer"):
                    ask(tape, server.url)
            else:
                with (
                    tape.logical_call("a"),
                    pytest.raises(requests.exceptions.ContentDecodingError),
                ):
                    requests.post(server.url, json={}, timeout=5)
    assert [e["error"]["type"] for e in read(tmp_path / "tape.jsonl")][-1].endswith("DecodingError")


def test_a_damaged_line_in_a_tape_is_told_once_with_its_place(tmp_path, caplog):
    file = tmp_path / "tape.jsonl"
    fact = '{"v": 1, "fact": "a", "value": "b"}'
    file.write_text("\n".join([fact, "{dama", fact, '{"cut', '{"v": 1, "resumed": true}', '{"c']))
    for mode in ("replay", "resume"):
        Tape(file, mode).close()
    [said] = caplog.messages
    assert said.startswith(f"{file}:2: a damaged line is left out")


def test_a_run_resumed_with_more_time_replays(endpoint, tmp_path):
    """What the main agent reads of a sub-agent's timeout names no number of seconds."""

    def respond(request: dict[str, Any]) -> Any:
        if is_main(request):
            told = "reason:" in last_text(request)
            return complete("42") if told else delegate("look")
        time.sleep(1.2)
        return finish("seen")

    out, pool = tmp_path / "run", pool_at(endpoint(respond).url)
    assert orchestra_min.orchestrate("?", (), pool, Options(timeout_s=0.5), out).answer == "42"
    assert orchestra_min.resume(out, timeout_s=0.6).answer == "42"
    assert orchestra_min.replay(out).answer == "42"


# ---- money ---------------------------------------------------------------------------------------


def test_an_answer_without_a_choice_is_booked_by_its_own_count(endpoint, tmp_path):
    server = endpoint(answering({**completion(""), "choices": []}))
    purse = Purse(1.0)
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape, pytest.raises(EndpointError):
        ask(tape, server.url, purse)
    assert purse.spent_usd == pytest.approx(110e-6) and purse.calls == 1


def test_a_call_that_timed_out_is_booked_at_the_most_it_can_cost(endpoint, tmp_path):
    server = endpoint(answering("late"), delay_s=0.4)
    purse = Purse(1.0)
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape, pytest.raises(EndpointError):
        ask(tape, server.url, purse, timeout_s=0.1)
    assert purse.spent_usd is not None and purse.spent_usd > 3 * 4096e-6


@pytest.mark.parametrize("limit_usd, tries", [(1.0, 3), (0.010, 2), (0.005, 1)])
def test_a_try_after_a_time_out_is_made_only_where_its_price_is_left(
    limit_usd, tries, endpoint, tmp_path
):
    """At these prices a try is 4096 tokens and those of its prompt: some 0.0042 USD."""
    server = endpoint(answering("late"), delay_s=0.4)
    spent = []
    for mode in ("record", "replay"):
        purse = Purse(limit_usd)
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape, pytest.raises(EndpointError):
            ask(tape, server.url, purse, timeout_s=0.1)
        spent.append(purse.spent_usd)
    assert spent[0] == spent[1] and tries * 4096e-6 < spent[0] <= limit_usd
    assert len(list(read(tmp_path / "tape.jsonl"))) == tries and purse.paid_usd == 0.0


@pytest.mark.parametrize("trouble", ["late", "undecodable", "broken off"])
def test_an_answer_after_a_try_in_vain_costs_them_both(trouble, endpoint, tmp_path):
    first: dict[str, Callable[[], Any]] = {
        "late": lambda: time.sleep(0.4),
        "undecodable": lambda: Raw(200, b"this is no gzip", content_encoding="gzip"),
        "broken off": lambda: Raw(200, b"{}", content_length="999"),
    }
    tries = iter([first[trouble], lambda: "fine"])
    server = endpoint(lambda request: next(tries)())
    spent = []
    for mode in ("record", "resume", "replay"):
        purse = Purse(1.0)
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape:
            assert ask(tape, server.url, purse, timeout_s=0.2) == "fine"
        spent.append(purse.spent_usd)
        assert purse.calls == 2 and (purse.paid_usd == 0.0) == (mode != "record")
    assert len(set(spent)) == 1 and spent[0] > 4096e-6 + 110e-6


@pytest.mark.parametrize("limit_usd, booked", [(1.0, 4096e-6), (None, None)])
def test_an_answer_that_is_no_json_may_be_on_the_bill(limit_usd, booked, endpoint, tmp_path):
    server = endpoint(lambda request: Raw(200, b'{"choices": [{"mess'))
    purse = Purse(limit_usd)
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape, pytest.raises(EndpointError):
        ask(tape, server.url, purse)
    if booked is None:
        assert purse.spent_usd is None
    else:
        assert purse.spent_usd is not None and purse.spent_usd > booked


# ---- secrets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["\n", "\t", " ", '"', "\\n"])
def test_a_key_shaped_word_is_found_behind_any_space(before):
    assert "sk-abcdefghij0123456789" not in secrets.scrub(
        json.dumps(f"see{before}sk-abcdefghij0123456789")
    )


def test_a_secret_in_the_question_reaches_no_file(endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "top-secret-value-1")
    secrets.look_up()
    server = endpoint(answering(complete("42")))
    orchestra_min.orchestrate(
        "Is top-secret-value-1 safe?", pool=pool_at(server.url), out=tmp_path / "run"
    )
    written = [p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()]
    assert written and not any(b"top-secret-value-1" in data for data in written)
    monkeypatch.undo()
    secrets.look_up()
    assert orchestra_min.replay(tmp_path / "run").answer == "42"


def test_a_dummy_key_that_is_a_word_is_no_secret(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "anything")
    secrets.look_up()
    try:
        assert secrets.scrub("You can do anything here") == "You can do anything here"
    finally:
        monkeypatch.undo()
        secrets.look_up()


def test_a_search_key_follows_no_redirect(endpoint, monkeypatch, tmp_path):
    from tools import ToolError, search

    elsewhere = endpoint(answering({"organic": []}))
    server = endpoint(answering(Raw(302, b"", location=elsewhere.url)))
    monkeypatch.setenv("SERPER_API_KEY", "serper-key-1234567890")
    monkeypatch.setattr(search, "SERPER_URL", server.url)
    with pytest.raises(ToolError):
        search.serper({"q": "x", "num": 3})
    assert elsewhere.requests == []


@pytest.mark.parametrize("answer", [b"[]", b"null", b'{"organic": {"a": 1}}', b'{"organic": [3]}'])
def test_an_odd_answer_of_the_search_is_no_traceback(answer, endpoint, monkeypatch):
    from tools import ToolError, search

    server = endpoint(answering(Raw(200, answer)))
    monkeypatch.setenv("SERPER_API_KEY", "serper-key-1234567890")
    monkeypatch.setattr(search, "SERPER_URL", server.url)
    try:
        assert search.serper({"q": "x", "num": 3}) == []
    except (ToolError, requests.RequestException) as failure:
        assert isinstance(failure, ToolError)


# ---- users' mistakes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["def f(:\n", "import not_there_at_all\n", "raise SystemExit(3)\n", "1 / 0\n"]
)
def test_a_tool_file_that_can_not_be_loaded_is_one_line(text, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(ConfigError, match="can not be loaded") as error:
        from_file(f"{file}:f")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "bad",
    [
        {"parallel": 0},
        {"rounds": -1},
        {"steps": 0},
        {"budget_usd": float("nan")},
        {"timeout_s": 0.0},
    ],
)
def test_a_number_that_no_run_can_have_is_said(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        Options(**bad)


def test_a_picture_of_odd_sides_is_read_in_little_memory(monkeypatch):
    pytest.importorskip("numpy")
    from PIL import Image

    from tools import image

    seen: list[tuple[int, ...]] = []

    class Engine:
        txts = ()

        def __call__(self, pixels: Any) -> Engine:
            seen.append(pixels.shape)
            return self

    monkeypatch.setattr(image, "_ocr", lambda quick: Engine())
    image.read_text(Image.new("RGB", (2000, 1)))
    assert seen == [(500, 2000, 3)]


def test_a_work_folder_is_whole_or_not_there(tmp_path):
    """A kill while it is copied leaves a part of another name, and the next try begins anew."""
    from subagents.work_folder import prepare

    (tmp_path / "workdir").mkdir()
    (tmp_path / "workdir" / "a.txt").write_text("a")
    folder = tmp_path / "work" / "r1-t1"
    part = Path(folder.parent, ".r1-t1.part")
    part.mkdir(parents=True)
    (part / "half.txt").write_text("h")
    prepare(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["a.txt"] and not part.exists()


def test_a_pipe_in_a_repository_is_left_out_of_its_copy(tmp_path):
    source = tmp_path / "source"
    (tmp_path / "run").mkdir()
    subprocess.run(["git", "init", "-q", str(source)], check=True)
    (source / "a.txt").write_text("a")
    os.mkfifo(source / "pipe")
    repository.copy_into(tmp_path / "run", source)
    copied = {p.name for p in (tmp_path / "run" / "workdir").iterdir()}
    assert copied == {"a.txt", ".git"}


@pytest.mark.parametrize("question", ['Who said "hi"?', "It's $5 or `ls`, 100%?"])
def test_make_live_asks_any_question_as_it_is(question, tmp_path):
    (tmp_path / "run").touch()  # as if set up
    asked = ["live", f"VENV={tmp_path}", "RUN=echo", f"QUESTION={question}"]
    done = subprocess.run(["make", "-s", *asked], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == f"orchestra_min.py --question {question}\n", done.stderr


def test_the_last_line_of_the_log_names_no_round_that_was_not(endpoint, tmp_path):
    server = endpoint(answering(complete("42")))
    orchestra_min.orchestrate("?", pool=pool_at(server.url), out=tmp_path / "run")
    last = (tmp_path / "run" / "log.txt").read_text().splitlines()[-1]
    assert last.partition(",")[2].split(" ", 1)[1].startswith("answer: '42'")


def test_a_replay_without_its_tape_says_so(endpoint, tmp_path):
    server = endpoint(answering(complete("42")))
    orchestra_min.orchestrate("?", pool=pool_at(server.url), out=tmp_path / "run")
    (tmp_path / "run" / "tape.jsonl").unlink()
    with pytest.raises(ConfigError, match="tape.jsonl: is missing"):
        orchestra_min.replay(tmp_path / "run")


# ---- what a resume and a replay go on from -------------------------------------------------------


def test_a_resume_keeps_the_failure_that_later_rounds_were_built_on(endpoint, tmp_path):
    dead = {"main": True, "small": True}

    def respond(request: dict[str, Any]) -> Any:
        if not is_main(request):
            return Raw(400, {"error": {"message": "busy"}}) if dead["small"] else finish("seen")
        if "t2" in last_text(request):
            return Raw(401, {}) if dead["main"] else complete("42")
        return delegate("look again") if "reason:" in last_text(request) else delegate("look")

    server, out = endpoint(respond), tmp_path / "run"
    with pytest.raises(EndpointError):
        orchestra_min.orchestrate("?", (), pool_at(server.url), Options(rounds=3), out)
    dead.update(main=False, small=False)
    asked = len(server.requests)
    assert orchestra_min.resume(out).answer == "42"
    assert len(server.requests) - asked == 2  # the last sub-task, which none had gone on from
    assert orchestra_min.replay(out).answer == "42"


def test_an_endpoint_that_wants_a_refusal_tried_again_replays(endpoint, tmp_path):
    server = endpoint(answering(Raw(400, {"error": {}}, x_should_retry="true"), "fine"))
    for mode in ("record", "replay", "resume", "replay"):
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape:
            assert ask(tape, server.url) == "fine"
    assert len(server.requests) == 2


def test_a_call_that_may_be_on_the_bill_is_kept(endpoint, tmp_path):
    server = endpoint(answering("late"), delay_s=0.4)
    with pytest.raises(EndpointError):
        orchestra_min.orchestrate(
            "?", (), pool_at(server.url), Options(timeout_s=0.1), tmp_path / "run"
        )
    assert len(list(read(tmp_path / "run" / "tape.jsonl"))) == 3


def test_a_folder_of_the_users_stays_when_a_run_in_it_comes_to_nothing(endpoint, tmp_path):
    (tmp_path / "mine").mkdir()
    for name in ("mine", "new"):
        with pytest.raises(EndpointError):
            url = endpoint(lambda request: Raw(401, {})).url
            orchestra_min.orchestrate("?", (), pool_at(url), Options(), tmp_path / name)
    assert list((tmp_path / "mine").iterdir()) == [] and not (tmp_path / "new").exists()


# ---- secrets, and what is no text ----------------------------------------------------------------


def test_a_secret_of_digits_leaves_json_whole(endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", "20250923")
    said = {**completion("it is 20250923"), "created": 2025092312}
    server = endpoint(lambda request: said)
    for mode in ("record", "replay"):
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape:
            assert ask(tape, server.url) == "it is <DB_PASSWORD>"


def test_no_run_json_holds_a_secret_and_a_resume_has_it_again(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "a1b2c3d4e5f6")
    secrets.look_up()
    options = Options(mcp=("serve a1b2c3d4e5f6",))
    write_manifest(tmp_path, Manifest(Task("?", ()), pool_at("http://127.0.0.1:9/v1"), options))
    trust.claim(tmp_path)
    assert "a1b2c3d4e5f6" not in (tmp_path / "run.json").read_text()

    def resumed(*mcp: str) -> tuple[str, ...]:
        manifest = read_manifest(tmp_path)
        return trust.checked(tmp_path, manifest, trust.Named(mcp=mcp), resumed=True).options.mcp

    assert resumed() == ("serve a1b2c3d4e5f6",)
    (tmp_path / "owner").unlink()  # a stranger's: the user's key goes where the user sends it
    with pytest.raises(ConfigError, match="add --mcp 'serve <MY_TOKEN>'"):
        resumed()
    assert resumed("serve a1b2c3d4e5f6") == ("serve a1b2c3d4e5f6",)
    assert resumed("serve <MY_TOKEN>") == ("serve <MY_TOKEN>",)


@pytest.mark.parametrize("value", ["dummy", "", "short1", "a1b2c3d4e5f6"])
def test_a_replay_needs_no_secret_of_the_record(value, endpoint, tmp_path, monkeypatch):
    pytest.importorskip("mcp")
    (tmp_path / "server.py").write_text(
        "from mcp.server import MCPServer\nserver = MCPServer('x')\n\n\n@server.tool()\n"
        "def add(a: int) -> int:\n    'Add.'\n    return a\n\n\nserver.run()\n"
    )
    monkeypatch.setenv("MY_TOKEN", "a1b2c3d4e5f6")
    command = f"{sys.executable} {tmp_path}/server.py a1b2c3d4e5f6"
    pool = pool_at(endpoint(lambda request: complete("42")).url)
    orchestra_min.orchestrate("?", (), pool, Options(mcp=(command,)), tmp_path / "run")
    monkeypatch.setenv("MY_TOKEN", value)
    assert orchestra_min.replay(tmp_path / "run").answer == "42"


def test_a_redirect_leaves_no_key_on_the_tape(endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "a1b2c3d4e5f6")
    to = "http://127.0.0.1:9/v1?api_key=other-key-1234&x=a1b2c3d4e5f6"
    server = endpoint(lambda request: Raw(307, b"", location=to))
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape, pytest.raises(EndpointError):
        ask(tape, server.url)
    text = (tmp_path / "tape.jsonl").read_text()
    assert "other-key-1234" not in text and "a1b2c3d4e5f6" not in text and "<SECRET>" in text


@pytest.mark.parametrize(
    "url", ["http://a..b/v1", "http://a/v1\n", " http://a/v1", f"http://{'a' * 64}.b/v1"]
)
def test_an_address_that_no_client_takes_is_none(url):
    assert secrets.url_problem(url).startswith("needs http(s)://host/v1")


def test_an_address_with_a_key_in_it_is_none(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "a1b2c3d4e5f6")
    secrets.look_up()
    assert secrets.url_problem("http://a/a1b2c3d4e5f6/v1").startswith("holds a key")


def test_an_answer_without_end_is_broken_off(endpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(transports._Limits.__init__, "__defaults__", (1 << 16,))
    server = endpoint(answering("x" * (1 << 17)))
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape:
        with pytest.raises(EndpointError, match="broke off its answer"):
            ask(tape, server.url)


# ---- what else endpoints say ---------------------------------------------------------------------


def test_what_is_refused_is_given_up_one_by_one(endpoint, tmp_path):
    """An endpoint without log-probabilities keeps the schema."""

    def respond(request: dict[str, Any]) -> Any:
        return Raw(404, {"error": {}}) if "logprobs" in request else "{}"

    server = endpoint(respond)
    how = {"schema": ("action", {"type": "object"}), "logprobs": True}
    for mode in ("record", "replay"):
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape:
            for call in ("a", "b"):
                assert ask(tape, server.url, None, call, **how) == "{}"
    assert ["response_format" in r for r in server.requests] == [True, True, True]
    assert ["logprobs" in r for r in server.requests] == [True, False, False]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_an_answer_filed_under_the_thoughts_is_found(field, endpoint, tmp_path):
    said = completion("")
    said["choices"][0]["message"] = {"role": "assistant", "content": None, field: "42"}
    with closing(Tape(tmp_path / "tape.jsonl", "record")) as tape:
        assert ask(tape, endpoint(lambda request: said).url) == "42"


@pytest.mark.parametrize("arguments", [{"answer": "42"}, '{"answer": "42"}'])
def test_a_decision_as_a_tool_call_is_one(arguments, endpoint, tmp_path):
    said = completion("")
    call = {"type": "function", "function": {"name": "complete", "arguments": arguments}}
    said["choices"][0]["message"] = {"role": "assistant", "content": None, "tool_calls": [call]}
    pool = pool_at(endpoint(lambda request: said).url)
    assert orchestra_min.orchestrate("?", (), pool, Options(), tmp_path / "run").answer == "42"


# ---- what a second reading found -----------------------------------------------------------------


def test_a_fork_keeps_the_failures_of_the_rounds_before(endpoint, tmp_path):
    def respond(request: dict[str, Any]) -> Any:
        if is_main(request):
            return complete("42") if "reason:" in last_text(request) else delegate("look")
        return Raw(400, {"error": {"message": "busy"}})

    server, out = endpoint(respond), tmp_path / "run"
    orchestra_min.orchestrate("?", (), pool_at(server.url), Options(), out)
    asked = len(server.requests)
    orchestra_min.resume(out, from_round=2, out=tmp_path / "fork")
    assert len(server.requests) - asked == 1  # the decision of round 2
    assert orchestra_min.replay(tmp_path / "fork").answer == "42"


def test_parts_side_by_side_are_not_built_on_each_other():
    def entry(call: str, code: int) -> dict[str, Any]:
        status = {"code": code}
        return {"call": call, "request": {"uri": "u"}, "response": {"status": status}}

    failed, answer = entry("r1/t1/s1/part2", 400), entry("r1/t1/s1/part1", 200)
    assert built_on([failed, answer]) == built_on([answer, failed]) == set()
    assert built_on([failed, answer, entry("r1/t1/s2", 200)]) == {id(failed)}


def test_a_trouble_of_the_moment_is_not_learnt(endpoint, tmp_path):
    left = [Raw(500, {"error": {}}) for _ in range(3)]
    server = endpoint(lambda request: left.pop() if left else "{}")
    how = {"schema": ("action", {"type": "object"})}
    for mode in ("record", "replay"):
        with closing(Tape(tmp_path / "tape.jsonl", mode)) as tape:
            assert [ask(tape, server.url, None, call, **how) for call in "ab"] == ["{}", "{}"]
    assert ["response_format" in r for r in server.requests] == [True, True, True, False, True]


def test_a_file_named_like_a_key_has_another_name_in_the_run(endpoint, tmp_path):
    picture = tmp_path / "hf-20240612-evening-walk.png"
    picture.write_bytes((ROOT / "fixtures" / "media" / "clock.png").read_bytes())
    pool = pool_at(endpoint(lambda request: "no decision").url)
    orchestra_min.orchestrate("?", [("image", picture)], pool, Options(), tmp_path / "run")
    assert [p.name for p in (tmp_path / "run" / "media").iterdir()] == ["media.png"]
    orchestra_min.replay(tmp_path / "run")


def test_a_run_in_the_folder_one_stands_in_leaves_it_when_it_comes_to_nothing(
    endpoint, tmp_path, monkeypatch
):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(EndpointError):
        url = endpoint(lambda request: Raw(401, {})).url
        orchestra_min.orchestrate("?", (), pool_at(url), Options(), ".")
    assert list(Path().iterdir()) == []


def test_a_replay_of_a_run_that_was_not_finished_says_so(endpoint, tmp_path):
    answers = iter([delegate("look"), finish("seen"), Raw(401, {})])
    with pytest.raises(EndpointError):
        pool = pool_at(endpoint(lambda request: next(answers)).url)
        orchestra_min.orchestrate("?", (), pool, Options(), tmp_path / "run")
    rows = (tmp_path / "run" / "tape.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run" / "tape.jsonl").write_text("".join(rows[:-1]))  # as after a kill
    with pytest.raises(TapeMiss, match="not finished: --resume"):
        orchestra_min.replay(tmp_path / "run")
