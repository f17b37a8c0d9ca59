"""Orchestrator-8B of NVlabs/ToolOrchestra, as its evaluation on HLE drives it (eval_hle.py).

The clone's `run_single` plays the turns so far again, writes the next request and reads the reply.
It runs with a chat client and tools that return what is known.

Differences from the released code
1. Contexts are cut at 27,000 tokens: there of Qwen3's tokenizer, here of four characters. That
   tokenizer also breaks characters that are several tokens; here they stay.
2. An error of its code for a reply ends the task there. Here the same request is sent again, at
   most twice. Another reply without a usable call loses its turn, as there.
3. Of a program that failed, it keeps what was printed before; here nothing. What a program prints
   ends in one line break.
4. A search is one document for each query, not up to 50. Experts read this program's prompts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestra.kernel.folder import Options
from orchestra.kernel.method import Ask
from orchestra.kernel.tool import CODE, SEARCH, Tool
from orchestra.kernel.vocabulary import (
    Decision,
    Evidence,
    Pool,
    Result,
    State,
    SubTask,
    Task,
)
from orchestra.methods.released.clone import REFUSED, OfClone, lost, refused, unmarked
from orchestra.methods.replies import as_text
from orchestra.methods.toolorchestra import ToolCall, ToolOrchestra
from orchestra.methods.toolorchestra_context import kind_of

CALL = re.compile(
    r"(?s)<tool_call>(.*?)(?:</tool_call>|\Z)"
)  # vLLM's parser for Hermes


class Released(OfClone, ToolOrchestra):
    """One expert a turn."""

    rounds = 50
    repository = "https://github.com/NVlabs/ToolOrchestra"
    file = "evaluation/eval_hle.py"
    options = {**OfClone.options}
    agents = {**ToolOrchestra.agents, REFUSED: refused}

    def __init__(self, pool: Pool, tools: Mapping[str, Tool], options: Options) -> None:
        super().__init__(pool, tools, options)
        self.check(self.turn, State(Task("?"), "", (), (), (), 1, 1))

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """The expert that the released code calls; nobody, if it calls none."""
        if last_chance:
            return lost(state)
        messages, tools = self.turn(state)
        reply = ask(messages, tools=tools)
        _, _, *made = self.turn(state, calls_in(reply.text))
        for tool, slot in made:
            y_t = self.expert(state, ToolCall(tool, slot))
            return replace(y_t, final=tool == "answer")
        return lost(state)

    def turn(self, state: State, calls: Any = None) -> Any:
        """The request, its tools, and what the clone does with the calls of the reply."""
        turns = [known_turn(h) for h in state.history if kind_of(h.id) != "answer"]
        given = {"question": state.task.question, "turns": turns, "calls": calls}
        return self.clone.call("orchestrator:turn", given)

    def remember(
        self, history: tuple[Evidence, ...], u: SubTask, z: Result
    ) -> tuple[Evidence, ...]:
        """The summary is what its tools have shown, as JSON."""
        well = [step for step in z.trace if not step.failed]
        shown = [unmarked(step) for step in well if step.action == SEARCH]
        for step in well:
            if step.action == CODE:
                shown = [step.params["code"], unmarked(step)]
        return super().remember(history, u, replace(z, summary=json.dumps(shown)))


def known_turn(h: Evidence) -> Any:
    """A turn so far: its call, and what the tool of the clone returns."""
    tool = kind_of(h.id)
    slot = h.instruction.partition(":")[0]
    call = {"name": tool, "arguments": json.dumps({"model": slot})}
    shown = json.loads(h.summary or "[]")
    result = {"search_results_data": shown[::-1]}
    if tool != "search":
        code, output = shown or ("", "")
        result = {"generated_code": f"\n{code}", "exec_result": f"{output}\n"}
    return {"calls": [call], "result": result}


def calls_in(reply: str) -> list[Any]:
    """The calls of a reply, as vLLM reads them: none if one is not valid."""
    try:
        found = [json.loads(text) for text in CALL.findall(reply)]
        return [
            {"name": call["name"], "arguments": as_text(call["arguments"])}
            for call in found
        ]
    except (ValueError, KeyError, TypeError):
        return []
