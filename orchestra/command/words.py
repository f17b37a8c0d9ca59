"""The words of a new run: its question and files, and the options without a flag of their own."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orchestra.command.flags as flags
from orchestra import methods as shipped
from orchestra.kernel.folder import Options
from orchestra.kernel.vocabulary import ConfigError

IS_FOLDER = "is a folder: name its files, or a repository with --workdir"
IN_QUOTES = "if the question names it, put the whole question into quotes"
EXTENSION = re.compile(r"\S+\.[A-Za-z][A-Za-z0-9]{0,4}")
pause = flags.checked(float, lambda n: 0 <= n <= flags.MOST_S, "a number of seconds")
OWN_OPTIONS = {
    "patience_s": pause,
    "context_tokens": flags.count,
}  # of the kernel, without a flag


# ---- the question --------------------------------------------------------------------------------


def read_question(a: argparse.Namespace) -> None:
    """Set `question` and `files` from the words without a flag: after a question in quotes, and
    with --question, they are files. Without quotes they are the question; those at its end that are
    files belong to it. What may be a misspelled command or file is refused. Raises ConfigError.
    """
    words = list(a.words)
    files: list[str] = []
    if a.question is None:
        if not words:
            raise ConfigError(
                'the question is missing: orchestra-min "..." FILE; see --help'
            )
        _check_first_word(words)
        is_quoted = len(words[0].split()) > 1 or all(is_file(w) for w in words[1:])
        if is_quoted:
            a.question = words.pop(0)
        else:
            while len(words) > 1 and is_file(words[-1]):
                files.insert(0, words.pop())
            _check_no_file(words)
            a.question = " ".join(words)
            words = []
    for word in words:
        if not is_file(word):
            what = IS_FOLDER if _is_folder(word) else "there is no such file"
            raise ConfigError(f"{word}: {what}; {IN_QUOTES}")
    a.files = [(kind, path) if kind else path for kind, path in a.file]
    a.files += [_named(word) for word in [*words, *files]]
    if a.question == "-":
        a.question = sys.stdin.buffer.read().decode("utf-8", "replace")
    if not a.question.strip():
        raise ConfigError("the question is empty; give it a text")


def _named(word: str) -> Any:
    """A file as a path, or as (kind, path)."""
    kind, path = flags.file_of(word)
    return (kind, path) if kind else path


def is_file(word: str) -> bool:
    """Whether a word is [KIND:]PATH of a file."""
    try:
        return flags.file_of(word)[1].is_file()
    except OSError:  # a question may be longer than any name
        return False


def check_verb(word: str, commands: Sequence[str]) -> None:
    """Raises ConfigError for a first word that may be a misspelt command."""
    if len(word.split()) != 1 or is_file(word):
        return
    near = difflib.get_close_matches(word.lower(), commands, n=1, cutoff=0.75)
    if near:
        asked = f"to ask it as a question: --question {shlex.quote(word)}"
        raise ConfigError(f"{word} is not a command; did you mean {near[0]}? {asked}")


def _is_folder(word: str) -> bool:
    try:
        return Path(word).is_dir()
    except OSError:
        return False


def _check_first_word(words: Sequence[str]) -> None:
    """Raises ConfigError for a first word that is a file, or is alone."""
    first = words[0]
    if is_file(first):
        quoted = shlex.quote(first)
        raise ConfigError(
            f'{first} is a file; the question comes first: orchestra-min "..." {quoted}'
        )
    if len(first.split()) > 1:
        return
    asked = f"to ask it as a question: --question {shlex.quote(first)}"
    if len(words) == 1 and first.strip() and not first.endswith("?"):
        raise ConfigError(
            f"{first} is neither a command (see --help) nor a file; {asked}"
        )


def _check_no_file(words: Sequence[str]) -> None:
    """Raises ConfigError for a word that is a folder, or looks like a file that is not there."""
    for word in words[1:]:
        if _is_folder(word):
            raise ConfigError(f"{word}: {IS_FOLDER}; {IN_QUOTES}")
        if EXTENSION.fullmatch(word) or flags.file_of(word)[0]:
            raise ConfigError(f"{word}: there is no such file; {IN_QUOTES}")


# ---- the options ---------------------------------------------------------------------------------


def complete(a: argparse.Namespace) -> None:
    """Read --option into `set` and `options`, and check that the method uses them. Raises
    ConfigError.
    """
    a.set |= own_options(a.options, a.option)
    a.options = Options.of(**a.set)
    _check_use(a.options)


def of_runs(words: Sequence[str], program: str = "evaluate run") -> argparse.Namespace:
    """The flags of each run of a sweep. Raises ConfigError for those of one run."""
    a = flags.read(words, program)
    complete(a)
    of_one = ("question", "file", "out", "json", "replay", "resume", "reuse", "workdir")
    for name in of_one:
        if name in a.given:
            raise ConfigError(f"--{name}: is for one run; leave it out")
    if a.words:
        raise ConfigError(f"{a.words[0]}: questions come from --data; leave it out")
    return a


def _check_use(options: Options) -> None:
    """Raises ConfigError for an option that the method does not use."""
    if ":" in options.method:
        return
    method = shipped.method_class(options)
    name = options.method or shipped.METHOD
    if options.rounds and method.rounds == 1:
        raise ConfigError(f"--rounds: --method {name} has one round")
    if options.more.get("prompts") == "small" and name not in shipped.SMALL_METHODS:
        owners = " or ".join(shipped.SMALL_METHODS)
        raise ConfigError(f"--prompts small: belongs to --method {owners}")
    if options.agent == "mini-swe" and name != "aorchestra":
        raise ConfigError("--agent mini-swe: add --method aorchestra")
    if ":" not in options.agent and options.agent not in ("", "react", "mini-swe"):
        known = "one of react, mini-swe, or FILE.py:NAME"
        raise ConfigError(f"--agent {options.agent}: {known}")


def own_options(options: Options, words: Sequence[str]) -> dict[str, Any]:
    """The options of --option NAME=VALUE, or NAME=@FILE: those of the kernel that have no flag, and
    what the method declares, whose text is checked here and read by the method. Raises ConfigError.
    """
    found: dict[str, Any] = {}
    declared = _declared(options) if words else {}
    for name in declared:
        if name in (*Options().row(), *flags.names()):
            problem = (
                f"its option cannot have the name {name}, which is one of the program's"
            )
            raise ConfigError(f"--method {options.method}: {problem}")
    known: Mapping[str, flags.Read] = {**OWN_OPTIONS, **declared}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name not in known:
            problem = f"{name!r} is no option" if equals else "needs NAME=VALUE"
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"
            raise ConfigError(f"--option {word}: {problem}; {meant}")
        try:
            if text.startswith("@"):
                text = Path(text[1:]).read_text(encoding="utf-8-sig")
            value = known[name](text)
            found[name] = text if name in declared else value
        except OSError as error:
            raise ConfigError(f"--option {name}={text}: {error.strerror}") from None
        except Exception as error:  # of the method's own function
            raise ConfigError(f"--option {name}: {error}") from None
    return found


def _declared(options: Options) -> Mapping[str, flags.Read]:
    """The options of the method's class."""
    if ":" in options.method:
        from orchestra.command.names import load

        method = load(options.method, f"--method {options.method}")
    else:
        method = shipped.method_class(options)
    return getattr(method, "options", {})
