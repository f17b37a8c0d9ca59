"""The texts of MAS-Orchestra: three messages. The last one describes the agents by the source of
their functions. `dom` low: one agent (harmony_minimal there); high: a graph (harmony_medium).
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from orchestra.texts.folder import Folder
from orchestra.texts.source import Source, escaped

ROOT = "mas_r1_reasoner/agents"
PROMPTS = {  # the files of the system, user and developer prompt
    # "minmal" is how the repository spells it
    "low": ("harmony_minimal", "propose_harmony_minmal", "harmony_minimal"),
    "high": ("harmony_medium", "propose_harmony_medium", "harmony_medium"),
}
AGENTS = {  # mark in the developer prompt: file and name of the description
    "[COT]": ("cot", "COT"),
    "[COT_SC]": ("cot_sc", "COT_SC"),
    "[Debate]": ("llm_debate", "LLM_debate"),
    "[Reflexion]": ("reflexion", "Reflexion"),
    "[Websearch]": ("web_search", "WebSearch"),
}


def fill(clone: Path, dom: str) -> Folder:
    system, user, developer = PROMPTS[dom]
    prompts = f"{ROOT}/prompts"
    first = Source.of(clone, f"{prompts}/system_prompt/{system}.py")
    second = Source.of(clone, f"{prompts}/user_prompt/{user}.py")
    third = Source.of(clone, f"{prompts}/developer_prompt/{developer}.py")
    described = third.constant("developer_prompt")
    for mark, (file, name) in AGENTS.items():
        if mark in described:
            agent = Source.of(clone, f"{ROOT}/blocks_harmony/{file}.py")
            described = described.replace(mark, json.dumps(_description(agent, name)))
    messages = (
        ("system", _with(first.constant("system_prompt"), "[MODEL]", "${models}")),
        ("user", _with(second.constant("base"), "[QUESTION]", "${question}${files}")),
        ("user", escaped(described)),
    )
    pieces = {
        "models_row": "${name}",
        "models_join": ", ",
        "files": "\n\nFiles: ${rows}",
        "files_row": "${name}",
        "files_join": ", ",
    }
    return Folder(dom=dom, calls={"main": messages}, pieces=pieces)


def _with(text: str, mark: str, variable: str) -> str:
    return escaped(text).replace(mark, variable)


def _description(source: Source, name: str) -> dict[str, Any]:
    """The description of an agent. Its `implementation` is a text or the source of a function."""
    node = source.value(name)
    if not isinstance(node, ast.Dict):
        raise source.error(f"description {name}")
    found: dict[str, Any] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        text = source.text_of(key, "of a key") if key else ""
        if text == "implementation" and isinstance(value, ast.Call):  # of .format(...)
            found[text] = _implementation(source)
        else:
            found[text] = ast.literal_eval(value)
    return found


def _implementation(source: Source) -> str:
    call = source.value("func_string")
    if not isinstance(call, ast.Call) or not call.args:
        raise source.error("func_string = inspect.getsource(...)")
    return source.lines(source.function(ast.unparse(call.args[0])))
