"""The evaluation of ToolOrchestra on HLE, which plays a run again."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

EXPERT = "gpt-5 "  # before a slot: as for the strongest experts


def evaluation(given: Any) -> Any:
    """eval_hle.py of the clone, with a tokenizer of four characters a token."""

    class Tokenizer:
        def __call__(self, text: str) -> Any:
            parts = [text[n : n + 4] for n in range(0, len(text), 4)]
            return {"input_ids": parts}

        def batch_decode(self, ids: Any, skip_special_tokens: bool) -> Any:
            return ids

    folder = Path("media/evaluation").absolute()
    sys.path.insert(0, str(folder))
    os.chdir(folder)  # it opens tools.json here
    found: Any = import_module("eval_hle")
    found.my_output_dir = mkdtemp()
    os.chdir(found.my_output_dir)
    found.tokenizer = Tokenizer()
    found.MODEL_NAME = "model"
    found.vllm_model_configs = {"model": [], "vllm_model_config_path": ""}
    slots = [slot for tool in found.ALL_TOOLS.values() for slot in tool["model"]]
    found.MODEL_MAPPING = {slot: EXPERT + slot for slot in slots}
    return found


def turn(given: Any) -> Any:
    """The newest request, its tools, and the tool and model that it calls after the reply."""
    turns = given["turns"]
    replies = [turn["calls"] for turn in turns]
    if given["calls"] is not None:
        replies.append(given["calls"])
    requests: list[Any] = []
    made: list[Any] = []

    def chat(messages: Any, tools: Any, **rest: Any) -> Any:
        requests.append([messages, tools])
        if len(requests) > len(replies):
            raise EOFError
        functions = [SimpleNamespace(**call) for call in replies[len(requests) - 1]]
        calls = [SimpleNamespace(function=function) for function in functions]
        message = SimpleNamespace(content="", tool_calls=calls)
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])

    def call_tool(arguments: Any) -> Any:
        if len(requests) > len(turns):
            made.append([arguments["tool"], arguments["model"].removeprefix(EXPERT)])
            raise EOFError
        return {**arguments, **turns[len(requests) - 1]["result"]}

    found = evaluation(given)
    found.get_llm_response, found.call_tool = chat, call_tool
    found.MAX_ROUNDS = len(turns) + 1
    row = {"id": "0", "eid": 0, "question": given["question"], "answer": ""}
    with suppress(EOFError):
        found.run_single(row)
    return [*requests[-1], *made]
