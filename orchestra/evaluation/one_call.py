"""The row without agents: one call of the model that the methods use, which reads the files as
text.

    orchestra-min evaluate run --data FILE --method orchestra.evaluation.one_call:OneCall ...

The engines of the pool look at and listen to the files first, as they do for ToolOrchestra and
MAS-Orchestra. `think=on` asks for a chain of thought before the answer. It has no tools.
"""

from __future__ import annotations

from orchestra.kernel.method import Ask, Method, one_of_these
from orchestra.kernel.prompts import say
from orchestra.kernel.vocabulary import Complete, Decision, ModelMistake, State
from orchestra.methods import experts
from orchestra.methods.answers import answer_of
from orchestra.methods.files_as_text import files_found, read_files_first

PROMPTS = "evaluation/one_call"


class OneCall(Method):
    """The files are read in the first round, and the call is the second one."""

    rounds = 2
    options = {"think": one_of_these("on", "off")}
    agents = {"read-file": experts.read_file}

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """Raises ModelMistake for a reply without an answer."""
        if state.task.media and (files := read_files_first(state)):
            return files
        parts = [part for part in (files_found(state), mistake) if part]
        before = "".join(f"{part}\n\n" for part in parts)
        name = "think" if self.own.get("think") == "on" else "answer"
        prompt = say(PROMPTS, name, before=before, question=state.task.question)
        reply = ask([{"role": "user", "content": prompt}])
        if reply.cut:
            raise ModelMistake("cut")
        answer = answer_of(reply.text)
        if not answer:
            raise ModelMistake("no_answer", PROMPTS)
        return Complete(answer)
