"""Endpoints with a short context, without a system role, that load, or stream unasked."""

import json
import re

import pytest

from orchestra.kernel.attempts import LOADING, SYSTEM_REFUSED, TOO_LONG
from orchestra.kernel.events import completion_in
from orchestra.kernel.shorter import chars_of, shortened
from orchestra.kernel.tape import Failure, exchanges
from orchestra.kernel.tool import Environment, tool
from tests.conftest import EndpointError
from tests.program import replay, resume
from tests.scripted import Raw, act, complete, completion, delegate, finish, is_main, last_text

CONTEXT_CHARS = 14_000


@tool("look", "txt")
def look(env: Environment, topic: str) -> str:
    """Look something up.

    topic: a word
    """
    from orchestra.kernel.prompts import fenced

    return fenced(env.local("look", {"topic": topic}, lambda: f"{topic} is blue. " * 400))


def refusal(status, message, **fields):
    return Raw(status, {"error": {"message": message, "code": status, **fields}})


VLLM = refusal(
    400, "This model's maximum context length is 4096 tokens. However, you requested 5000."
)
LLAMA = refusal(
    500, "the request exceeds the available context size", type="exceed_context_size_error"
)


class ShortContext:
    """An endpoint that refuses prompts of more than CONTEXT_CHARS characters."""

    def __init__(self, refusal, steps=5):
        self.refusal, self.steps = refusal, steps
        self.taken, self.refused = [], []

    def __call__(self, request):
        messages = request["messages"]
        if chars_of(messages) > CONTEXT_CHARS:
            self.refused.append(messages)
            return self.refusal
        self.taken.append(messages)
        if is_main(request):
            done = "=> blue" in last_text(request)
            task = {"task_instruction": "look", "tools": ["look"]}
            return complete("blue") if done else delegate(task)
        step = last_text(request).count("Observation:")
        return act("look", topic=f"word{step}") if step < self.steps else finish("blue")


@pytest.mark.parametrize("refusal", [VLLM, LLAMA])
@pytest.mark.parametrize("method", ["react", "orchestra-o1"])
def test_a_prompt_that_is_too_long_goes_on_with_its_oldest_observations_as_digests(
    refusal, method, run
):
    server = ShortContext(refusal)
    result = run(respond=server, method=method, tools={"look": look})
    assert (result.answer, result.state) == ("blue", "answered")
    assert "context length of small" in result.ending.why and "--steps" in result.ending.why
    last = next(m[-1]["content"] for m in server.taken[::-1] if "word4 is" in m[-1]["content"])
    assert last.count("word4 is blue.") > 300 > 30 > last.count("word0 is blue.") > 0
    assert "characters are left out here" in last
    sent = server.refused + server.taken
    assert all(sent.count(messages) == 1 for messages in sent)  # none is sent again unchanged
    assert len(server.refused) <= 2  # later prompts are shorter from the start
    assert replay(run.folder, tools={"look": look}).answer == "blue"
    assert resume(run.folder, tools={"look": look}).paid_usd == 0


def test_a_long_history_of_the_main_agent_is_shortened_too(run):
    def respond(request):
        if chars_of(request["messages"]) > CONTEXT_CHARS:
            return VLLM
        if not is_main(request):
            return finish("seen", summary="fact " * 600)
        rounds = last_text(request).count("=> seen")
        return complete("42") if rounds > 5 else delegate(f"look {rounds}")

    result = run(respond=respond, k_max=1)
    assert (result.answer, result.state) == ("42", "answered")


@pytest.mark.parametrize("method", ["react", "orchestra-o1"])
def test_a_question_that_does_not_fit_ends_without_an_answer_and_with_the_reason(method, run):
    result = run(respond=lambda r: VLLM, method=method)
    assert (result.state, result.ending.cause, result.answer) == ("stopped", "context", "")
    assert "maximum context length is 4096" in result.ending.why and len(run.requests) <= 2


def test_what_was_found_is_the_fallback_of_a_main_agent_whose_prompt_does_not_fit(run):
    def respond(request):
        if not is_main(request):
            return finish("41")
        return VLLM if "=> 41" in last_text(request) else delegate("look")

    result = run(respond=respond)
    assert (result.answer, result.state, result.ending.cause) == ("41", "fallback", "context")


@pytest.mark.parametrize("why", [
    "This model's maximum context length is 8192 tokens.",
    "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
    "the request exceeds the available context size (4096 tokens), try increasing it",
    "prompt is too long: 210000 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
    "Please reduce the length of the messages or completion.",
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096.",
    "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    "Input is too long for requested model.",
    "failed (context_length_exceeded)",
    "Input token length is too long",
    "Prompt tokens (9000) exceed the limit",
    "Request too large for model `m` on tokens per minute, please reduce your message size",
    "input (5000 tokens) is larger than the max context size (4096 tokens). skipping",
    "This request would exceed the model's token limit",
])  # fmt: skip
def test_a_context_that_is_too_short_is_recognised(why):
    assert TOO_LONG.match(why)


@pytest.mark.parametrize("why", [
    "Invalid schema: 'length' is not allowed", "413 Request Entity Too Large", "image input is not supported",
    "'max_tokens' or 'max_completion_tokens' is too large: 128000. This model's maximum context length is 32768 tokens",
    "Unrecognized request argument supplied: context_length", "The model 'phi-3-128k-context-length' does not exist",
    "request is too large: image exceeds 5 MB maximum", "operating system is not supported here", "Failed loading model weights",
    "max_tokens is too large: 5000. This model supports at most 4096 completion tokens", "unknown field: logprobs",
])  # fmt: skip
def test_another_refusal_is_not_taken_for_it(why):
    assert not TOO_LONG.match(why) and not SYSTEM_REFUSED.search(why) and not LOADING.search(why)


def test_only_what_is_quoted_is_cut_and_the_oldest_first():
    def data(letter, mark):
        return f"<data {mark * 8}>\n{letter * 2000}\n</data {mark * 8}>"

    text = f"Do this. {data('x', '1')} and {data('y', '2')} then {data('z', '3')} now."
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": text}]
    once = shortened(messages, 5000)[1]["content"]
    assert [once.count(letter) for letter in "xyz"] == [300, 2000, 2000]
    most = shortened(messages, 2500)[1]["content"]
    assert [most.count(letter) for letter in "xy"] == [300, 300] and 1400 < most.count("z") <= 1700
    assert most.startswith("Do this. <data ") and most.endswith(" now.")
    assert shortened(messages, 10_000) == messages


@pytest.mark.parametrize("length", [299, 301, 399, 401, 6000])
def test_a_prompt_that_never_fits_is_shortened_a_few_times_and_not_for_ever(length, run):
    from orchestra.kernel.prompts import fenced

    @tool("look", "txt")
    def look(env: Environment, topic: str) -> str:
        """Look something up.

        topic: a word
        """
        return fenced(env.local("look", {"topic": topic}, lambda: "x" * length))

    def respond(request):
        return VLLM if "Observation:" in last_text(request) else act("look", topic="a")

    result = run(respond=respond, method="react", tools={"look": look})
    assert result.ending.cause == "context" and len(run.requests) < 15
    sent = [json.dumps(r["messages"]) for r in run.requests]
    assert len(sent) == len(set(sent))


# ---- no system role ------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize("why", [
    "System role not supported", "system role is not supported by this model's chat template",
    "Conversation roles must alternate user/assistant/user/assistant/...",
    "Only user and assistant roles are supported!", "Developer instruction is not enabled for models/gemma-3-27b-it",
    'messages: Unexpected role "system".', "Input should be 'user' or 'assistant'", "this model does not support system messages",
])  # fmt: skip
def test_a_template_without_a_system_role_gets_its_text_in_the_users_message(why, status, run):
    def respond(request):
        if request["messages"][0]["role"] == "system":
            return refusal(status, why)
        return finish("42")

    assert run(respond=respond, method="react").answer == "42"
    first, second = run.requests
    (user,) = second["messages"]
    assert user["content"] == "\n\n".join(m["content"] for m in first["messages"])
    assert second["response_format"] == first["response_format"]


# ---- a server that is not ready ------------------------------------------------------------------


@pytest.mark.parametrize("busy", [
    refusal(503, "Loading model", type="unavailable_error"), refusal(529, "Overloaded"),
    Raw(503, {"error": "Model m is currently loading", "estimated_time": 20.0}),
])  # fmt: skip
def test_a_model_that_is_loading_is_waited_for_like_a_rate_limit(busy, run):
    left = [busy] * 6
    notices = []
    result = run(
        respond=lambda r: left.pop() if left else finish("42"),
        method="react",
        listeners=[lambda event: notices.append(event.get("message", ""))],
    )
    assert result.answer == "42" and len(run.requests) == 7
    told = re.compile(r"the next attempt is in \d+(\.\d+)? s; it waits at most 1\d\d s more")
    assert any(map(told.search, notices))


def test_it_is_not_waited_for_longer_than_the_patience(run):
    with pytest.raises(EndpointError, match="Loading model"):
        run(respond=lambda r: refusal(503, "Loading model"), method="react", patience_s=0.1)


def test_a_service_that_is_down_is_not_waited_for(run):
    with pytest.raises(EndpointError, match="unavailable"):
        run(respond=lambda r: refusal(503, "service unavailable"), method="react")
    assert len(run.requests) == 3


# ---- a stream that nobody asked for --------------------------------------------------------------


def stream(*chunks, end="data: [DONE]\n\n"):
    lines = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return Raw(200, lines + end, content_type="text/event-stream")


def pieces(text, size=7):
    for start in range(0, len(text), size):
        yield {"choices": [{"index": 0, "delta": {"content": text[start : start + size]}}]}


def test_a_stream_is_read_to_its_end(run):
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 70, "completion_tokens": 7}}
    result = run(respond=lambda r: stream(*pieces(finish("42 – 43")), last, usage), method="react")
    assert (result.answer, result.tokens, len(run.requests)) == ("42 – 43", 77, 1)


def test_half_a_stream_is_half_a_reply(run):
    chunks = [*pieces(finish("It was built in 1889"))][:-3]
    result = run(respond=lambda r: stream(*chunks, end=""), method="react", steps=2)
    assert "18" not in result.answer and result.state != "answered"


def test_the_tool_calls_of_a_stream_are_put_together(run):
    def respond(request):
        call = {"index": 0, "function": {"name": "finish", "arguments": ""}}
        parts = ['{"result": "4', '2", "status": "done"', ', "summary": ""}']
        deltas = [{"tool_calls": [call]}]
        deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": p}}]} for p in parts]
        chunks = [{"choices": [{"delta": delta}]} for delta in deltas]
        return stream(*chunks, {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})

    assert run(respond=respond, method="react").answer == "42"


@pytest.mark.parametrize("body", [
    "\ufeffdata: {}\r\n\r\ndata: [DONE]\r\n\r\n", "\n\nid: 1\nevent: message\ndata:{}\n\n", ": OPENROUTER PROCESSING\n\n{}",
    "retry: 5\ndata: {}\n\n", "data: {}",
])  # fmt: skip
@pytest.mark.parametrize("part", ["delta", "message"])
def test_a_stream_is_read_in_every_form(body, part, run):
    choice = {"index": 0, part: {"content": finish("42\u2028\x85")}, "finish_reason": "stop"}
    if body.startswith(":"):
        choice["message"] = choice.pop(part)
    chunk = json.dumps({"choices": [choice], "error": None}, ensure_ascii=False)
    result = run(respond=lambda r: Raw(200, body.replace("{}", chunk)), method="react")
    assert result.answer.startswith("42") and len(run.requests) == 1


@pytest.mark.parametrize("chunk", [
    '{"choices": 5}', '{"choices": [{"delta": "x"}]}', '{"z": ' + "[" * 100_000, "{oops}", '{"choices": [{"delta": {"tool_calls": 7}}]}',
])  # fmt: skip
def test_a_stream_that_makes_no_sense_is_named_and_paid_once(chunk, run):
    with pytest.raises(EndpointError, match="not JSON"):
        run(respond=lambda r: Raw(200, f"data: {chunk}\n\n"), method="react")
    assert len(run.requests) == 1


def test_calls_of_a_stream_without_an_index_are_two(run):
    calls = [{"function": {"name": name, "arguments": {"topic": "a"}}} for name in ("look", "see")]
    body = {"choices": [{"delta": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}
    assert [c["function"] for c in json.loads(completion_in(stream(body).body))["choices"][0]["message"]["tool_calls"]] == [
        {"name": name, "arguments": '{"topic": "a"}'} for name in ("look", "see")
    ]  # fmt: skip


def test_an_error_in_a_stream_is_named(run):
    with pytest.raises(EndpointError, match="out of memory"):
        run(respond=lambda r: stream({"error": {"message": "out of memory"}}), method="react")


# ---- the time limit ------------------------------------------------------------------------------


def test_a_time_limit_is_named_before_the_request_is_repeated(run, endpoint):
    notices = []
    slow = endpoint(lambda r: completion(finish("42")), delay_s=0.5)
    with pytest.raises(EndpointError, match="timed out"):
        run(
            respond=slow.requests.append,
            change=lambda pool: pool_at_slow(pool, slow.url),
            method="react",
            timeout_s=0.1,
            listeners=[lambda event: notices.append(event.get("message", ""))],
        )
    assert len([n for n in notices if "timed out" in n and "--timeout waits longer" in n]) == 1


def pool_at_slow(pool, url):
    from dataclasses import replace

    return replace(pool, backends=tuple(replace(b, base_url=url) for b in pool.backends))


def test_the_failures_are_on_the_tape(run):
    run(respond=ShortContext(VLLM), method="react", tools={"look": look})
    failures = [
        e.outcome for e in exchanges(run.folder / "tape.jsonl") if isinstance(e.outcome, Failure)
    ]
    assert {f.cause for f in failures} == {"context"} and not any(f.unanswered for f in failures)
