"""The state s_t in the user's texts (--texts), for Orchestra-o1 and AOrchestra. Their released code
shows the main agent the models with prices, the files, and the history in the form of a tree.

Reports are written as they are, without the marks that prompts/ puts around text from outside: no
released model was trained on marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from orchestra.methods.state_prompt import PROMPTS, skills_of
from orchestra.runtime.options import Options
from orchestra.runtime.prompts import named, say, without_marks
from orchestra.runtime.texts import Texts
from orchestra.seams import Messages, Schema
from orchestra.toolkit import Tool
from orchestra.vocabulary import Backend, Evidence, Media, State

Row = Mapping[str, object]


class StateTexts:
    """The messages of the main agent. `steps`: the most that a sub-agent may take."""

    def __init__(
        self,
        texts: Texts,
        backends: Sequence[Backend],
        tools: Mapping[str, Tool],
        steps: int,
    ) -> None:
        self.texts = texts
        self.backends = backends
        self.tools = [(t.name, t.manual, t.inputs) for t in tools.values()]
        self.steps = steps

    def messages(self, state: State, mistake: str, last_chance: bool) -> Messages:
        """s_t. The mistake of the reply before and the last chance are below the last message."""
        rows = self.texts.rows
        number = min(state.round, state.rounds)  # a last chance is no further round
        budget = "" if state.budget_usd is None else f"{state.budget_usd:.4f}"
        values = {
            "question": state.task.question,
            "files": rows("files", file_rows(state.task.media)),
            "file_list": rows("file_list", file_rows(state.task.media)),
            "models": rows("models", map(model_row, self.backends)),
            "model_names": rows("model_names", map(model_row, self.backends)),
            "tools": rows("tools", self.texts.tool_rows(self.tools)),
            "history": self.history(state.history),
            "context": without_marks(state.context),
            "waiting": ", ".join(state.waiting),
            "budget": budget,
            "round": number,
            "rounds": state.rounds,
            "left": state.rounds - number,
        }
        notices = []
        if mistake:
            default = say(PROMPTS, "mistake", mistake=mistake)
            notices.append(self.texts.piece("mistake", default, mistake=mistake))
        if last_chance:
            default = say(PROMPTS, "last_chance")
            notices.append(self.texts.piece("last_chance", default))
        return self.texts.messages("main", values, "\n".join(filter(None, notices)))

    def schema(self, schema: Schema) -> Schema | None:
        """The schema of a decision, as the folder wants it."""
        return self.texts.schema("main", schema)

    # ---- the history -----------------------------------------------------------------------------

    def history(self, history: Sequence[Evidence]) -> str:
        """The rounds that had sub-tasks, with the entries of each."""
        rounds = []
        for number, group in groupby(history, key=lambda h: h.round):
            of_round = list(group)
            entries = [self.entry(n, h) for n, h in enumerate(of_round, 1)]
            text = self.texts.rows("entries", entries)
            rounds.append({"round": number, "count": len(entries), "entries": text})
        if not rounds:
            return self.texts.piece("history_empty")
        rows = self.texts.piece("history_join", "\n").join(
            self.texts.piece("history_row", **row) for row in rounds
        )
        done = sum(h.status == "done" for h in history)
        return self.texts.piece(
            "history", rows, rows=rows, done=done, total=len(history)
        )

    def entry(self, number: int, h: Evidence) -> Row:
        """A sub-task and its result. The `kind` of its row is its status."""
        untraced = "unsummarised" if h.steps else "no_steps"
        summary = h.trace_summary or self.texts.piece(untraced, steps=h.steps)
        trace = [{"line": line} for line in summary.split("\n")]
        is_done = h.status == "done"
        unanswered = not h.answer and not is_done
        texts = {
            "answer": without_marks(h.answer),
            "summary": without_marks(h.summary),
            "error": without_marks(h.error),
        }
        parts = {f"{name}_part": self.part(name, text) for name, text in texts.items()}
        return {
            "number": number,
            "round": h.round,
            "id": h.id,
            "status": h.status,
            "kind": h.status,
            "mark": self.texts.piece("mark_done" if is_done else "mark_other"),
            "model": h.backend,
            "tool_names": ", ".join(h.tools),
            "steps": h.steps,
            "max_steps": self.steps,
            "instruction": h.instruction,
            "trace": self.texts.rows("trace", trace if summary else []),
            "unanswered_part": self.texts.piece("unanswered_part")
            if unanswered
            else "",
            **texts,
            **parts,
        }

    def part(self, name: str, text: str) -> str:
        """A part of an entry that depends on whether there is such a text."""
        if not text:
            return self.texts.piece(f"no_{name}_part")
        return self.texts.piece(f"{name}_part", **{name: text})


def state_texts(
    options: Options, backends: Sequence[Backend], tools: Mapping[str, Tool]
) -> StateTexts | None:
    """None without --texts."""
    if options.texts is None:
        return None
    return StateTexts(Texts(options.texts), backends, tools, options.steps)


# ---- rows ----------------------------------------------------------------------------------------


def file_rows(media: Sequence[Media]) -> Iterator[Row]:
    """The `kind` of a row is the modality of its file."""
    for number, m in enumerate(media, 1):
        yield {
            "number": number,
            "name": named(m.name),
            "modality": m.modality,
            "MODALITY": m.modality.upper(),
            "kind": m.modality,
        }


def model_row(b: Backend) -> Row:
    """The name, skills and prices of a model; an unknown price is 0, as in the released code."""
    price = b.price_usd_per_mtok
    into = price.input if price else 0.0
    out = price.output if price else 0.0
    return {
        "name": b.name,
        "skills": skills_of(b),
        "input_per_mtok": f"{into:g}",
        "output_per_mtok": f"{out:g}",
        "input_per_1k": f"{into / 1000:.5f}",
        "output_per_1k": f"{out / 1000:.5f}",
    }
