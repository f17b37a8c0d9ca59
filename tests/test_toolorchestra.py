"""ToolOrchestra: tool calls in every form, both modes end to end, and the pool file."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

import orchestra_min
from orchestra import trajectory
from orchestra.pool_file import load
from orchestra.run_folder import Options
from orchestra.vocabulary import Backend, ConfigError, ModelMistake, Price
from orchestra.workers import EXPERT_SLOTS, Worker
from orchestra_min import orchestrate, replay
from orchestrators.tool_calls import read_call
from tests.conftest import ROOT, pool_at
from tests.scripted import Raw, completion, cut_off, last_text
from tools import Environment, all_tools, tool

CLOCK = ROOT / "fixtures" / "media" / "clock.png"


def call(name, slot, tag="<tool_call>{}</tool_call>"):
    return tag.format(json.dumps({"name": name, "arguments": {"model": slot}}))


SEARCH = call("search", "search-1")
ANSWER = call("answer", "answer-2")
STRING = json.dumps({"name": "search", "arguments": json.dumps({"model": "search-1"})})

GOOD = {
    "a tag": SEARCH,
    "no closing tag": SEARCH.removesuffix("</tool_call>"),
    "arguments as a JSON string": f"<tool_call>{STRING}</tool_call>",
    "a string and no closing tag": f"<tool_call>{STRING}",
    "prose around": f"I will search.\n{SEARCH}\nDone.",
    "thinking before": f"<think>call answer? {ANSWER}</think>{SEARCH}",
    "only the closing tag of thinking": f"hm {ANSWER}</think>\n{SEARCH}",
    "lines within the tag": SEARCH.replace(">{", ">\n{").replace("}<", "}\n<"),
    "a broken tag before": f"<tool_call>{{broken</tool_call>{SEARCH}",
    "an empty tag before": f"<tool_call></tool_call>{SEARCH}",
    "an unknown tool before": call("browse", "x") + SEARCH,
    "an unknown slot before": call("search", "search-9") + SEARCH,
    "an unclosed broken tag before": f'<tool_call>{{"name": "sea {SEARCH}',
    "two good ones, the first counts": SEARCH + ANSWER,
    "a fence in the tag": call("search", "search-1", "<tool_call>```json\n{}\n```</tool_call>"),
    "no tag at all": call("search", "search-1", "{}"),
    "spaces in the slot": call("search", " search-1 "),
    "extra arguments": '<tool_call>{"name": "search", "arguments": {"model": "search-1", "q": 1}}',
    "extra keys": '<tool_call>{"id": 1, "name": "search", "arguments": {"model": "search-1"}}',
    "parameters for arguments": call("search", "search-1").replace("arguments", "parameters"),
    "a list in the tag": f"<tool_call>[{STRING}]</tool_call>",
    "arguments as a JSON string twice": SEARCH.replace(
        '{"model": "search-1"}', json.dumps(json.dumps('{"model": "search-1"}'))),
    "arguments as a string in single quotes": SEARCH.replace(
        '{"model": "search-1"}', json.dumps("{'model': 'search-1'}")),
    "single quotes": SEARCH.replace('"', "'"),
    "a brace too few": SEARCH.replace("}}", "}"),
    "a comma too many": SEARCH.replace("}}", "},}"),
    "a mended one before a good one": SEARCH.replace('"', "'").replace("h-1", "h-2") + SEARCH,
    "thinking of another name": f"<thinking>{ANSWER}</thinking>{SEARCH}",
    "text behind the object": SEARCH.replace("}}", "}} and so on"),
}  # fmt: skip

BAD = {
    "nothing": ("", "holds no tool call"),
    "prose": ("The answer is 42.", "It began: 'The answer"),
    "a call in the thinking alone": (f"<think>{SEARCH}</think>", "holds no tool call"),
    "no JSON in the tag": ("<tool_call>search, please", "is no JSON object"),
    "a name that is a number": ("<tool_call>{'name': 1", "no tool 1"),
    "a number": ("<tool_call>42</tool_call>", "is no JSON object"),
    "an unknown tool": (call("browse", "search-1"), "no tool 'browse'"),
    "no name": ('<tool_call>{"arguments": {}}</tool_call>', "no tool None"),
    "a name that is a list": ('<tool_call>{"name": ["search"]}</tool_call>', "no tool ['search']"),
    "no arguments": ('<tool_call>{"name": "search"}</tool_call>', "has no model None"),
    "arguments null": ('<tool_call>{"name": "search", "arguments": null}', "has no model None"),
    "arguments that are no JSON": (
        '<tool_call>{"name": "search", "arguments": "s"}',
        "search are no JSON obj",
    ),
    "arguments that are a list": (
        '<tool_call>{"name": "search", "arguments": ["search-1"]}',
        "but ['search-1']. Give",
    ),
    "a slot of another tool": (call("search", "answer-1"), "one of: search-1, search-2"),
    "a slot that is true": (call("search", True), "no model True"),
    "an empty slot": (call("search", ""), "no model ''"),
}


@pytest.mark.parametrize("reply", GOOD.values(), ids=GOOD)
def test_a_call_is_read_in_every_form(reply):
    assert read_call(reply, EXPERT_SLOTS) == ("search", "search-1")


@pytest.mark.parametrize(("reply", "told"), BAD.values(), ids=BAD)
def test_a_reply_without_a_usable_call_is_told_why(reply, told):
    with pytest.raises(ModelMistake) as mistake:
        read_call(reply, EXPERT_SLOTS)
    assert told in str(mistake.value)


def test_a_call_cut_off_at_the_length_limit_is_told_as_cut():
    with pytest.raises(ModelMistake, match="cut off at its length limit"):
        read_call(SEARCH[:40], EXPERT_SLOTS, cut=True)
    assert read_call(SEARCH + " and so", EXPERT_SLOTS, cut=True) == ("search", "search-1")


@pytest.mark.parametrize(
    "piece", ["<tool_call>", "<tool_call>" + "{'a': [" * 125, "{", "[", '{"a":', "</think>", "x"]
)
def test_much_garbage_is_refused_within_a_second(piece):
    started = time.perf_counter()
    with pytest.raises(ModelMistake):
        read_call(piece * (1_000_000 // len(piece)), EXPERT_SLOTS)
    assert time.perf_counter() - started < 1.0


# ---- mode rl -------------------------------------------------------------------------------------


@tool("GoogleSearchAction", "web")
def found(env: Environment, query: str) -> str:
    """Search.

    query: what
    """
    return env.local("search", {"query": query}, lambda: f"found for {query}")


@pytest.fixture
def with_search(monkeypatch):
    tools = lambda task: {**all_tools(), "GoogleSearchAction": found}  # noqa: E731
    monkeypatch.setattr(orchestra_min, "tools_for", tools)


def is_main(request):
    return "using tools" in request["messages"][0]["content"]


def run(endpoint, tmp_path, *turns, work=lambda request: "Answer: 42", **options):
    queue = iter(turns)
    server = endpoint(lambda r: next(queue) if is_main(r) or is_prompted(r) else work(r))
    names, media = options.pop("names", ("small",)), options.pop("media", ())
    pool = options.pop("pool", lambda url: pool_at(url, *names))(server.url)
    options = Options(method="toolorchestra", **options)
    return orchestrate("What is it?", media, pool, options, tmp_path / "run"), server


def mains(server):
    return [last_text(r) for r in server.requests if is_main(r) or is_prompted(r)]


def test_an_answer_ends_the_run(endpoint, tmp_path):
    result, server = run(endpoint, tmp_path, ANSWER)
    assert (result.answer, result.fallback, result.rounds, result.calls) == ("42", False, 1, 2)
    assert mains(server)[0] == "Problem: What is it?\n\n\n\nChoose an appropriate tool."


def test_a_turn_cut_off_at_the_length_limit_is_told_as_cut(endpoint, tmp_path):
    result, server = run(endpoint, tmp_path, cut_off(ANSWER[:30]), ANSWER)
    assert "cut off at its length limit" in mains(server)[1] and not result.fallback


def test_the_three_tools_are_declared_with_slots_prices_and_latencies(endpoint, tmp_path):
    _, server = run(endpoint, tmp_path, ANSWER)
    declared = {t["function"]["name"]: t["function"] for t in server.requests[0]["tools"]}
    assert list(declared) == ["enhance_reasoning", "answer", "search"]
    model = declared["answer"]["parameters"]["properties"]["model"]
    assert model["enum"][-1] == "answer-math-2" and "answer-1: USD 1.25 in, 10 out" in str(model)


def test_a_call_of_the_endpoint_s_own_kind_is_read(endpoint, tmp_path):
    function = {"name": "answer", "arguments": '{"model": "answer-1"}'}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "function": function}],
    }
    reply = completion("") | {"choices": [{"index": 0, "message": message}]}
    result, _ = run(endpoint, tmp_path, reply)
    assert (result.answer, result.rounds) == ("42", 1)
    assert replay(tmp_path / "run").answer == "42"


def test_an_endpoint_that_takes_no_tools_reads_them_in_the_text(endpoint, tmp_path):
    refuse = Raw(400, {"error": {"message": "no tools here"}})
    result, server = run(endpoint, tmp_path, refuse, ANSWER)
    assert result.answer == "42" and "tools" not in server.requests[1]
    system = server.requests[1]["messages"][0]["content"]
    assert "<tools>" in system and '"enhance_reasoning"' in system
    assert replay(tmp_path / "run").answer == "42"


def test_reasoning_and_its_code_s_output_come_back(endpoint, tmp_path):
    def work(request):
        reasons = "Do not answer the problem yet" in last_text(request)
        return "so:\n```python\nprint(6 * 7)\n```" if reasons else "Answer: 42"

    reason = call("enhance_reasoning", "reasoner-1")
    _, server = run(endpoint, tmp_path, reason, ANSWER, work=work)
    assert "Output of the program:\n42" in mains(server)[1]
    assert "Output of the program:\n42" in last_text(server.requests[-1])


def test_thinking_is_neither_reasoning_nor_an_answer(endpoint, tmp_path):
    said = "<think>hm\n```python\nprint(1)\n```</think>\nso 7"
    work = lambda r: said if "Do not answer" in last_text(r) else "Answer: 42"  # noqa: E731
    reason = call("enhance_reasoning", "reasoner-1")
    _, server = run(endpoint, tmp_path, reason, ANSWER, work=work)
    assert "1. so 7\n" in mains(server)[1]
    result, _ = prompted(endpoint, tmp_path / "2", "x", "y", work=lambda _: said)
    assert (result.answer, result.fallback) == ("so 7", True)


def test_search_uses_the_search_tool(endpoint, tmp_path, with_search):
    work = lambda r: "Query: a\nQuery: b" if "search queries" in last_text(r) else "Answer: 1"  # noqa: E731
    _, server = run(endpoint, tmp_path, SEARCH, ANSWER, work=work)
    assert "Documents:\nDoc 1: found for a\n\nfound for b" in mains(server)[1]


def test_search_without_an_engine_says_so(endpoint, tmp_path):
    _, server = run(endpoint, tmp_path, SEARCH, ANSWER)
    assert "search1 failed: There is no search engine configured" in mains(server)[1]


def test_one_kind_never_erases_another(endpoint, tmp_path, with_search):
    def work(request):
        text = last_text(request)
        return "Query: a" if "search queries" in text else "x" * 30_000

    turns = (SEARCH, call("enhance_reasoning", "reasoner-2"), SEARCH, ANSWER)
    _, server = run(endpoint, tmp_path, *turns, work=work)
    assert "Doc 2: found for a" in mains(server)[3] and "xxx" in mains(server)[3]
    assert len(mains(server)[3]) < 18_000


def test_slots_go_to_the_backends_of_the_table(endpoint, tmp_path):
    names = ("one", "two", "three")
    turns = (call("enhance_reasoning", "reasoner-3"), call("answer", "answer-math-2"))
    _, server = run(endpoint, tmp_path, *turns, names=names)
    assert [r["model"] for r in server.requests] == ["one", "three", "one", "two"]


def test_a_failed_expert_is_told_and_the_run_goes_on(endpoint, tmp_path):
    replies = iter([Raw(400, {"error": {"message": "broken"}}), "Answer: 7"])
    result, server = run(endpoint, tmp_path, ANSWER, ANSWER, work=lambda _: next(replies))
    assert (result.answer, result.fallback, result.rounds) == ("7", False, 2)
    assert "answer1 failed" in mains(server)[1] and "broken" in mains(server)[1]


def test_the_first_unusable_reply_is_told_back(endpoint, tmp_path):
    result, server = run(endpoint, tmp_path, "hm", ANSWER)
    assert (result.answer, result.fallback) == ("42", False)
    assert "holds no tool call" in mains(server)[1]


def test_the_second_falls_back_to_the_strongest_slot_with_the_context(endpoint, tmp_path):
    reason = call("enhance_reasoning", "reasoner-1")
    work = lambda r: "a clue" if "Do not answer" in last_text(r) else "Answer: 9"  # noqa: E731
    result, server = run(endpoint, tmp_path, reason, "hm", "hm", work=work, names=("one", "two"))
    assert (result.answer, result.fallback) == ("9", True)
    assert server.requests[-1]["model"] == "one" and "a clue" in last_text(server.requests[-1])


def test_out_of_turns_the_strongest_slot_answers(endpoint, tmp_path):
    reason = call("enhance_reasoning", "reasoner-1")
    result, server = run(endpoint, tmp_path, *[reason] * 8)
    assert (result.answer, result.fallback, result.rounds) == ("42", True, 8)
    assert len(mains(server)) == 8 and replay(tmp_path / "run").answer == "42"


def test_the_fallback_passes_over_a_slot_that_has_failed(endpoint, tmp_path):
    def work(request):
        refuse = Raw(400, {"error": {"message": "no"}})
        return refuse if request["model"] == "one" else "Answer: 7"

    result, _ = run(endpoint, tmp_path, *["hm"] * 4, work=work, names=("one", "two"))
    assert (result.answer, result.fallback, result.rounds) == ("7", True, 2)


@pytest.mark.parametrize("mode", ["rl", "prompted"])
def test_all_files_are_looked_at_first_however_few_may_run_at_once(mode, endpoint, tmp_path):
    other = tmp_path / "other.png"
    other.write_bytes(CLOCK.read_bytes() + b"x")
    media = [("image", CLOCK), ("image", other)]
    looks = iter(["12:34", "56:78"])
    work = lambda r: next(looks) if "Look at the picture" in last_text(r) else "Answer: 1"  # noqa: E731
    turn = ANSWER if mode == "rl" else final("1")
    options = {"work": work, "media": media, "mode": mode, "parallel": 1}
    _, server = run(endpoint, tmp_path, turn, **options)
    assert "clock.png: 12:34\nother.png: 56:78" in mains(server)[0] and len(mains(server)) == 1


def test_files_are_looked_at_before_the_first_turn(endpoint, tmp_path):
    work = lambda r: "12:34" if "Look at the picture" in last_text(r) else "Answer: 1"  # noqa: E731
    _, server = run(endpoint, tmp_path, ANSWER, work=work, media=[("image", CLOCK)])
    assert "clock.png: 12:34" in mains(server)[0]


def test_replays_under_any_number_of_threads_have_the_same_content(endpoint, tmp_path, with_search):
    reason = call("enhance_reasoning", "reasoner-1")
    work = lambda r: "Query: a\n```python\nprint(1)\n```\nAnswer: 2"  # noqa: E731
    result, _ = run(endpoint, tmp_path, "hm", reason, SEARCH, ANSWER, work=work)
    for threads in (1, 5, 17):
        again = replay(tmp_path / "run", parallel=threads)
        assert trajectory.content(again.events) == trajectory.content(result.events)


# ---- mode prompted -------------------------------------------------------------------------------


def is_prompted(request):
    return "orchestrator of numbered workers" in request["messages"][0]["content"]


def worker(id, text="do it"):
    return json.dumps({"action": "call_worker", "worker_id": id, "input": text})


def final(answer):
    return json.dumps({"action": "final_answer", "answer": answer})


def prompted(endpoint, tmp_path, *turns, **options):
    return run(endpoint, tmp_path, *turns, mode="prompted", **options)


def test_a_worker_answers_and_the_orchestrator_concludes(endpoint, tmp_path):
    turns = (worker(2, "add 1 and 2"), final(3))
    work = lambda r: "three"  # noqa: E731
    result, server = prompted(endpoint, tmp_path, *turns, work=work, names=("a", "b"))
    assert (result.answer, result.fallback, result.calls) == ("3", False, 3)
    assert [r["model"] for r in server.requests] == ["a", "b", "a"]
    assert last_text(server.requests[1]) == "add 1 and 2" and "three" in mains(server)[1]
    assert "Worker 2 (b)" in server.requests[0]["messages"][0]["content"]


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (worker(9), "no worker 9"),
        (worker(0), "no worker 0"),
        (worker(True), "no worker True"),
        (worker("1"), "no worker '1'"),
        (worker(1.0), "no worker 1.0"),
        (worker(1, ""), '"input" is empty'),
        (final(""), '"answer" is empty'),
        (final([]), '"answer" is empty'),
        (json.dumps({"action": "think"}), "'think' does not exist"),
        ("no json", "holds no JSON object"),
    ],
)
def test_an_unusable_turn_is_told_back(bad, told, endpoint, tmp_path):
    result, server = prompted(endpoint, tmp_path, bad, final("42"))
    assert result.answer == "42" and told in mains(server)[1]


def test_the_second_unusable_turn_falls_back_to_the_strongest_worker(endpoint, tmp_path):
    result, server = prompted(endpoint, tmp_path, worker(1, "look"), "x", "y")
    assert (result.answer, result.fallback) == ("Answer: 42", True)
    assert "look" in last_text(server.requests[-1])


def test_a_worker_named_like_a_file_is_heard(endpoint, tmp_path):
    workers = (Worker(1, "file: reader", "chat", "small"),)
    pool = lambda url: replace(pool_at(url), workers=workers)  # noqa: E731
    turns = (worker(1), final("1"))
    _, server = prompted(endpoint, tmp_path, *turns, pool=pool, work=lambda _: "it holds 77")
    assert "it holds 77" in mains(server)[1]


def test_the_sixth_turn_takes_the_answer_alone(endpoint, tmp_path):
    turns = [worker(1)] * 5
    result, server = prompted(endpoint, tmp_path, *turns, worker(1), final("late"))
    assert (result.answer, result.fallback, result.rounds) == ("late", False, 6)
    assert (
        "This is the last turn" in mains(server)[5]
        and "Use one of: final_answer" in mains(server)[6]
    )
    for threads in (1, 5, 17):
        assert replay(tmp_path / "run", parallel=threads).answer == "late"


# ---- the pool file -------------------------------------------------------------------------------

BACKENDS = """
[[backend]]
name = "big"
base_url = "http://localhost:1/v1"
[[backend]]
name = "small"
base_url = "http://localhost:2/v1"
"""
WORKER = '[[worker]]\nid = 3\nname = "coder"\ntype = "chat"\nmodel = "small"\n'


def pool_file(tmp_path, text):
    file = tmp_path / "pool.toml"
    file.write_text(BACKENDS + text)
    return load(file)


def test_the_mapping_and_the_workers_are_read(tmp_path):
    other = (
        WORKER.replace("3", "7").replace("small", "x") + 'base_url = "http://h/v1"\napi_key = "$K"'
    )
    pool = pool_file(tmp_path, f'{WORKER}{other}\n[expert_model_mapping]\n"answer-1" = "small"')
    assert (pool.expert("answer-1"), pool.expert("reasoner-1")) == ("small", "big")
    assert pool.workers is not None and [w.id for w in pool.workers] == [3, 7]
    assert pool["worker 7"].model == "x" and pool["worker 7"].api_key_env == "K"


OWN = WORKER.replace("small", "x") + 'base_url = "http://h/v1"\n'


def test_an_endpoint_of_a_worker_is_no_backend_of_other_methods(tmp_path):
    pool = pool_file(tmp_path, OWN)
    assert pool.names == ("big", "small") and pool.expert("answer-3") == "small"
    assert pool["worker 3"].model == "x" and pool.candidates([]) == pool.backends


def test_a_worker_of_its_own_endpoint_works_and_its_run_replays(endpoint, tmp_path):
    theirs = endpoint(lambda request: "three")
    beside = (Backend("worker 1", "x", theirs.url, price=Price(0, 0, 0)),)
    workers = (Worker(1, "coder", "chat", "worker 1"), Worker(2, "other", "chat", "small"))
    pool = lambda url: replace(pool_at(url), workers=workers, beside=beside)  # noqa: E731
    result, server = prompted(endpoint, tmp_path, worker(1, "add"), final("3"), pool=pool)
    assert [last_text(r) for r in theirs.requests] == ["add"] and len(server.requests) == 2
    assert replay(tmp_path / "run").answer == result.answer == "3"


def test_a_budget_asks_for_the_price_of_a_worker_where_workers_are(endpoint, tmp_path):
    def with_worker(url, price=None):
        beside = (Backend("worker 1", "x", url, price=price),)
        return replace(pool_at(url), workers=(Worker(1, "w", "chat", "worker 1"),), beside=beside)

    run(endpoint, tmp_path, ANSWER, pool=with_worker, budget_usd=1.0)
    asked = tmp_path / "other"
    with pytest.raises(ConfigError, match="--budget needs prices, and backend worker 1 has none"):
        prompted(endpoint, asked, pool=with_worker, budget_usd=1.0)
    priced = lambda url: with_worker(url, Price(1, 1, 1))  # noqa: E731
    assert prompted(endpoint, asked, final("1"), pool=priced, budget_usd=1.0)[0].answer == "1"


def test_a_worker_has_a_price(tmp_path):
    pool = pool_file(tmp_path, OWN + "price_usd_per_mtok = { input = 1, output = 2 }")
    assert pool["worker 3"].price == Price(1.0, 2.0, 1.0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (OWN + "price_usd_per_mtok = { input = 1 }", ":14: price_usd_per_mtok: needs both"),
        (OWN + "price_usd_per_mtok = { input = -1, output = 1 }", ":14: input: needs a number"),
        (WORKER + "price_usd_per_mtok = {}", ":13: price_usd_per_mtok: belongs to a base_url"),
        ("\n\n# a comment\n\n" + WORKER.replace("3", "true"), ":13: id: needs a whole number"),
        (WORKER + WORKER, ":14: id: 3 is there twice"),
        (WORKER.replace("3", "true"), ":9: id: needs a whole number, not True"),
        (WORKER.replace('"chat"', '"robot"'), 'type: needs "chat" or "search"'),
        (WORKER.replace("small", "huge"), ":12: model: without base_url"),
        (WORKER.replace('name = "coder"\n', ""), "name: needs a text"),
        (WORKER + 'base_url = "ftp://x"', "base_url: needs http"),
        (WORKER + 'base_url = "http://h:99999/v1"', ":13: base_url: needs http"),
        (WORKER + 'base_url = "http://me:secret@h/v1"', "base_url: holds a user or password"),
        (WORKER + 'api_key = "$K"', ":13: api_key: belongs to a base_url"),
        (
            WORKER.replace("3", "1") + 'base_url = "http://h/v1"\n'
            '[[backend]]\nname = "worker 1"\nbase_url = "http://h/v1"',
            ":9: id: a backend has the name 'worker 1'",
        ),
        (WORKER.replace("coder", " "), "name: needs a text"),
        (
            WORKER + 'base_url = "http://h/v1"\napi_key = "sk-123"',
            ":14: api_key: needs the name of an environment variable",
        ),
        (WORKER + "colour = 1", ":13: colour: unknown key"),
        ('[expert_model_mapping]\n"answer-9" = "big"', ":9: answer-9: unknown slot; one of reas"),
        ('[expert_model_mapping]\n"answer-1" = "huge"', ":9: answer-1: 'huge' is no backend"),
        ("expert_model_mapping = 1", "unknown key"),
        ("worker = 1", "unknown key"),
    ],
)
def test_an_invalid_entry_is_refused_with_its_line_and_reason(text, told, tmp_path):
    with pytest.raises(ConfigError) as error:
        pool_file(tmp_path, text)
    assert told in str(error.value)


def test_a_pool_without_a_usable_worker_is_refused_before_anything(endpoint, tmp_path):
    pool = pool_file(tmp_path, WORKER.replace('"chat"', '"search"'))
    with pytest.raises(ConfigError, match="no usable worker"):
        prompted(endpoint, tmp_path, pool=lambda url: pool)
    assert not (tmp_path / "run").exists()
