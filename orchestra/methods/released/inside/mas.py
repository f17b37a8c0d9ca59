"""The prompts and the parsers of MAS-Orchestra."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any


def settings(given: Any) -> None:
    """The settings of the training script."""
    from mas_r1_reasoner.agents.shared_vars import set_global

    set_global("global_problem_type", given["problem_type"])
    set_global("global_dataset_name", given["dataset"])
    set_global("global_node_model", given["node_model"])
    archive = ["COT", "COT_SC", "Reflexion", "LLM_debate", "WebSearch"]
    set_global("global_init_archive", archive)


def messages(given: Any) -> Any:
    """As `_prepare_raw_data_batch_for_generation` writes them."""
    from mas_r1_reasoner.agents.common import get_prompt

    settings(given)
    system, user, developer = get_prompt("PLACEHOLDER_QUESTION")
    user = user.replace("PLACEHOLDER_QUESTION", given["question"])
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": user},
        {"role": "user", "content": developer},
    ]


def agents(given: Any) -> Any:
    """The direct answer of a reply; or the name, input and roles of each agent, as its code calls
    them, and what it returns. Of the first one, the output is ${A1} if the id is A. None: the
    parser refuses the reply.
    """
    from mas_r1_reasoner.rewards.utils import harmony_parser

    settings(given)
    reply, calls = given["reply"], []
    code, _, answer = harmony_parser.extract_harmony_code_from_response(
        reply, None, None
    )
    if code == "direct_answer" or not code:
        return {"answer": answer} if code else None

    class Agents:
        def __getattr__(self, name: str) -> Any:
            async def agent(
                agent_input: Any, model: str, debate_roles: Any = ()
            ) -> str:
                calls.append([name, agent_input.content, [*debate_roles]])
                return f"${{{given['id']}{len(calls)}}}"

            return agent

    def info(name: str, author: str, content: str, *rest: Any) -> Any:
        return SimpleNamespace(content=content)

    scope: Any = {"Info": info}
    try:
        exec(code, scope)
        task = info("task", "User", given["question"])
        returned = asyncio.run(scope["forward"](Agents(), task))
    except Exception as error:
        return {"calls": [], "returned": str(error)}
    return {"calls": calls, "returned": returned}
