"""Table 1 and Figures 4 to 6 of Orchestra-o1 (arXiv 2606.13707) as one command.

    orchestra-min evaluate table1 --data OmniGAIA --model gpt-5

--out gets a sweep for each method, in a folder of its name, with the settings of section 4.1: 10
rounds of the main agent and 30 steps of a sub-agent. Each is scored by OmniGAIA's rule, and the
tables are printed with the paper's figures. The same command again does what is missing or failed.
Media, keys and tools that are missing are listed before the first paid call.

Differences from the paper
1. It does not name the model that judges the answers: --judge, by default the main agent's.
2. It does not name the models of the sub-agents: they are those of --backends.
3. It gives no settings for AOrchestra and ReAct: they have the same rounds and steps.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from orchestra import methods as shipped
from orchestra.command import pool_file, terminal, words
from orchestra.evaluation import comparison, omnigaia_tables, running, scoring
from orchestra.evaluation.choosing import selected
from orchestra.evaluation.judge import judge_of
from orchestra.evaluation.questions import Question, load
from orchestra.evaluation.sweep_folder import rows_of, score_rows
from orchestra.kernel.vocabulary import ConfigError, EndpointError

FILE = "test_metadata.json"  # of OmniGAIA
SCORER = "omnigaia"
SETTINGS = {  # section 4.1, by method
    "orchestra-o1": ("--rounds", "10", "--steps", "30"),
    "aorchestra": ("--rounds", "10", "--steps", "30"),
    "react": ("--steps", "30"),
}
FIXED = ("--method", "--rounds", "--steps")  # which the command sets itself
OF_RUN = (  # flags of `run` that are flags here, too
    "data",
    "out",
    "media",
    "level",
    "category",
    "limit",
    "workers",
    "judge",
)
DATA = Path("OmniGAIA")
OUT = Path("sweeps/table1")
HELP = {  # where it is not that of `run`
    "data": f"OmniGAIA's folder, which has {FILE}, or that file (default: {DATA})",
    "out": f"folder of the sweeps, one for each method (default: {OUT})",
}
SOURCE = f"get raw/{FILE} of RUC-NLPIR/OmniGAIA, a data set at Hugging Face"
VERDICTS = 8  # in parallel
SERPER_KEY, JINA_KEY = (
    "SERPER_API_KEY",
    "JINA_API_KEY",
)  # of the tools for search and pages


def add_flags(p: argparse.ArgumentParser) -> None:
    for flag in OF_RUN:
        kind, text = running.FLAGS[flag]
        p.add_argument(f"--{flag}", type=kind, help=HELP.get(flag, text))
    p.set_defaults(data=DATA, out=OUT)
    p.add_argument(
        "--methods",
        default=",".join(SETTINGS),
        help=f"some of {','.join(SETTINGS)} (all)",
    )
    p.add_argument(
        "--budget", type=float, help="limit of each method in USD, verdicts included"
    )
    p.add_argument(
        "--partial",
        action="store_true",
        help="leave out the questions whose media are missing",
    )
    p.add_argument(
        "--dry-run", action="store_true", help="say what is missing, and stop"
    )


def run(a: argparse.Namespace, rest: Sequence[str]) -> int:
    """Make the tables. Returns 1 if a question failed, was not started or has no verdict. Raises
    ConfigError if something is missing.
    """
    a.data = data_file(a.data)
    methods = _methods(a.methods)
    of_run = _checked(a, rest, methods)
    problems = list(missing(a, of_run))
    for text in problems:
        terminal.tell(f"missing: {text}")
    if problems:
        count = "1 thing is" if len(problems) == 1 else f"{len(problems)} things are"
        raise ConfigError(f"table1: {count} missing, see above; nothing was paid")
    for text in _departures(of_run):
        terminal.tell(f"other than in the paper: {text}")
    if a.dry_run:
        terminal.put(f"nothing is missing for {', '.join(methods)}")
        return 0
    codes = [_of_method(a, of_run, method, rest) for method in methods]
    found = comparison.report([a.out / method for method in methods], SCORER)
    omnigaia_tables.print_tables(found)
    return max(codes)


def data_file(data: Path) -> Path:
    """The file of questions: `data`, or test_metadata.json if that is a folder. Raises
    ConfigError.
    """
    file = data / FILE if data.is_dir() else data
    if not data.exists():
        raise ConfigError(f"--data {data}: does not exist; {SOURCE}")
    if not file.is_file():
        raise ConfigError(f"--data {data}: has no {FILE}; {SOURCE}")
    return file


def _methods(names: str) -> list[str]:
    """Those of --methods. Raises ConfigError."""
    methods = list(dict.fromkeys(name.strip() for name in names.split(",")))
    for name in methods:
        if name not in SETTINGS:
            known = ", ".join(SETTINGS)
            raise ConfigError(f"--methods: {name!r} is not one of {known}")
    return methods


def _checked(
    a: argparse.Namespace, rest: Sequence[str], methods: Sequence[str]
) -> argparse.Namespace:
    """The flags of a single run. Raises ConfigError if they do not fit each method."""
    for word in rest:
        flag, _, _ = word.partition("=")
        if flag in FIXED:
            raise ConfigError(f"{flag}: is that of the paper here; leave it out")
    running.check_flags(_flags(a, methods[0]))
    found = [words.of_runs(_of_run(rest, method)) for method in methods]
    return found[0]


# ---- what is missing -----------------------------------------------------------------------------


def missing(a: argparse.Namespace, of_run: argparse.Namespace) -> Iterator[str]:
    """What has to be there before the first paid call and is not, a line each. Raises ConfigError
    for a mistake in the file of questions, and for flags that choose none.
    """
    asked = selected(a, load(a.data, a.media))
    yield from _missing_media(asked, a)
    try:
        pool = running.checked_pool(of_run.backends, of_run.model, a.budget)
        judge_of(a.judge or pool.main, pool, a.budget)
        shipped.check_engines([file for q in asked for file in q.media], pool)
    except (ConfigError, EndpointError) as error:
        yield str(error)
    if not os.environ.get(SERPER_KEY) and find_spec("ddgs") is None:
        yield f"a web search: set {SERPER_KEY}, or pip install 'orchestra-min[tools]'"
    if not shipped.can_run_code(of_run.options):
        yield "a sandbox for code: install bubblewrap, or give --unsafe-code"


def _missing_media(asked: Sequence[Question], a: argparse.Namespace) -> Iterator[str]:
    """How many questions lack a file, and the first one."""
    problems = []
    for q in asked:
        try:
            shipped.check_media(q.media)
        except ConfigError as error:
            problems.append(f"question {q.id}: {error}")
    are_all = len(problems) == len(asked)
    if not problems or (a.partial and not are_all):
        return
    count = f"media of {len(problems)} of {len(asked)} questions"
    advice = "they are a download of their own; name their folder with --media"
    if not are_all:
        advice = f"{advice}, or leave the questions out with --partial"
    yield f"{count} ({problems[0]}): {advice}"


def _departures(of_run: argparse.Namespace) -> Iterator[str]:
    """What is there, but another thing than in the paper."""
    if not os.environ.get(SERPER_KEY):
        yield f"pages are searched with ddgs, not Serper ({SERPER_KEY})"
    if not os.environ.get(JINA_KEY):
        yield f"pages are fetched by this program, not by Jina Reader ({JINA_KEY})"
    pool = pool_file.choose(of_run.backends, of_run.model)
    unpriced = [b.name for b in pool.backends if b.price_usd_per_mtok is None]
    if unpriced:
        yield f"no cost in Figure 5: the pool has no price for {', '.join(unpriced)}"


# ---- one method ----------------------------------------------------------------------------------


def _of_method(
    a: argparse.Namespace, of_run: argparse.Namespace, method: str, rest: Sequence[str]
) -> int:
    """The sweep of a method, scored. Returns its exit code. Raises ConfigError."""
    folder = a.out / method
    terminal.tell(f"{method}: {folder}")
    of_sweep = _flags(a, method)
    of_sweep.budget = _left_usd(a, folder, score_rows(folder, SCORER))
    answered = running.run(of_sweep, _of_run(rest, method))
    scored = scoring.score(_scoring_flags(a, of_run, folder))
    return max(answered, scored)


def _left_usd(
    a: argparse.Namespace, folder: Path, rows: Iterable[Mapping[str, Any]]
) -> float | None:
    """What the answers, or the verdicts, in these rows leave of --budget for the other. Raises
    ConfigError if that is nothing.
    """
    if a.budget is None:
        return None
    costs = {row["run"]: row.get("cost_usd") or 0.0 for row in rows}
    left_usd: float = a.budget - sum(costs.values())
    if left_usd <= 0:
        raise ConfigError(f"--budget {a.budget}: {folder} has spent it; give more")
    return left_usd


def _flags(a: argparse.Namespace, method: str) -> argparse.Namespace:
    """Those of `run` itself."""
    found: dict[str, Any] = dict.fromkeys((*running.FLAGS, *running.SWITCHES))
    found |= {name: getattr(a, name) for name in OF_RUN}
    found |= {"out": a.out / method, "budget": a.budget, "judge": None}
    return argparse.Namespace(**found)


def _of_run(rest: Sequence[str], method: str) -> list[str]:
    """The flags of each single run, with the settings of the paper."""
    return [*rest, "--method", method, *SETTINGS[method]]


def _scoring_flags(
    a: argparse.Namespace, of_run: argparse.Namespace, folder: Path
) -> argparse.Namespace:
    """Those of `score`. Raises ConfigError if the answers have spent the budget."""
    left_usd = _left_usd(a, folder, rows_of(folder))
    pool = pool_file.choose(of_run.backends, of_run.model)
    return argparse.Namespace(
        folder=folder,
        scorer=SCORER,
        judge=a.judge or pool.main,
        backends=of_run.backends,
        budget=left_usd,
        workers=VERDICTS,
        timeout=of_run.options.timeout_s,
        patience=of_run.options.patience_s,
    )
