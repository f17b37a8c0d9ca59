"""How much a reader of one run must read: the modules of ours that it loads, and their tokens."""

import io
import os
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from tests.conftest import ROOT

LOADING = """
import sys
import orchestra_min
if sys.argv[1:]:
    assert orchestra_min.main(sys.argv[1:]) == 0
files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
print(*sorted(files), sep="\\n", file=sys.stderr)
"""
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
DEMO = "--replay", "fixtures/runs/equinox", "--quiet"


def tokens_of(file: Path) -> int:
    """Its tokens without comments and docstrings."""
    count, is_statement_begin = 0, True
    for token in tokenize.generate_tokens(io.StringIO(file.read_text()).readline):
        if token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            is_statement_begin = True
        if token.type not in NO_CODE:
            is_docstring = is_statement_begin and token.type == tokenize.STRING
            count += not is_docstring
            is_statement_begin = False
    return count


@pytest.mark.parametrize(("words", "modules", "tokens"), [((), 22, 30_000), (DEMO, 30, 40_000)])
def test_what_a_run_loads_of_ours_can_be_read_in_an_afternoon(words, modules, tokens):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", LOADING, *words]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ours = [ROOT / "orchestra", ROOT / "tools", ROOT / "orchestra_min.py"]
    loaded = {Path(line).resolve() for line in done.stderr.splitlines() if line.endswith(".py")}
    files = {file for file in loaded if any(file.is_relative_to(place) for place in ours)}
    total = sum(map(tokens_of, files))
    listed = "\n".join(sorted(f"{tokens_of(f):6} {f.relative_to(ROOT)}" for f in files))
    assert len(files) <= modules and total <= tokens, f"{len(files)}, {total}\n{listed}"
