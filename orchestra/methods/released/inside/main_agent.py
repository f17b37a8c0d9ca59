"""The main agent of Orchestra-o1 and of AOrchestra. The clone's classes write the question, the
history and the prompt, and read the reply.
"""

from __future__ import annotations

import asyncio
import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple


class Names(NamedTuple):
    """Where a clone has what its benchmark needs. `tools`: in the runner's order."""

    benchmark: str
    environment: tuple[str, str]
    prompt: tuple[str, str]
    tools: tuple[str, ...]


GAIA_TOOLS = (
    "GoogleSearchAction",
    "ExecuteCodeAction",
    "ExtractUrlContentAction",
    "ImageAnalysisAction",
    "ParseAudioAction",
)
NAMES = {
    "orchestra_o1": Names(
        "omnigaia",
        ("omnigaia.orchestra_o1_bench_omnigaia", "OmniGAIAOrchestraEnvironment"),
        ("omnigaia", "OmniGAIAMainAgentPrompt"),
        (*GAIA_TOOLS, "VideoAnalysisAction"),
    ),
    "aorchestra": Names(
        "gaia",
        ("aorchestra_bench_gaia", "GAIAOrchestraEnvironment"),
        ("gaia", "GAIAMainAgentPrompt"),
        GAIA_TOOLS,
    ),
}


class SubAgent:
    """In place of the clone's: it stops with what it was asked."""

    def __init__(self, *asked: Any) -> None:
        self.asked = asked

    def reset(self, info: Any) -> None:
        raise RuntimeError(f"asked {json.dumps(self.asked)}")


def environment(given: Any) -> Any:
    """The question, as the benchmark of the clone writes it."""

    def exists(path: Path) -> bool:
        return str(path) in given["files"]

    Path.exists = exists  # type: ignore[method-assign, assignment]
    module, name = NAMES[given["package"]].environment
    config = SimpleNamespace(
        attachments_dir=Path(given["folder"]), max_steps=given["steps"]
    )
    return getattr(import_module(f"benchmark.{module}"), name)(given["row"], config, [])


def main_agent(given: Any, env: Any, answer: Any) -> Any:
    """The MainAgent of the clone after its history. `answer`: its model."""

    async def run(agent: Any, env: Any) -> None:
        agent.reset(env)

    package = given["package"]
    names = NAMES[package]
    delegate: Any = import_module(f"{package}.tools.delegate")
    released = delegate.ReActAgent

    def sub_agent(llm: Any, memory: Any, **about: Any) -> SubAgent:
        released(**about)  # raises an error for a field of the wrong type
        task, context = about["task_instruction"], about["context"]
        return SubAgent(llm, task, context, about["allowed_tools"])

    delegate.ReActAgent = sub_agent
    delegate.Memory = lambda **about: None
    delegate.create_llm_instance = str
    models = SimpleNamespace(get=str)
    delegate.LLMsConfig = SimpleNamespace(default=lambda: models)
    main = import_module(f"{package}.main_agent").MainAgent
    model = import_module("base.engine.async_llm").AsyncLLM
    tools = import_module(f"benchmark.{names.benchmark}.tools")
    module, prompt = names.prompt
    kind = {"benchmark_type": names.benchmark}
    aliases = {f"model_{n}": name for n, name in enumerate(given["models"], 1)}
    runner = SimpleNamespace(run=run)
    delegation = delegate.DelegateTaskTool(
        env, runner, given["models"], alias_to_model=aliases, **kind
    )
    complete = import_module(f"{package}.tools.complete").CompleteTool()
    own = {"__init__": lambda self: None, "__call__": answer}
    agent = main(
        llm=type("Model", (model,), own)(),
        sub_models=given["models"],
        tools=[delegation, complete],
        subagent_tools=[getattr(tools, name)() for name in names.tools],
        prompt_builder=getattr(import_module(f"{package}.prompts.{module}"), prompt),
        max_attempts=given["rounds"],
        mask_model_names=True,
        **kind,
    )
    agent.reset(env.get_basic_info())
    return agent


def report(given: Any, forced: Any, result: Any) -> Any:
    """What a sub-agent reports. `forced`: the loop of some branches, whose last step always is a
    report. There, of a sub-agent that used all its steps, it is made from what the last tool
    showed; elsewhere it says that the steps were used.
    """
    env = environment(given)
    if not result.pop("timed_out"):
        *_, info = env._handle_finish(result["finish_result"])
    elif forced is None:
        *_, info = env._timeout_response({}, {})
    else:

        async def step(**about: Any) -> Any:
            return {}, ""

        async def shown(*action: Any) -> Any:
            output = {"output": result["finish_result"]["summary"], "error": None}
            return output, 0.0, False, {}

        env._handle_tool = shown
        llm = SimpleNamespace(get_usage_summary=dict)
        agent = SimpleNamespace(reset=id, step=step, llm=llm)
        info = asyncio.run(forced(agent, env, given["steps"])).trace[-1].info
    return info["finish_result"]


def turn(given: Any) -> Any:
    """One MainAgent.step after the history: its prompt and, with a reply, what it does then."""
    prompts: list[str] = []

    async def answer(self: Any, prompt: str) -> Any:
        prompts.append(prompt)
        if given["reply"] is None:
            raise EOFError
        return given["reply"]

    env = environment(given)
    agent = main_agent(given, env, answer)
    step = SimpleNamespace(action={}, observation={})
    forced = getattr(agent.tools[0], "_run_gaia_with_forced_finish", None)
    for agent.attempt, params, whole in given["history"]:
        for result in whole.get("subtask_results") or [whole]:
            if "finish_result" in result:
                result["finish_result"] = report(given, forced, result)
                if forced:
                    result["statistics"] = {"max_steps": given["steps"]}
                trace = [step] * result["steps_taken"]
                summary = agent.tools[0]._summarize_trace(trace, "")
                result["trace_summary"] = asyncio.run(summary)
        agent._update_context("delegate_task", params, whole)
    agent.attempt = given["round"] - 1
    try:
        did, _ = asyncio.run(agent.step(None, []))
    except EOFError:
        did = None
    return [prompts[0], did]
