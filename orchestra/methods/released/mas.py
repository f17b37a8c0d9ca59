"""The checkpoints of SalesforceAIResearch/MAS-Orchestra, which write the whole system in one reply.

The clone's own code writes the three messages, as its trainer does, and reads the reply.

Differences from the released code
1. A reply that its parser refuses is a failed run there. Here the same prompt is sent again, at
   most twice. A graph whose code would fail, as with an unknown agent, is one sub-task that fails.
2. Agents run in parallel. They read this program's prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestra.kernel.folder import Options
from orchestra.kernel.method import Ask, one_of_these
from orchestra.kernel.tool import Tool
from orchestra.kernel.vocabulary import (
    Complete,
    Decision,
    Delegate,
    Messages,
    ModelMistake,
    Pool,
    State,
    SubTask,
)
from orchestra.methods.mas_orchestra import MasOrchestra
from orchestra.methods.mas_xml import AGENT_BY_NAME
from orchestra.methods.released.clone import REFUSED, OfClone, refused

CHECKPOINTS = {  # its problem type, and the name of its data where that matters
    "math": ("harmony_minimal", ""),
    "multiple-choice": ("harmony_minimal", "multiple_choice"),
    "hotpotqa": ("harmony_medium", ""),
    "browsecomp-plus": ("harmony_medium", ""),
}
NODE_MODEL = "gpt-oss-120b"  # of its training script


class Released(OfClone):
    """The option `checkpoint` names its prompts, and `node_model` the model that they name."""

    rounds = 1
    repository = "https://github.com/SalesforceAIResearch/MAS-Orchestra"
    file = "mas_r1_reasoner/agents/common.py"
    agents = {**MasOrchestra.agents, REFUSED: refused}
    options = {
        **OfClone.options,
        "checkpoint": one_of_these(*CHECKPOINTS),
        "node_model": str,
    }

    def __init__(self, pool: Pool, tools: Mapping[str, Tool], options: Options) -> None:
        super().__init__(pool, tools, options)
        problem_type, dataset = CHECKPOINTS[self.own.get("checkpoint", "math")]
        self.settings = {
            "problem_type": problem_type,
            "dataset": dataset,
            "node_model": self.own.get("node_model", NODE_MODEL),
        }
        self.check(self.messages, "?")

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """The answer, or the agents that the released code runs. Raises ModelMistake."""
        question = state.task.question
        reply = ask(self.messages(question))
        first = "A"  # letters of ids, so that no ${A1} of a question is taken for one
        while f"${{{first}" in question + reply.text:
            first += "A"
        given = {"question": question, "reply": reply.text, "id": first}
        found = self.clone.call("mas:agents", self.settings | given)
        if found is None:
            raise ModelMistake("the released parser refuses the reply")
        if "answer" in found:
            return Complete(found["answer"])
        return whole_graph(found, first)

    def messages(self, question: str) -> Messages:
        given = {"question": question}
        found: Messages = self.clone.call("mas:messages", self.settings | given)
        return found


def whole_graph(found: Mapping[str, Any], first: str) -> Delegate:
    """The agents that the code calls, as sub-tasks; one that fails if it calls none. `first`: what
    an id begins with.
    """
    subtasks: list[SubTask] = []
    for number, (name, instruction, roles) in enumerate(found["calls"], 1):
        u = SubTask(
            f"{first}{number}",
            instruction,
            tools=(),
            needs=tuple(v.id for v in subtasks if f"${{{v.id}}}" in instruction),
            agent=AGENT_BY_NAME[name],
            roles=tuple(roles),
        )
        subtasks.append(u)
    if not subtasks:
        subtasks = [SubTask("A1", str(found["returned"]), tools=(), agent=REFUSED)]
    return Delegate(tuple(subtasks), whole_graph=True, answers=True, final=True)
