"""Clones of released repositories, with their layout and with sentences of our own (tests/released).
Their code runs here as an expectation that is independent of the program.
"""

import importlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace

from tests.conftest import ROOT

PRICES = "class ModelPricing:\n    get_price = staticmethod(lambda name, kind: PRICES[kind])\nPRICES = {}\n"


def clone(name: str, folder: Path) -> Path:
    """The files of tests/released/NAME.txt, and stubs of what they import."""
    text = (ROOT / "tests" / "released" / f"{name}.txt").read_text()
    files = {
        "base/engine/async_llm.py": PRICES,
        "base/agent/base_action.py": "class BaseAction: ...\n",
    }
    for part in re.split(r"^=== ", text, flags=re.M)[1:]:
        path, _, body = part.partition("\n")
        files[path] = body
    for path, body in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(body)
    return folder


class Code:
    """The modules of a clone, imported."""

    def __init__(self, folder: Path, monkeypatch) -> None:
        monkeypatch.syspath_prepend(str(folder))
        tops = {path.name for path in folder.iterdir()}
        for name in [n for n in sys.modules if n.partition(".")[0] in tops]:
            monkeypatch.delitem(sys.modules, name)

    def __getitem__(self, name: str):
        return importlib.import_module(name)

    def json_prompt(self, package: str, prompt: str, builder: str, prices, entries, **given) -> str:
        """The prompt of the main agent of Orchestra-o1 or AOrchestra after these entries."""
        self["base.engine.async_llm"].PRICES.update(prices)
        agent = self[f"{package}.main_agent"].MainAgent()
        vars(agent).update(task_entries=entries, mask_model_names=False, benchmark_type="gaia")
        build = getattr(self[f"{package}.prompts.{prompt}"], builder).build_prompt
        return build(prior_context="", subtask_history=agent._format_subtask_history(), **given)


def tools_of(shipped, about):
    """The program's tools as the released code has them. `about`: those of the clone, by name. They
    come first, in their order.
    """
    rows = []
    names = [*about, *(name for name in shipped if name not in about)]
    for tool in (shipped[name] for name in names):
        own = about.get(tool.name)
        description = own.description if own else tool.manual
        parameters = own.parameters if own else tool.inputs
        rows.append(SimpleNamespace(name=tool.name, description=description, parameters=parameters))
    return rows
