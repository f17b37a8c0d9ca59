"""Fill a folder for --texts from a clone of a released repository.

    orchestra-min texts toolorchestra path/to/ToolOrchestra texts/orchestrator-8b
    orchestra-min "..." --method toolorchestra --texts texts/orchestrator-8b

Nothing of the clone is executed: its Python is parsed, and its texts become templates. This program
ships none of them. docs/released-models.md says which file each text is taken from.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestra.runtime import console
from orchestra.runtime.command_line import OneLineParser, run_program
from orchestra.runtime.text_variables import check
from orchestra.texts import json_decisions, mas_orchestra, toolorchestra
from orchestra.texts.folder import Folder, write
from orchestra.vocabulary import ConfigError

FILL: dict[str, Callable[[Path, str], Folder]] = {
    "orchestra-o1": json_decisions.orchestra_o1,
    "aorchestra": json_decisions.aorchestra,
    "toolorchestra": toolorchestra.fill,
    "mas-orchestra": mas_orchestra.fill,
}
OTHER_FORM = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


def fill(method: str, clone: Path, target: Path, dom: str = "high") -> list[str]:
    """Write the folder `target`. Returns the names of its files. Raises ConfigError if the clone is
    not laid out as the released repository, or if the target is not empty.
    """
    if not clone.is_dir():
        raise ConfigError(f"{clone} is not a folder; clone the repository first")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} exists and is not an empty folder; give another")
    try:
        folder = FILL[method](clone, dom)
        folder.method = method
        files = folder.files()
        contents = {name: text.encode() for name, text in files.items()}
    except OTHER_FORM as error:
        problem = (
            "a text has another form; see docs/released-models.md for what is known"
        )
        raise ConfigError(f"{clone}: {problem} ({error})") from None
    check(files, method, dom)
    write(contents, target)
    return sorted(files)


def arguments() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="orchestra-min texts", description=__doc__, allow_abbrev=False
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("method", choices=list(FILL), help="the method of the model")
    parser.add_argument("clone", type=Path, help="a clone of its repository")
    parser.add_argument("folder", type=Path, help="the folder to fill")
    parser.add_argument(
        "--dom",
        choices=("low", "high"),
        help="mas-orchestra: the texts for one agent, or for a graph (default: high)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""

    def work() -> None:
        args = arguments().parse_args(argv)
        if args.dom and args.method != "mas-orchestra":
            raise ConfigError("--dom: belongs to mas-orchestra; leave it out")
        names = fill(args.method, args.clone, args.folder, args.dom or "high")
        console.tell(f"{args.folder}: {', '.join(names)}")

    return run_program("texts", work)
