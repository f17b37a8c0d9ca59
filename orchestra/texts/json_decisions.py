"""The texts of Orchestra-o1 and of AOrchestra, whose released code is nearly the same: one message
with everything, in which the history is a tree.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from orchestra.texts.folder import Folder
from orchestra.texts.source import Names, Source, escaped, in_order
from orchestra.texts.tree_history import entries_of, history_of

PROMPT: Names = {  # the expressions of build_prompt
    "model_pricing_table": "${models}",
    "attempt_index": "${round}",
    "max_attempts": "${rounds}",
    "remaining_attempts": "${left}",
    "instruction": "${question}${files}",
    "subtask_history": "${history}",
    "tools_description": "${tools}",
    "sub_models": "${model_names}",
    "modal_info": "${file_list}",
    "task_type": "",
    "category": "",
}
PRICES: Names = {
    "model_display": "${name}",
    "input_price": "${input_per_1k}",
    "output_price": "${output_per_1k}",
}
TOOL: Names = {
    "tool.name": "${name}",
    "tool.description": "${description}",
    "json.dumps(tool.parameters, indent=2)": "${parameters}",
}
NAMES_OF_MODELS = {  # how Python prints a list of names
    "model_names": "[${rows}]",
    "model_names_row": "'${name}'",
    "model_names_join": ", ",
}
STEPS = {
    "done_steps_row": "Step ${number}: ${action} ${params}\n  → output: ${observation}\n"
}


def orchestra_o1(clone: Path, dom: str) -> Folder:
    prompts = Source.of(clone, "orchestra_o1/prompts/omnigaia.py")
    agent = Source.of(clone, "orchestra_o1/main_agent.py")
    folder = _folder(prompts, agent)
    history = agent.function("_format_subtask_history")
    batch = agent.loop(history, "enumerate(batch_results)")
    folder.pieces |= entries_of(agent, batch, "sub", "sub_emoji", "sub_steps")
    about = {"e['attempt']": "${round}", "len(batch_results)": "${count}"}
    head = agent.string_with(history, "len(batch_results)")
    folder.pieces["history_row"] = agent.template(head, about) + "\n${entries}"
    folder.pieces |= history_of(agent, history, "total_subtasks")
    folder.pieces |= _file_list(prompts)
    path = "benchmark/omnigaia/orchestra_o1_bench_omnigaia.py"
    question, files = _instruction(Source.of(clone, path))
    folder.pieces |= files
    ((role, text),) = folder.calls["main"]
    text = text.replace("${question}${files}", question)
    folder.calls["main"] = ((role, text),)
    folder.tools = _tools(clone, "benchmark/omnigaia/tools")
    delegate = Source.of(clone, "orchestra_o1/tools/delegate.py")
    names = {
        "task_instruction[:200]": "${instruction}",
        "len(trace)": "${count}",
        "trace_text": "${done_steps}",
    }
    _add_summary(folder, delegate, names)
    return folder


def aorchestra(clone: Path, dom: str) -> Folder:
    prompts = Source.of(clone, "aorchestra/prompts/gaia.py")
    agent = Source.of(clone, "aorchestra/main_agent.py")
    folder = _folder(prompts, agent)
    history = agent.function("_format_subtask_history")
    entries = agent.loop(history, "self.task_entries")
    folder.pieces |= entries_of(agent, entries, "e", "emoji", "steps_info")
    folder.pieces["history_row"] = "${entries}"
    folder.pieces |= history_of(agent, history, "len(self.task_entries)")
    folder.pieces |= {"files": "\n\n${rows}", "files_row": "File: ${name}"}
    delegate = Source.of(clone, "aorchestra/tools/delegate.py")
    names = {
        "original_question": "${instruction}",
        "finish_section": "${finish_part}",
        "trace_text": "${done_steps}",
    }
    function = _add_summary(folder, delegate, names)
    end = delegate.string_with(function, "fr_status")
    about = {"fr_status": "${status}", "fr_result": "${answer}"}
    folder.pieces["finish_part"] = delegate.template(end, about)
    return folder


def _folder(prompts: Source, agent: Source) -> Folder:
    """The main agent's message, the models and the tools."""
    build = prompts.function("build_prompt")
    long = prompts.string_with(build, "model_pricing_table")
    text = prompts.template(long, PROMPT).strip()
    pieces = {**NAMES_OF_MODELS, **STEPS, **_models(agent)}
    describe = prompts.function("format_tools_description")
    about = prompts.string_with(describe, "tool.name")
    more = prompts.string_with(describe, "json.dumps(tool.parameters, indent=2)")
    row = prompts.template(about, TOOL) + prompts.template(more, TOOL)
    pieces |= {"tools_row": row, "tools_join": "\n\n"}
    return Folder(calls={"main": (("user", text),)}, pieces=pieces)


def _models(agent: Source) -> dict[str, str]:
    """The table of models: two lines above its rows."""
    table = agent.function("build_model_pricing_table")
    row = agent.string_with(table, "model_display")
    lines = agent.value("lines", table)
    appended = [
        call.args[0]
        for call in in_order(table, ast.Call)
        if ast.unparse(call.func) == "lines.append"
    ]
    if not isinstance(lines, ast.List) or not appended:
        raise agent.error("lines of a table")
    head = [agent.template(node, {}) for node in (*lines.elts, appended[0])]
    return {
        "models": "\n".join([*head, "${rows}"]),
        "models_row": agent.template(row, PRICES),
    }


# ---- files, tools, summaries ---------------------------------------------------------------------


def _file_list(prompts: Source) -> dict[str, str]:
    build = prompts.function("build_prompt")
    names = {
        "m.get('type', 'unknown')": "${modality}",
        "m.get('id', '')": "${name}",
        "m.get('path', 'N/A')": "${name}",
    }
    row = prompts.string_with(build, "m.get('id', '')")
    for node in in_order(build, ast.IfExp):
        if ast.unparse(node.test) == "modal_info":
            head = next(in_order(node.body, ast.Constant), None)
            if head is not None and head.value:
                return {
                    "file_list": prompts.template(head, {}) + "\n${rows}",
                    "file_list_row": prompts.template(row, names),
                }
    raise prompts.error("list of inputs")


def _instruction(bench: Source) -> tuple[str, dict[str, str]]:
    """The question with what stands before it, and the files with a hint for each kind."""
    build = bench.function("_build_instruction")
    question = bench.string_with(build, "self.question")
    names = {
        "i": "${number}",
        "modal_type.upper()": "${MODALITY}",
        "modal_id": "${name}",
        "resolved_path": "${name}",
        "self.question": "${question}",
    }
    loop = bench.loop(build, "enumerate(self.resolved_modal_inputs, 1)")
    first = bench.template(bench.string_with(loop, "modal_id"), names)
    path = bench.template(bench.string_with(loop, "resolved_path"), names)
    hint = bench.string_with(loop, "tool_hint")
    added = [n.value for n in in_order(build, ast.AugAssign)]
    head = next((n for n in added if isinstance(n, ast.Constant)), None)
    if head is None:
        raise bench.error("text before the inputs")
    try:
        hints: dict[str, str] = ast.literal_eval(bench.value("OMNI_MODAL_TOOL_HINTS"))
    except ValueError:
        raise bench.error("hints as texts") from None
    other = bench.value("tool_hint", loop)
    default = other.args[1] if isinstance(other, ast.Call) else other
    rows = {f"files_row_{kind}": escaped(text) for kind, text in hints.items()}
    rows["files_row"] = bench.template(default, {})
    for name, text in rows.items():
        rows[name] = first + path + bench.template(hint, {"tool_hint": text})
    about = {"files": bench.template(head, {}) + "${rows}", "files_join": ""}
    return bench.template(question, names) + "${files}", {**about, **rows}


def _tools(clone: Path, path: str) -> str:
    """The name, description and parameters of each tool, as tools.json: in the order in which the
    package imports their classes, which is that of the prompt.
    """
    package = path.replace("/", ".")
    tools = []
    imports = Source.of(clone, f"{path}/__init__.py")
    for node in in_order(imports.tree, ast.ImportFrom):
        parent, _, module = (node.module or "").rpartition(".")
        if parent != package:
            continue
        names = [alias.name for alias in node.names]
        source = Source.of(clone, f"{path}/{module}.py")
        for class_ in in_order(source.tree, ast.ClassDef):
            if class_.name in names:
                tools.append({"type": "function", "function": _fields_of(class_)})
    if not tools:
        raise imports.error("import of a tool")
    return json.dumps(tools, ensure_ascii=False, indent=1)


def _fields_of(node: ast.ClassDef) -> dict[str, Any]:
    """The fields of a class that are literals."""
    found = {}
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and item.value is not None:
            name = ast.unparse(item.target)
            if name in ("name", "description", "parameters"):
                try:
                    found[name] = ast.literal_eval(item.value)
                except ValueError:
                    continue
    return found


def _add_summary(folder: Folder, delegate: Source, names: Names) -> ast.AST:
    """The request for the summary of a trace, and what takes its place. Returns the function."""
    function = delegate.function("_summarize_trace")
    prompt = delegate.string_with(function, "trace_text")
    folder.calls["summary"] = (("user", delegate.template(prompt, names)),)
    first, *_, last = [node.value for node in in_order(function, ast.Return)]
    if first is None or last is None:
        raise delegate.error("text in place of a summary")
    folder.pieces["no_steps"] = delegate.template(first, {})
    about = {"len(trace)": "${steps}"}
    folder.pieces["unsummarised"] = delegate.template(last, about)
    return function
