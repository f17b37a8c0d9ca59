"""Everything that reads the text of a model, mangled replies, and runaway texts."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from benchmarks.minigaia import world
from orchestra.coding import mini_swe
from orchestra.command.redact import Redact
from orchestra.command.runs import table
from orchestra.command.terminal import describe
from orchestra.curation import optimize_prompt
from orchestra.evaluation import scores
from orchestra.kernel import attempts, chat, http, miss, prompts, tape
from orchestra.kernel.folder import Options
from orchestra.kernel.memory import best_supported_answer, compress
from orchestra.kernel.placing import mentions
from orchestra.kernel.vocabulary import (
    Backend,
    Evidence,
    Media,
    ModelMistake,
    Pool,
    Reply,
    State,
    SubTask,
    Task,
)
from orchestra.methods import (
    answers,
    aorchestra,
    experts,
    main_agent,
    mas_xml,
    orchestra_o1,
    react,
    reasoning,
    replies,
    toolorchestra,
)
from orchestra.methods.toolorchestra_prompted import Prompted
from orchestra.tools import reading
from orchestra.training import rewards as trained
from orchestra_min import INSERT

ROOT = Path(__file__).resolve().parent.parent
REPORTS = 8  # in the history of Eq. 20
CONTEXT_TOKENS = 6000
Reader = Callable[[str], object]

MEDIA = Media(modality="image", name="clock.png", path=Path("clock.png"), sha256="")
STATE = State(
    task=Task("What time is it in Prague?", media=(MEDIA,)),
    context="",
    history=(),
    backends=("small", "large"),
    tools=("ImageAnalysisAction",),
    round=1,
    rounds=10,
)
POOL = Pool((Backend("small", "small", "http://127.0.0.1:9/v1"),), "small")
PROMPTED = Prompted(POOL, {}, Options())
FACT = SimpleNamespace(id="time", needs=(), operation="", evidence=("clock.png",))


# ---- the readers ---------------------------------------------------------------------------------


def _history(text: str) -> list[Evidence]:
    share = len(text) // REPORTS + 1
    parts = [text[n : n + share] for n in range(0, len(text), share)]
    history = []
    for n, part in enumerate(parts, 1):
        about = {"round": n, "id": f"t{n}", "instruction": part[:400], "backend": "b"}
        entry = Evidence(**about, tools=(), status="done", answer=part[:90], summary=part)
        history.append(entry)
    return history


def _context(text: str) -> str:
    """Eq. 20, and the fallback answer."""
    history = _history(text)
    best_supported_answer([replace(h, answer=h.summary) for h in history])
    question = STATE.task.question
    return compress(question, history, CONTEXT_TOKENS)


def _react(text: str) -> object:
    job = cast(Any, SimpleNamespace(tools={}))
    action = react._read(job, Reply(text))
    return react.status_of(action.params)


def _rewrite(text: str) -> object:
    return optimize_prompt.read_rewrite(Reply(text), [], earlier=[])


def _p_stop(text: str) -> object:
    tokens = [text[n : n + 4] for n in range(0, len(text), 4)]
    return orchestra_o1.stop_probability([{"token": t, "logprob": -0.1} for t in tokens])


def _described(text: str) -> object:
    step = {"action": "finish", "params": {"result": text}, "observation": text}
    result = {"status": "done", "answer": text, "error": "", "summary": ""}
    for content in ({"event": "step", **step}, {"event": "result", **result}):
        describe({"at": (1, 1, 1), **content})
    return table("answer", [{"answer": text}])


def _completion(text: str) -> object:
    """The body of an answer, and an answer with this text."""
    message = {"content": text, "tool_calls": [{"function": {"arguments": text}}]}
    whole = json.dumps({"choices": [{"message": message}]})
    for body in (text, whole):
        found = attempts._read(http.Response(200, body.encode("utf-8", "replace")))
        if isinstance(found, dict):
            chat._reply_of(found, None)
    return None


def _on_tape(text: str) -> object:
    return miss.readable(json.loads(tape.key_and_text("chat", {"text": text})[1]))


def _world(text: str) -> object:
    return world.finds(SubTask("t1", text), cast(Any, [FACT]), set(), [text])


def _decision(read: Any) -> Reader:
    return lambda text: main_agent.read_decision(read, Reply(text), STATE, last_chance=False)


READERS: dict[str, Reader] = {
    "actions": replies.actions,
    "actions of a cut reply": lambda text: replies.actions(text, cut=True),
    "orchestra-o1": _decision(orchestra_o1.read_delegation),
    "aorchestra": _decision(aorchestra.read_delegation),
    "toolorchestra": toolorchestra.read_call,
    "toolorchestra, prompted": lambda text: PROMPTED.read(Reply(text), STATE, False),
    "mas-orchestra, high": mas_xml.parse,
    "mas-orchestra, low": lambda text: mas_xml.parse(text, "low"),
    "react": _react,
    "mini-swe": lambda text: mini_swe.read_command(text, cut=False),
    "answer_of": answers.answer_of,
    "queries_in": reasoning.queries_in,
    "majority": lambda text: reasoning.majority([Reply(text)]),
    "links": reasoning.LINK.findall,
    "programs of experts": experts._python_in,
    "outputs in a graph": INSERT.findall,
    "optimize_prompt": _rewrite,
    "trained policy": lambda text: trained.read_decision(text, STATE),
    "Eq. 20": _context,
    "Eq. 22": _p_stop,
    "matches": lambda text: scores.matches(text, "12,718 km", "How many km?"),
    "a date": lambda text: scores.matches(text, "2011-03-05"),
    "a list": lambda text: scores.matches(text, "1, 2 and 3"),
    "the question": lambda text: scores.matches("2", "2 years", text),
    "exact": lambda text: scores.exact(text, "7:49"),
    "mentions": lambda text: mentions(text, MEDIA),
    "world": _world,
    "fenced": prompts.fenced,
    "fenced whole": lambda text: prompts.fenced(text, len(text)),
    "quoted_whole": prompts.quoted_whole,
    "quoted": prompts.quoted,
    "parts": reading.parts,
    "log and table": _described,
    "completion": _completion,
    "tape": _on_tape,
    "secrets": Redact([]).text,
}
# Before the tape has replaced halves of surrogate pairs
RAW = {READERS["completion"], READERS["tape"], READERS["secrets"]}


# ---- mangled replies -----------------------------------------------------------------------------

PIECES = [
    *"{}[]<>\"'`:,\\/\n\t #*-$%&;=()", "\x00", "\x1b[31m", "\x1b", "\u202e", "\ufeff", "\ud83d", "\udd70",
    "🕰", "密", "```", "```json\n", "````bash\n", "<think>", "</think>", "<answer>", "</answer>",
    "<agent>", "</agent>", "<edge>", "<from>A</from>", "</edge>", "<tool_call>", "</tool_call>",
    "<instruction>", "</instruction>", "Answer:", "Query 1:", '"action":', '"params":', "null", "NaN",
    "-1e999", "9" * 5000, "\\u0000", "\\ud83d", "\\/", "%00", "</data 97c460ee>", "${A}", "http://a(b", "[[" * 300,
]  # fmt: skip


def recorded_replies() -> list[str]:
    """The texts of all models in the recorded runs."""
    texts = set[str]()
    for path in sorted((ROOT / "fixtures" / "runs").glob("*/tape.jsonl")):
        for exchange in tape.exchanges(path):
            if exchange.request["kind"] == "chat" and isinstance(exchange.outcome, tape.Answer):
                texts.add(chat._reply_of(exchange.outcome.value["data"], None).text)
    return sorted(texts)


def mangled(text: str, others: list[str], chance: random.Random) -> str:
    """A text after one to six mutations."""
    for _ in range(chance.randint(1, 6)):
        start, end = sorted(chance.randrange(len(text) + 1) for _ in range(2))
        part = text[start:end]
        kind = chance.randrange(6)
        if kind == 0:  # a cut
            text = text[:start] if chance.random() < 0.5 else text[start:]
        elif kind == 1:  # a part is missing
            text = text[:start] + text[end:]
        elif kind == 2:  # a repetition
            text = text[:end] + part[:200] * chance.randint(1, 5) + text[end:]
        elif kind == 3:  # a piece, once or several times
            piece = chance.choice(PIECES) * chance.choice([1, 1, 1, 3, 30])
            text = text[:start] + piece + text[start:]
        elif kind == 4:  # one in another, or in itself as a JSON string
            inner = json.dumps(part) if chance.random() < 0.5 else chance.choice(others)
            text = text[:start] + inner + text[start:]
        else:  # a character is another one
            text = text[:start] + chr(chance.randrange(0x3000)) + text[start + 1 :]
        text = text[:20_000]
    return text


def mangled_replies(count: int) -> Iterator[str]:
    originals = recorded_replies()
    chance = random.Random(34)
    for _ in range(count):
        yield mangled(chance.choice(originals), originals, chance)


# ---- runaway texts -------------------------------------------------------------------------------

AGENT = """<agent><agent_id>A{n}</agent_id><agent_name>CoTAgent</agent_name>
<agent_description>d</agent_description>
<required_arguments><agent_input>${{A{m}}}</agent_input></required_arguments></agent>"""
REPEATED = [
    "```", "```\n", "```python\nx\n", "````bash\n", "<answer>", "<instruction>", "<think>", "</think>", "<tool_call>", "<agent>",
    "{", '{"', '{"a":', '{"a":[', "[", "[{", "\\", '\\"', "\\u0073", "%41", "Answer:", "Answer:\n", "Query: a\n", '"a":',
    "9", "1,", "-", " ", "\n", "x", "x ", "No. ", "\x1b[31m", "\ud83d", "密", "http://", "(", "*", "_", "${A", "&amp;", "<data 97c460ee>",
    "<function=a>", "<parameter=a>", "<Agent></Agent>", "<agent><agent_id>-</agent_id><agent_name>cotagent</agent_name></agent>",
    "<", "=", "a@", "0 ", "1,234", "{'action': 'x', ", '{"action": "delegate_task"}', '"action": "', '{"name": "a", "arguments": "[[[["}',
    " \n", "\n \n", "**Answer** ", "</agent_input>", "1 a", "http://(a", "query 1 ", "word word. Other word! ", "<\n", "a_1. ", "```bash\nls\n```\n",
]  # fmt: skip


def runaway(size: int) -> Iterator[tuple[str, str]]:
    """Texts of `size` characters, each with a name."""
    for piece in REPEATED:
        yield repr(piece)[:30], (piece * (size // len(piece) + 1))[:size]
    chance = random.Random(34)
    words = [f"w{chance.randrange(10**6)}" for _ in range(size)]
    yield (
        "many sentences",
        ". ".join(" ".join(words[n : n + 4]) for n in range(0, size // 8, 4))[:size],
    )
    yield "new words", " ".join(words)[:size]
    deep = '{"a":[' * 200
    yield "an open list", (deep + "1," * size)[:size]
    yield "an instruction", "<instruction>" + "a\n" * (size // 2)
    yield "an object in quotes", "{'action': 'finish', 'params': {'result': '" + "a" * size + "'}}"
    yield "an object", json.dumps({"action": "finish", "params": {"result": "a " * (size // 2)}})
    yield "an array of actions", json.dumps([{"action": "x", "params": "{'a"}] * (size // 35))
    yield "one fence", "```python\n" + "x = 1\n" * (size // 6)
    edges = "".join(f"<from>A{n}</from><to>A{n + 1}</to>" for n in range(size // 200))
    agents = "".join(AGENT.format(n=n, m=max(n - 1, 0)) for n in range(size // 250))
    yield "a graph", f"<think></think>{agents}<edge>{edges[: size // 5]}</edge>"
    chain = "".join(AGENT.format(n=n, m=n - 1) for n in range(1, 1 + size // 270))
    chain = chain.replace("${A0}", "")
    links = "".join(f"<from>A{n}</from><to>A{n + 1}</to>" for n in range(1, size // 270))
    yield "a chain", f"<think></think>{chain}<edge>{links}</edge>"


# ---- the measurement -----------------------------------------------------------------------------


def cpu_s(reader: Reader, text: str) -> float:
    """Processor time. Raises what the reader raises, but for ModelMistake."""
    if reader not in RAW:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    began_s = time.process_time()
    try:
        reader(text)
    except ModelMistake as mistake:
        prompts.explained(mistake)
    return time.process_time() - began_s
