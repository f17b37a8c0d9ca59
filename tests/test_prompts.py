"""Every rule that a model can break has its sentence in prompts/, with every variable filled in."""

import ast
import re
from collections.abc import Iterator

import pytest

from orchestra.kernel.prompts import explained
from orchestra.kernel.vocabulary import ModelMistake
from tests import golden
from tests.conftest import ROOT
from tests.program import CLOCK, SPEECH
from tests.scripted import act, complete, delegate, finish

FOLDERS = (
    "",
    "orchestra/kernel",
    "orchestra/coding",
    "orchestra/methods",
    "orchestra/methods/released",
    "orchestra/curation",
    "tools",
    "orchestra/training",
    "orchestra/evaluation",
)
FILE_OF = {"ModelMistake": "mistakes", "fail": "mas_orchestra/mistakes"}


def raised(tree: ast.Module) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(rule, prompt file, variables) of each ModelMistake(...) and fail(...) of a module."""
    assigned = [n for n in ast.walk(tree) if isinstance(n, ast.Assign | ast.AnnAssign)]
    values = {
        getattr(target, "id", ""): node.value
        for node in assigned
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    for call in ast.walk(tree):
        match call:
            case ast.Call(func=ast.Name(id="ModelMistake" | "fail" as name), args=args):
                rule, *file = (values.get(getattr(a, "id", None), a) for a in args)
                keys = {k.arg: () for k in call.keywords}
                if keys.pop(None, None) == ():  # **values
                    (mapping,) = (values.get(k.value.id) for k in call.keywords if not k.arg)
                    keys |= {key.value: () for key in getattr(mapping, "keys", ())}
                where = ast.literal_eval(file[0]) if file else FILE_OF[name]
                for node in ast.walk(rule):  # of a conditional expression, both
                    if isinstance(node, ast.Constant):
                        yield node.value, where, tuple(keys)


SOURCES = [path.read_text() for d in FOLDERS for path in (ROOT / d).glob("*.py")]
TREES = [ast.parse(source) for source in SOURCES if re.search(r"\b(ModelMistake|fail)\(", source)]
RAISED = sorted({row for tree in TREES for row in raised(tree)})


@pytest.mark.parametrize(("rule", "file", "variables"), RAISED)
def test_a_broken_rule_is_told_in_a_sentence(rule, file, variables):
    text = explained(ModelMistake(rule, file, **dict.fromkeys(variables, "VALUE")))
    assert len(text.split()) > 3


@pytest.mark.parametrize("file", ["mistakes", "mas_orchestra/mistakes"])
def test_every_sentence_about_a_mistake_is_used(file):
    sentences = re.findall(r"^## (\w+)", (ROOT / f"prompts/{file}.md").read_text(), re.M)
    assert set(sentences) <= {rule for rule, where, _ in RAISED if where == file}


# ---- every word that the models of a method are sent, role by role -------------------------------

LOOK = {"task_instruction": "Read the time in clock.png", "context": "It hangs in Prague.", "model": "auto",
        "tools": ["ImageAnalysisAction", "ExecuteCodeAction"]}  # fmt: skip
ADD = {**LOOK, "task_instruction": "Convert it to UTC", "tools": [], "id": "utc", "needs": ["t1"]}
LISTEN = {"task_instruction": "Listen to equinox.wav", "tools": ["ParseAudioAction"]}
SEE = act("ImageAnalysisAction", query="time?", image_path="clock.png")
HEAR = act("ParseAudioAction", query="day?", audio_path="equinox.wav")
TIME = finish("It is 7:49.", summary="The clock shows 7:49.")
RUNS = {  # the options, the decisions, all other replies
    "orchestra-o1": ({}, [delegate(LOOK, ADD), "?", delegate(), complete("05:49")], [act("ExecuteCodeAction", code="7 + 1"), TIME, TIME]),
    "orchestra-o1-small": (
        {"prompts": "small", "media": [CLOCK, SPEECH], "rounds": 5},
        [delegate({**LOOK, "tools": ["ImageAnalysisAction"]}), delegate(LISTEN), delegate({**LISTEN, "tools": []}), delegate({**LISTEN, "id": "t1"}, ADD), delegate(),
         delegate({**ADD, "needs": []}), "?", complete("05:49")],
        [SEE, "7:49", TIME, finish("no idea", "partial"), HEAR, "the day", finish("the day"), finish("05:49"), finish("05:49")],
    ),
    "aorchestra": ({"rounds": 1}, ["?", delegate(LOOK), "?", complete("05:49")], [act("ExecuteCodeAction", code="7 + 1"), TIME]),
    "react": ({}, [], [act("ExecuteCodeAction", code="7 + 1"), TIME, SEE, "7:49", TIME]),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_the_requests_of_a_run_are_those_of_its_golden_file(name, run):
    options, decisions, replies = RUNS[name]
    replies = iter(replies)
    how = {"method": name.removesuffix("-small"), "media": [CLOCK], "budget_usd": 0.25, **options}
    work = lambda text: next(replies)  # noqa: E731
    run(*decisions, work=work, question="What is the time in UTC?", parallel=1, unsafe_code=True, **how)  # fmt: skip
    golden.check(name, run.requests)
