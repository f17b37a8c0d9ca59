"""The history of Orchestra-o1 and AOrchestra as their released code writes it: a tree in which each
sub-task has its instruction, result, summary and trace.
"""

from __future__ import annotations

import ast

from orchestra.texts.source import Source, escaped, in_order


def entries_of(
    agent: Source, loop: ast.For, entry: str, emoji: str, steps: str
) -> dict[str, str]:
    """A sub-task and its result. `entry`, `emoji` and `steps`: variables of the loop."""
    fields = {
        f"{entry}['attempt']": "${round}",
        "i + 1": "${number}",
        emoji: "${mark}",
        f"{entry}.get('status', '?')": "${status}",
        f"{entry}['status']": "${status}",
        "sub_model": "${model}",
        "model_display": "${model}",
        steps: agent.template(
            agent.value(steps, loop),
            {
                f"{entry}.get('steps_taken', '?')": "${steps}",
                f"{entry}.get('max_steps', 30)": "${max_steps}",
            },
        ),
        f"{entry}.get('instruction', 'N/A')": "${instruction}",
        "result_str": "${answer_part}",
        f"{entry}['summary']": "${summary}",
        f"{entry}.get('result', '')": "${answer}",
    }

    def line(expression: str) -> str:
        return agent.template(agent.string_with(loop, expression), fields)

    mark = _choice(agent, loop, emoji)
    result = _choice(agent, loop, "result_str")
    head = [line(emoji), line(f"{entry}.get('instruction', 'N/A')"), line("result_str")]
    return {
        "entries_row": "\n".join(head) + "${summary_part}${unanswered_part}${trace}",
        "mark_done": agent.template(mark.body, {}),
        "mark_other": agent.template(mark.orelse, {}),
        "answer_part": agent.template(result.body, fields),
        "no_answer_part": agent.template(result.orelse, {}),
        "summary_part": "\n" + line(f"{entry}['summary']"),
        **_note(agent, loop),
        **_trace(agent, loop),
    }


def _choice(source: Source, within: ast.AST, name: str) -> ast.IfExp:
    value = source.value(name, within)
    if isinstance(value, ast.IfExp):
        return value
    raise source.error(f"choice of {name}")


def _note(agent: Source, loop: ast.For) -> dict[str, str]:
    """AOrchestra: a line about a sub-task that ended without a result."""
    for node in in_order(loop, ast.If):
        if "'timeout', 'partial'" in ast.unparse(node.test):
            constant = next(in_order(node.body[0], ast.Constant), None)
            text = next((s for s in in_order(node.body[0], ast.JoinedStr)), constant)
            if text is not None:
                return {"unanswered_part": "\n" + agent.template(text, {})}
    return {}


def _trace(agent: Source, loop: ast.For) -> dict[str, str]:
    """The summary of the trace, each of its lines after the same spaces."""
    for node in in_order(loop, ast.JoinedStr):
        for part in _expressions_of(node):
            if isinstance(part, ast.Call) and ast.unparse(part.func) == "indent_text":
                names = {ast.unparse(part): "${rows}"}
                indent = agent.text_of(part.args[1], "of an indent")
                return {
                    "trace": "\n" + agent.template(node, names),
                    "trace_row": escaped(indent) + "${line}",
                }
    raise agent.error("f-string with {indent_text(...)}")


def _expressions_of(node: ast.JoinedStr) -> list[ast.expr]:
    return [v.value for v in node.values if isinstance(v, ast.FormattedValue)]


def history_of(agent: Source, history: ast.AST, total: str) -> dict[str, str]:
    """What stands around the entries, and in their place."""
    first = next(in_order(history, ast.Return), None)
    summary = agent.value("summary_lines", history)
    if first is None or first.value is None or not isinstance(summary, ast.List):
        raise agent.error("summary of the history")
    names = {"done_count": "${done}", total: "${total}"}
    end = "\n".join(agent.template(node, names) for node in summary.elts)
    return {
        "history": "${rows}\n\n" + end,
        "history_join": "\n\n",
        "history_empty": agent.template(first.value, {}),
        "entries_join": "\n",
    }
