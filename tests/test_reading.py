"""What models write reaches the answer unchanged: numbers, markup of chat templates, half replies, in every method."""

import json

import pytest

from orchestra.kernel.chat import _reply_of
from orchestra.kernel.tape import exchanges
from orchestra.kernel.tool import Environment, tool
from orchestra.kernel.vocabulary import ModelMistake
from orchestra.methods.answers import answer_of
from orchestra.methods.mas_xml import parse
from orchestra.methods.replies import actions, as_text, find_action
from tests.program import any_method, runs

run = runs("react")

# ---- numbers -------------------------------------------------------------------------------------

NUMBERS = ["1.10", "1.0", "1e5", "1E+10", "12345678901234567890123", "0.000", "-3.50"]


def writes(value):
    """A model of any method whose answer is this JSON value."""

    def respond(request):
        reply = any_method(request)
        if reply == "Answer: 42":
            return f'{{"reasoning": "r", "answer": {value}}}'
        return reply.replace('"42"', value)

    return respond


@pytest.mark.parametrize("method", ["react", "orchestra-o1", "aorchestra", "mas-orchestra", "toolorchestra"])  # fmt: skip
def test_an_answer_that_is_a_number_has_its_spelling_in_every_method(method, run):
    assert run(respond=writes("1.10"), method=method).answer == "1.10"


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_is_text_as_it_was_written_and_a_number_in_json(number):
    for reply in (f'{{"action": "complete", "answer": {number}}}', f'{{"action": "complete", "answer": {number},}}'):  # fmt: skip
        assert as_text(find_action(reply)["answer"]) == number
    value = find_action(f'{{"action": "complete", "answer": [{number}, {{"a": {number}}}]}}')
    assert as_text(value["answer"]) == f'[{number}, {{"a": {number}}}]'
    assert json.loads(json.dumps(value))["answer"][0] == json.loads(number)
    assert answer_of(f'{{"answer": {number}}}') == number


@pytest.mark.parametrize(
    "written", ["00501", "5%", "10:30", "50 000", "1,234", "1.10 km", "+5", ".5"]
)
def test_what_is_no_number_of_json_is_text(written):
    reply = f'{{"action": "complete", "params": {{"answer": {written}}}}}'
    assert find_action(reply)["params"]["answer"] == written
    assert answer_of(f'{{"answer": {written}}}') == written


@tool("HalveAction", "txt")
def halve(env: Environment, number: float) -> str:
    """Divide by two.

    number: what to divide
    """
    return env.local("halve", {"number": number}, lambda: str(number / 2))


def test_a_tool_and_the_tape_get_a_number(run):
    turns = iter(['{"action": "HalveAction", "params": {"number": 1.10}}', writes('"0.55"')])
    result = run(respond=lambda r: t if isinstance(t := next(turns), str) else t(r), tools={halve.name: halve})  # fmt: skip
    assert result.answer == "0.55"
    (step, _) = [e for e in result.events if e["event"] == "step"]
    assert (step["params"], step["observation"]) == ({"number": 1.1}, "0.55")
    asked = [row.request for row in exchanges(run.folder / "tape.jsonl")]
    assert [r["number"] for r in asked if r["kind"] == "halve"] == [1.1]


# ---- the markup of chat templates ----------------------------------------------------------------


def read(text, **choice):
    """The text of a reply."""
    return _reply_of({"choices": [{"message": {"content": text}, **choice}]}, None).text


ENDS = ["<|im_end|>", "<|eot_id|>", "</s>", "<|endoftext|>", "<end_of_turn>\n", "<|end|>", "</s></s>", "\n<|im_end|>\n<|endoftext|>", "<｜end▁of▁sentence｜>"]  # fmt: skip
STARTS = ["<|im_start|>assistant\n", "<|start_header_id|>assistant<|end_header_id|>\n\n", "<start_of_turn>model\n"]  # fmt: skip
NEXT = ["<|im_end|>\n<|im_start|>user\nAnd?", "<|eot_id|><|start_header_id|>user<|end_header_id|>", "</s><s>[INST] And?"]  # fmt: skip
ANALYSIS = '<|channel|>analysis<|message|>Is it {"action": "complete"}?'
FINAL = "<|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize("markup", [
    *(("", end) for end in (*ENDS, *NEXT)), *((start, "") for start in STARTS), (STARTS[0], ENDS[0]),
    (f"{ANALYSIS}<|end|>{FINAL}", "<|return|>"), (f"<|start|>assistant{ANALYSIS}<|end|>{FINAL}", ""), ("<|channel|>final <|constrain|>json<|message|>", ""),
])  # fmt: skip
@pytest.mark.parametrize("content", ["Paris", '{"answer": "Paris"}'])
def test_the_markup_of_a_turn_is_no_part_of_an_answer(markup, content):
    text = read(content.join(markup))
    assert answer_of(text) == "Paris"
    assert parse(text) == "Paris"


@pytest.mark.parametrize("text", ["<s>", "<s>old</s>", "Use `</s>` to close `<s>`.", "`<|im_end|>` ends a turn.", "<|im_start|> begins a turn", "[INST] is Llama's", "The marker <|channel|>final<|message|> is harmony's."])  # fmt: skip
def test_a_text_about_markup_stays_as_it_is(text):
    assert read(text) == text


def test_an_analysis_alone_is_thinking():
    assert answer_of(read(ANALYSIS)) == answer_of(read(f"{ANALYSIS}<|end|>")) == ""


# ---- tool calls in markup ------------------------------------------------------------------------

JSON = '{"query": "5 \\times {3}", "n": 1.10}'
GLM = "<arg_key>query</arg_key>\n<arg_value>5 \\times {3}</arg_value>\n<arg_key>n</arg_key>\n<arg_value>1.10</arg_value>\n"
CALLS = [
    f'<tool_call>\n{{"name": "search", "arguments": {JSON}}}\n</tool_call>', f'<tool_call>{{"name": "search", "arguments": {JSON}}}',
    "<tool_call>\n<function=search>\n<parameter=query>\n5 \\times {3}\n</parameter>\n<parameter=n>\n1.10\n</parameter>\n</function>\n</tool_call>",
    '<minimax:tool_call>\n<invoke name="search">\n<parameter name="query">5 \\times {3}</parameter>\n<parameter name="n">1.10</parameter>\n</invoke>',
    f"<tool_call>search\n{GLM}</tool_call>", f"<function=search>{JSON}</function>", f'<|python_tag|>{{"name": "search", "parameters": {JSON}}}<|eom_id|>',
    f'[TOOL_CALLS][{{"name": "search", "arguments": {JSON}}}]</s>', f"[TOOL_CALLS]search{JSON}", f"[TOOL_CALLS]search[CALL_ID]a1b2[ARGS]{JSON}</s>",
    f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n{JSON}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    f"<｜tool▁call▁begin｜>search<｜tool▁sep｜>{JSON}<｜tool▁call▁end｜>", f"<|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{JSON}<|tool_call_end|>",
    f"{ANALYSIS}<|end|><|start|>assistant<|channel|>commentary to=functions.search <|constrain|>json<|message|>{JSON}<|call|>",
    f"{ANALYSIS}<|end|><|start|>assistant to=functions.search<|channel|>commentary json<|message|>{JSON}",
]  # fmt: skip


@pytest.mark.parametrize("reply", CALLS)
def test_a_call_in_markup_is_read_with_its_values(reply):
    for text in (reply, f'<think>{{"action": "no"}} or <function=no></think>{reply}'):
        (call,) = actions(read(text))
        assert call["action"] == "search" and call["params"]["query"] == "5 \\times {3}"
        assert as_text(call["params"]["n"]) == "1.10"


@pytest.mark.parametrize("reply", CALLS)
def test_half_a_call_is_never_a_call_with_other_values(reply):
    (whole,) = actions(read(reply))
    for end in range(len(reply)):
        try:
            called = actions(read(reply[:end]))
        except ModelMistake as mistake:
            assert mistake.rule in ("open", "not_json")
            continue
        if called[0]["action"] not in ("complete", ""):  # of its thinking
            assert [as_text(value) for value in called[0]["params"].values()] == [
                as_text(value) for value in whole["params"].values()
            ]


def test_lists_and_objects_of_a_call_are_values():
    tasks = '[{"task_instruction": "do", "context": ""}]'
    reply = f"<function=delegate_task><parameter=tasks>{tasks}</parameter></function>"
    assert find_action(reply)["params"]["tasks"] == json.loads(tasks)


def test_the_arguments_of_a_structured_call_keep_latex_and_are_not_completed():
    call = lambda arguments: f'<tool_call>{json.dumps({"name": "finish", "arguments": arguments})}</tool_call>'  # noqa: E731, E501  # fmt: skip
    whole = r'{"result": "5 \times 3", "status": "done"}'
    assert find_action(call(whole))["params"]["result"] == r"5 \times 3"
    for end in range(1, len(whole)):
        with pytest.raises(ModelMistake):
            find_action(call(whole[:end]))


def test_a_call_in_markup_inside_a_json_answer_is_text():
    text = "Write <function=add><parameter=n>1</parameter></function>"
    reply = json.dumps({"action": "complete", "params": {"answer": text}})
    assert find_action(reply)["params"]["answer"] == text


# ---- half a reply --------------------------------------------------------------------------------

TRUE = 'built in 1889 } or "so" {x}, <b>it\'s</b> \\frac{1}{2}'
OBJECTS = [
    {"reasoning": "Maybe \\boxed{17}.\nAnswer: 17", "answer": TRUE},
    {"steps": [{"answer": "1"}, {"action": "x"}], "answer": TRUE},
]
HALVES = [
    json.dumps(value, indent=indent).join(around)
    for value in OBJECTS
    for indent in (None, 2)
    for around in (("", ""), ("```json\n", "\n```"))
]
IN_TEXT = json.dumps(OBJECTS[1]).join(("Here it is:\n", "\nI hope it helps."))


@pytest.mark.parametrize("reply", [*HALVES, IN_TEXT])
def test_half_a_json_answer_is_no_answer(reply):
    start, end = reply.index("{"), reply.rindex("}")
    assert "1889" in answer_of(reply)
    assert {answer_of(reply[:n]) for n in range(start + 1, end)} == {""}


@pytest.mark.parametrize("reply", [
    """{'action': 'complete', 'params': {'answer': 'built in 1889'}}""", """{action: "complete", params: {answer: "built in 1889"}}""",
    '{"thoughts": [{"action": "complete", "answer": "no"}], "action": "complete", "answer": "built } in 1889"}',
])  # fmt: skip
def test_half_a_decision_is_none_in_other_spellings_too(reply):
    assert find_action(reply)["action"] == "complete"
    for end in range(len(reply.rstrip("}"))):
        with pytest.raises(ModelMistake):
            find_action(reply[:end])


@pytest.mark.parametrize(("reply", "answer"), [
    ('The set {"a": 1 is odd.\nAnswer: 5', "5"), ('A stray {" and\n\\boxed{5}', "5"), ('{"answer": "5"}\nand {"x": 1', "5"),
])  # fmt: skip
def test_a_stray_brace_in_a_text_hides_no_label_or_box(reply, answer):
    assert answer_of(reply) == answer


def test_a_line_break_in_a_json_string_stays_one():
    reply = '{"action": "complete", "params": {"answer": "one\ntwo"}}'
    assert find_action(reply)["params"]["answer"] == "one\ntwo"


def test_half_a_direct_answer_in_json_is_none(run):
    half = '{"answer": "It was built in 18'
    respond = lambda r: half if r["messages"][0]["role"] == "system" else "Answer: 1889"  # noqa: E731
    result = run(respond=respond, method="mas-orchestra")
    assert (result.answer, result.fallback) == ("1889", True)
