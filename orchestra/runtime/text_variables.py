"""What the texts of --texts may name: the calls of each method, their variables, and the lists and
pieces of which variables are made. docs/released-models.md explains them.

`check` reports what a method does not have, before the first call of a run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from string import Template
from typing import Any, NamedTuple

from pydantic import ValidationError, with_config
from typing_extensions import TypedDict

from orchestra.contracts import adapter
from orchestra.runtime import outside
from orchestra.runtime.spelling import did_you_mean
from orchestra.runtime.texts import TOML, Texts
from orchestra.vocabulary import ConfigError

# ---- what there is -------------------------------------------------------------------------------


class Vocabulary(NamedTuple):
    """Names, separated by spaces. `calls`: the variables of each call. `lists`: the variables of a
    row. `pieces`: the variables of the other pieces. `keys`: those of the schema of a call's reply.
    `needed`: the call that must be there.
    """

    calls: Mapping[str, str]
    lists: Mapping[str, str] = {}
    pieces: Mapping[str, str] = {}
    keys: Mapping[str, str] = {}
    needed: str = "main"


# A step of a sub-agent in its ReAct loop
AGENT = {
    "agent": "instruction question context files tools done_steps observation memory step max_steps"
    " left warning next"
}
AGENT_LISTS = {
    "tools": "name description parameters manual",
    "done_steps": "number action params observation memory",
}
AGENT_KEYS = {"agent": "memory action params"}
WARNINGS = {f"warning_{left}": "left" for left in range(1, 11)}

# The summary of a sub-agent's trace, by one more call after its end
SUMMARY = {"summary": "instruction question count done_steps status answer finish_part"}
FINISH = {"finish_part": "status answer"}  # of a sub-agent that finished by itself

DECISIONS = Vocabulary(  # Orchestra-o1 and AOrchestra
    calls={
        "main": "question files file_list models model_names tools history context waiting budget"
        " round rounds left",
        **AGENT,
        **SUMMARY,
    },
    lists={
        "files": "number name modality MODALITY",
        "file_list": "number name modality MODALITY",
        "models": "name skills input_per_mtok output_per_mtok input_per_1k output_per_1k",
        "model_names": "name",
        "history": "round count entries",
        "entries": "number round id status mark model tool_names steps max_steps instruction answer"
        " summary error trace answer_part summary_part error_part unanswered_part",
        "trace": "line",
        **AGENT_LISTS,
    },
    pieces={
        "mark_done": "",
        "mark_other": "",
        "answer_part": "answer",
        "no_answer_part": "",
        "summary_part": "summary",
        "no_summary_part": "",
        "error_part": "error",
        "no_error_part": "",
        "unanswered_part": "",
        "no_steps": "",
        "unsummarised": "steps",
        "history": "rows done total",
        "mistake": "mistake",
        "last_chance": "",
        **FINISH,
        **WARNINGS,
    },
    keys={"main": "reasoning action params", **AGENT_KEYS},
)
CONTEXT_LISTS = {
    "search": "n text",
    "enhance_reasoning": "n text",
    "answer": "n text model",
}
EXPERTS = ("answer", "enhance_reasoning", "search")
TOOLORCHESTRA = Vocabulary(
    calls={
        "main": "problem preference context",
        **dict.fromkeys(EXPERTS, "problem query context"),
    },
    lists={
        **CONTEXT_LISTS,
        **{f"expert_{name}": fields for name, fields in CONTEXT_LISTS.items()},
    },
    pieces={
        "context_join": "",
        "failed": "id error",
        "reasoned": "reasoning code output",
        "mistake": "mistake",
    },
)
PROMPTED = Vocabulary(
    calls={"main": "problem workers context turn turns left"},
    lists={
        "workers": "id name description",
        "results": "turn name input output error",
    },
    pieces={"mistake": "mistake", "last_chance": ""},
    keys={"main": "action worker_id input answer"},
)
MAS_ORCHESTRA = Vocabulary(
    calls={"main": "question files models"},
    lists={"files": "number name modality MODALITY", "models": "name"},
    pieces={"mistake": "mistake"},
)
REACT = Vocabulary(
    calls={**AGENT, **SUMMARY},
    lists=AGENT_LISTS,
    pieces={**FINISH, **WARNINGS},
    keys=AGENT_KEYS,
    needed="agent",
)
SHORT = 10  # names that an error lists
VOCABULARIES = {  # by --method
    "orchestra-o1": DECISIONS,
    "aorchestra": DECISIONS,
    "toolorchestra": TOOLORCHESTRA,
    "orchestra.methods.toolorchestra_prompted:Prompted": PROMPTED,
    "mas-orchestra": MAS_ORCHESTRA,
    "react": REACT,
}


# ---- checks --------------------------------------------------------------------------------------


class _Named(TypedDict):
    """What the program reads of a function. It may have more keys, which are sent as they are."""

    name: str


@with_config({"extra": "allow"})
class _Tool(TypedDict):
    type: str
    function: _Named


def check(files: Mapping[str, str], method: str, dom: str) -> None:
    """Raises ConfigError for texts that the method cannot use, or that are for another one. A
    method of the user's may name what it likes, but for what its ReAct sub-agents read. `dom`: that
    of --dom.
    """
    texts = Texts(files)
    if method in VOCABULARIES:
        _check_options(texts, method, dom)
    for where, _, template in _templates(texts):
        if not template.is_valid():
            raise ConfigError(f"{where}: has a $ before no variable; write $$ for a $")
    _check_tools(texts)
    if method in VOCABULARIES:
        known = VOCABULARIES[method]
        _check_names(texts, known)
        _check_templates(texts, known)
    elif any(texts.has(call) for call in REACT.calls):
        _check_templates(texts, REACT)


def _check_options(texts: Texts, method: str, dom: str) -> None:
    """Raises ConfigError for texts that are for another --method or --dom."""
    meant = texts.layout
    for flag, wanted, given in (
        ("method", meant.method, method),
        ("dom", meant.dom, dom),
    ):
        if wanted not in ("", given):
            advice = f"give --{flag} {wanted}, or texts for {given}"
            raise ConfigError(f"{TOML}: is for {flag} {wanted}; {advice}")


def _check_names(texts: Texts, known: Vocabulary) -> None:
    """Raises ConfigError for a call, piece or key that the method does not have."""
    if not texts.has(known.needed):
        calls = ", ".join(known.calls)
        problem = f"needs [calls.{known.needed}]; the method has the calls {calls}"
        raise ConfigError(f"{TOML}: {problem}")
    _check_name(f"{TOML}: calls", texts.layout.calls, known.calls)
    _check_name(f"{TOML}: pieces", texts.layout.pieces, _pieces_of(texts, known))
    for name, layout in texts.layout.calls.items():
        keys = known.keys.get(name, "").split()
        _check_name(f"{TOML}: calls.{name}.keys", layout.keys, keys)


def _check_templates(texts: Texts, known: Vocabulary) -> None:
    """Raises ConfigError for a variable that one of the known calls and pieces does not have."""
    pieces = set(_pieces_of(texts, known))
    for where, call, template in _templates(texts):
        if call in known.calls:
            fields = known.calls[call]
        elif not call and where.removeprefix("pieces.") in pieces:
            fields = _fields_of(where, known)
        else:
            continue
        _check_variables(where, template, fields)
        _check_rows(where, template, texts, known)


def _templates(texts: Texts) -> Iterator[tuple[str, str, Template]]:
    """(where, call, template) of each message, and (its name, "", template) of each piece."""
    for name, call in texts.layout.calls.items():
        for m in call.messages:
            yield m.file, name, Template(texts.files[m.file])
    for name, text in texts.layout.pieces.items():
        yield f"pieces.{name}", "", Template(text)


def _pieces_of(texts: Texts, known: Vocabulary) -> list[str]:
    """The pieces that the folder may have. A row may have any kind, as files_row_image."""
    names = list(known.pieces)
    for name in known.lists:
        names += [name, f"{name}_row", f"{name}_join", f"{name}_empty"]
    given = texts.layout.pieces
    return names + [n for n in given if n.partition("_row_")[0] in known.lists]


def _check_name(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    known = dict.fromkeys(known)
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known)
            if not hint and len(known) <= SHORT:
                hint = f"; it has {', '.join(known)}"
            raise ConfigError(f"{where}: the method has no {name!r}{hint}")


def _fields_of(where: str, known: Vocabulary) -> str:
    """The variables of a piece."""
    name = where.removeprefix("pieces.")
    if name in known.pieces:
        return known.pieces[name]
    if name in known.lists:
        return "rows"
    base, is_row, _ = name.partition("_row")
    return known.lists[base] if is_row else ""


def _variables(template: Template) -> Iterator[str]:
    """The variables of a valid template, as often as it has them. `get_identifiers` of Template
    takes quadratic time.
    """
    for found in Template.pattern.finditer(template.template):
        name = found["named"] or found["braced"]
        if name:
            yield name


def _check_variables(where: str, template: Template, fields: str) -> None:
    names = fields.split()
    for name in _variables(template):
        if name not in names:
            listed = ", ".join(names) if names else "none"
            problem = f"unknown variable ${{{name}}}; it may have: {listed}"
            raise ConfigError(f"{where}: {problem}")


def _check_rows(
    where: str, template: Template, texts: Texts, known: Vocabulary
) -> None:
    """Raises ConfigError for a list without a piece for its rows."""
    for name in _variables(template):
        row = f"{name}_row"
        if name in known.lists and row not in texts.layout.pieces:
            problem = f"has the list ${{{name}}}, so {TOML} needs the piece {row}"
            raise ConfigError(f"{where}: {problem}")


def _check_tools(texts: Texts) -> None:
    """Raises ConfigError for a file of tools that is not a list of functions."""
    name = texts.layout.tools
    if not name:
        return
    shape: Any = list[_Tool]
    try:
        value = outside.parsed(texts.files[name].encode())
        json.dumps(value, allow_nan=False)  # NaN is not JSON
        adapter(shape).validate_python(value)
    except (ValueError, ValidationError) as error:
        why = " ".join(str(error).split())[:200]
        wanted = 'needs a list of {"type": "function", "function": {"name": ...}}'
        raise ConfigError(f"{name}: {wanted} ({why})") from None
