"""ReAct (arXiv 2210.03629): one agent, all tools, one loop. It is the single-agent baseline of
Orchestra-o1's Figure 6.

Differences from the paper / the released code
1. The loop is this program's ReAct sub-agent (agents/react.py has its own list), without a main
   agent and with a system prompt that asks for the answer.
2. The agent is the pool's main model, so that methods differ only in the orchestration.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestra.runtime.options import Options
from orchestra.runtime.pool import Pool
from orchestra.seams import Ask
from orchestra.toolkit import Tool
from orchestra.vocabulary import Decision, Delegate, State, SubTask


class React:
    """The question is the only sub-task, and its answer is the run's."""

    rounds = 1
    shares_context = False

    def __init__(self, pool: Pool, tools: Mapping[str, Tool], options: Options) -> None:
        self.main = pool.main
        # "" is the sub-agent of --agent.
        self.agent = "single" if options.agent == "react" else ""

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """Calls no model: the one agent decides step by step in its loop."""
        u = SubTask(
            id="answer",
            instruction=state.task.question,
            backend=self.main,
            tools=state.tools,
            agent=self.agent,
        )
        return Delegate((u,), whole_graph=True, answers=True, final=True)
