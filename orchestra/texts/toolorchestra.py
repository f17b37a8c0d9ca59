"""The texts of ToolOrchestra: the main agent's two messages, the three tools, the context, and what
the experts read. Of the answers, those of the strongest experts are taken.
"""

from __future__ import annotations

import ast
from pathlib import Path

from orchestra.texts.folder import Folder
from orchestra.texts.source import Source, escaped, in_order, text_of

STRONGEST = (
    "'gpt-5' in arguments['model'].lower()"  # the branch of the strongest experts
)
CODE = {  # as they are cut out of the reply and of the output: with their line breaks
    "code_piece['code']": "\n${code}\n",
    "code_piece['output']": "${output}\n",
}


def fill(clone: Path, dom: str) -> Folder:
    source = Source.of(clone, "evaluation/eval_hle.py")
    turn = source.function("run_single")
    tool = source.function("call_tool")
    folder = Folder(tools=text_of(clone, "evaluation/tools.json"))
    folder.calls["main"] = _messages(source, turn)
    row, folder.limits["document_chars"] = _document(source, turn)
    code = source.template(source.string_with(turn, "code_piece['code']"), CODE)
    end = code[len(code.rstrip("\n")) :]
    documents = source.text_of(_before(source, turn, "context_str"), "of documents")
    around = {"search": escaped(documents) + "${rows}", "search_join": ""}
    folder.pieces = {
        "context_join": "",
        "failed": "",
        "reasoned": code.rstrip("\n"),
        **around,
        "search_row": row,
        "enhance_reasoning": _code_heading(source, turn) + "${rows}",
        "enhance_reasoning_row": "${text}" + end,
        "enhance_reasoning_join": "",
        "answer_row": _attempt(source, turn),
        "answer_join": "",
        **{f"expert_{name}": text for name, text in around.items()},
        "expert_search_row": _whole_document(source, turn),
        "expert_enhance_reasoning_row": "${text}" + end,
        "expert_enhance_reasoning_join": "",
    }
    for name in ("enhance_reasoning", "search"):
        folder.calls[name] = _question(source, tool, name)
    folder.calls["answer"] = _answer(source, tool)
    return folder


def _messages(source: Source, turn: ast.AST) -> tuple[tuple[str, str], ...]:
    """The main agent's messages. The user's preference belongs to the problem."""
    names = {"problem": "${problem}${preference}", "context_str": "${context}"}
    chat = source.value("chat", turn)
    found = []
    for node in in_order(chat, ast.Dict):
        keys = [ast.literal_eval(key) for key in node.keys if key is not None]
        values = dict(zip(keys, node.values, strict=True))
        role = source.text_of(values["role"], "of a role")
        if role not in ("system", "user"):
            raise source.error("message of the system or the user")
        found.append((role, source.template(values["content"], names)))
    return tuple(found)


def _document(source: Source, turn: ast.AST) -> tuple[str, int]:
    """A document as the main agent reads it, and how many characters of it."""
    for node in in_order(turn, ast.JoinedStr):
        for value in node.values:
            part = value.value if isinstance(value, ast.FormattedValue) else None
            if isinstance(part, ast.Subscript) and ast.unparse(part.value) == "doc":
                names = {"doc_idx + 1": "${n}", ast.unparse(part): "${text}"}
                chars = int(ast.unparse(part).rstrip("]").partition(":")[2])
                return source.template(node, names), chars
    raise source.error("f-string with {doc[:N]}")


def _whole_document(source: Source, turn: ast.AST) -> str:
    names = {"doc_idx + 1": "${n}", "doc": "${text}"}
    return source.template(source.string_with(turn, "doc"), names)


def _attempt(source: Source, turn: ast.AST) -> str:
    names = {
        "attempt_idx + 1": "${n}",
        "attempt['model']": "${model}",
        "attempt['answer']": "${text}",
    }
    return source.template(source.string_with(turn, "attempt['answer']"), names)


def _before(source: Source, within: ast.AST, name: str) -> ast.expr:
    """The text that is written before a variable: 'text' + name."""
    for node in in_order(within, ast.BinOp):
        is_text = isinstance(node.left, ast.Constant)
        if is_text and ast.unparse(node.right) == name:
            return node.left
    raise source.error(f"text before {name}")


def _code_heading(source: Source, turn: ast.AST) -> str:
    """The text between the documents and the code: doc_str + 'text' + code."""
    for node in in_order(turn, ast.BinOp):
        if ast.unparse(node.left) == "doc_str" and isinstance(node.right, ast.Constant):
            return source.template(node.right, {})
    raise source.error("text after doc_str")


# ---- experts -------------------------------------------------------------------------------------


def _branch(source: Source, within: ast.AST, test: str) -> ast.If:
    for node in in_order(within, ast.If):
        if ast.unparse(node.test) == test:
            return node
    raise source.error(f"branch `if {test}`")


def _body(node: ast.If) -> ast.Module:
    """What a branch does, without the other branches."""
    return ast.Module(body=node.body, type_ignores=[])


def _question(source: Source, tool: ast.AST, name: str) -> tuple[tuple[str, str], ...]:
    body = _body(_branch(source, tool, f"arguments['tool'] == '{name}'"))
    asked = source.string_with(body, "arguments['problem']")
    text = source.template(asked, {"arguments['problem']": "${problem}"})
    between = source.text_of(_after_context(source, body), "after the context")
    return (("user", "${context}" + escaped(between) + text),)


def _answer(source: Source, tool: ast.AST) -> tuple[tuple[str, str], ...]:
    body = _body(_branch(source, tool, "arguments['tool'] == 'answer'"))
    between = source.text_of(_after_context(source, body), "before the problem")
    strongest = _body(_branch(source, body, STRONGEST))
    added = next((n.value for n in in_order(strongest, ast.AugAssign)), None)
    if added is None:
        raise source.error("instruction for the strongest expert")
    text = "${context}" + escaped(between) + "${problem}"
    return (("user", text + source.template(added, {})),)


def _after_context(source: Source, body: ast.AST) -> ast.expr:
    for node in in_order(body, ast.BinOp):
        is_text = isinstance(node.right, ast.Constant)
        if is_text and ast.unparse(node.left) == "arguments['context_str'].strip()":
            return node.right
    raise source.error("text after the context")
