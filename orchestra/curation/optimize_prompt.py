"""AOrchestra's learning without weights (arXiv 2602.03786): a better instruction of the main agent.

    orchestra-min optimize-prompt --tasks tasks.json --method aorchestra \\
        --budget 2 --out runs/learned
    orchestra-min "..." --method aorchestra --option instruction=@runs/learned/best.md

I_{k+1} = OPTIMIZE(I_k, tau_k, Perf(tau_k), Cost(tau_k)). For k = 0 ... K, in `optimize`:

1. roll out   each task with I_k; every run is recorded in OUT/k<k>/task<n>
2. measure    Perf, the share of right answers, and Cost, USD a task
3. keep       I_k, unless a version on the Pareto front is as right and as cheap
4. rewrite    the optimizer model reads the best version of the front and writes I_{k+1}

TASKS is a file of questions and answers, as `evaluate` reads it; the paths of media are relative to
it. The same command again replays what has ended and pays only for what is missing. It also takes
the flags of a run (see orchestra-min --help).

Differences from the paper / the released code
1. The optimizer writes the whole instruction. The variables, the reply format and the rule about
   data marks must stay; an unusable rewrite is shown back once, then refused.
2. It reads which answers were right, not the right answers: they could end up in the instruction.
3. The best version is the one with the most right answers, and of those the cheapest.
4. Every run and every rewrite gets an equal share of --budget, so that versions can be compared.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestra import methods as shipped
from orchestra.command import flags, outside, terminal, words
from orchestra.command.programs import run_program
from orchestra.command.redact import Redact
from orchestra.command.runs import table
from orchestra.curation.pareto import COLUMNS, Version, front
from orchestra.evaluation.questions import Question, load
from orchestra.evaluation.running import checked_pool
from orchestra.evaluation.scores import matches
from orchestra.kernel.chat import Chat
from orchestra.kernel.folder import Options, in_order, write_whole
from orchestra.kernel.money import Purse
from orchestra.kernel.prompts import (
    ROOT,
    after_thinking,
    as_messages,
    capped,
    explained,
    quoted_whole,
    render,
)
from orchestra.kernel.tape import Tape
from orchestra.kernel.vocabulary import Backend, ConfigError, ModelMistake, Pool, Reply
from orchestra.methods.main_agent import system_prompt
from orchestra.variation.recorded import recorded
from orchestra_min import Outcome

METHODS = {  # each with the file of its first instruction
    "aorchestra": "aorchestra/system.md",
    "orchestra-o1": "orchestra_o1/system.md",
}
PROMPTS = "optimize/messages"
RECORDS_CHARS = 24_000  # of all runs in one prompt
CHANGE_CHARS = 300
REWRITE_ATTEMPTS = 2
SHOWN = (
    "question",
    "action",
    "mistake",
    "instruction",
    "context",
    "backend",
    "tools",
    "status",
    "answer",
    "error",
    "cost_usd",
)
FIXED_LINES = re.compile(r"^(?:[{$].*|.*<data>.*)$", re.MULTILINE)
START = "<instruction>"  # of I_{k+1} in a reply
END = "</instruction>"

# ---- roll out and measure ------------------------------------------------------------------------


def measure(v: Version, tasks: Sequence[Question], runs: Sequence[Outcome]) -> None:
    """Set tau_k, Perf(tau_k) and Cost(tau_k) of a version."""
    pairs = list(zip(runs, tasks, strict=True))
    right = [matches(run.answer, q.accepted, q.question) for run, q in pairs]
    share = RECORDS_CHARS // len(runs)
    texts = [compact(run, ok) for run, ok in zip(runs, right, strict=True)]
    v.records = "\n".join(quoted_whole(capped(text, share)) for text in texts)
    v.success = sum(right) / len(runs)
    v.cost_usd = sum(run.cost_usd or 0.0 for run in runs) / len(runs)


def compact(run: Outcome, right: bool) -> str:
    """tau as JSON lines: the question, decisions, sub-tasks and results."""
    rows: list[dict[str, Any]] = [{"right": right}]
    for event in in_order(run.events):
        kind = event["event"]
        if kind != "step":
            fields = {**event, **event.get(kind, {})}  # a decision, a sub-task
            rows.append({key: fields[key] for key in SHOWN if fields.get(key)})
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)


# ---- rewrite -------------------------------------------------------------------------------------


def rewrite(
    chat: Chat, backend: Backend, versions: Sequence[Version], purse: Purse
) -> Version:
    """I_{k+1} = OPTIMIZE(I_k, tau_k, Perf(tau_k), Cost(tau_k)), in at most two attempts."""
    base = front(versions)[0]
    k = len(versions)
    fixed = FIXED_LINES.findall(base.instruction)
    rows = "\n".join(v.row() for v in versions)
    user = render(
        "optimize/user.md", versions=rows, fixed="\n".join(fixed), **vars(base)
    )
    messages = as_messages(render("optimize/system.md"), user)
    why = ""
    for attempt in range(1, REWRITE_ATTEMPTS + 1):
        with chat.tape.call(f"r{k}", "optimizer", f"a{attempt}"):
            reply = chat(backend, messages, purse)
        try:
            instruction, change = read_rewrite(
                reply, fixed, earlier=[v.instruction for v in versions]
            )
            return Version(k, instruction, change)
        except ModelMistake as mistake:
            why = explained(mistake)
        messages.append({"role": "assistant", "content": reply.text})
        messages.append({"role": "user", "content": why})
    return Version(k, why=why)


def read_rewrite(
    reply: Reply, fixed: Sequence[str], earlier: Sequence[str]
) -> tuple[str, str]:
    """I_{k+1} in a reply, and what it changes. `fixed`: the lines that must stay. Raises
    ModelMistake.
    """
    if reply.cut:
        raise ModelMistake("cut", PROMPTS)
    change, _, rest = after_thinking(reply.text).partition(START)
    inside, _, _ = rest.rpartition(END)
    instruction = inside.strip()
    if not instruction:
        raise ModelMistake("no_instruction", PROMPTS)
    must_stay = ModelMistake("must_stay", PROMPTS, lines="\n".join(fixed))
    try:
        system_prompt(instruction)
    except ValueError:
        raise must_stay from None
    if not set(fixed) <= set(instruction.splitlines()):
        raise must_stay
    if instruction in earlier:
        raise ModelMistake("unchanged", PROMPTS)
    return instruction, " ".join(change.split())[:CHANGE_CHARS]


# ---- learn ---------------------------------------------------------------------------------------


def optimize(a: argparse.Namespace, versions: list[Version]) -> None:
    """Fills in I_0 ... I_K. OUT/best.md is the best so far. Raises as `orchestrate` does."""
    tasks = load(a.tasks)
    shipped.check_media([file for q in tasks for file in q.media])
    pool = checked_pool(a.backends, a.model, a.options.budget_usd)
    shares = len(tasks) * (a.iterations + 1) + a.iterations  # runs and rewrites
    share_usd = a.options.budget_usd / shares
    a.out.mkdir(parents=True, exist_ok=True)
    for folder in (a.out, *(a.out / f"k{k}" for k in range(a.iterations + 1))):
        outside.check(folder)
    redact = Redact(b.api_key_env for b in pool.backends)
    with closing(Tape(a.out / "tape.jsonl", "resume", redact=redact)) as tape:
        chat = Chat(
            tape, timeout_s=a.options.timeout_s, patience_s=a.options.patience_s
        )
        v = Version(0, first_instruction(a.options))
        for k in range(a.iterations + 1):
            if k > 0:
                optimizer = pool[a.optimizer or pool.main]
                v = rewrite(chat, optimizer, versions, Purse(share_usd))
            if v.instruction:
                runs = roll_out(v, tasks, pool, a.options, share_usd, a.out)
                measure(v, tasks, runs)
            versions.append(v)
            best = front(versions)[0].instruction
            write_whole(a.out / "best.md", f"{best}\n")
            figures = f"success {v.success:.2f}, {v.cost_usd:.6f} USD a task, {v.kept}"
            terminal.tell(f"version {k}: {figures}")


def first_instruction(options: Options) -> str:
    """I_0: the option `instruction`, or else the instruction of the method."""
    file = ROOT / METHODS[options.method]
    return options.more.get("instruction") or file.read_text("utf-8").strip()


def roll_out(
    v: Version,
    tasks: Sequence[Question],
    pool: Pool,
    options: Options,
    share_usd: float,
    out: Path,
) -> list[Outcome]:
    """tau_k: a run of each task, recorded in OUT/k<k>/task<n>."""
    more = {**options.more, "instruction": v.instruction}
    options = replace(options, budget_usd=share_usd, more=more)
    runs: list[Outcome] = []
    for n, q in enumerate(tasks, 1):
        folder = out / f"k{v.k}" / f"task{n}"
        runs.append(recorded(q.question, q.media, folder, options=options, pool=pool))
    return runs


# ---- the command line ----------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    p = flags.OneLineParser(
        prog="orchestra-min optimize-prompt", description=__doc__, allow_abbrev=False
    )
    p.formatter_class = argparse.RawDescriptionHelpFormatter
    p.add_argument(
        "--tasks", type=Path, required=True, metavar="FILE", help="TASKS, as above"
    )
    p.add_argument("--out", type=Path, required=True, help="folder of all runs")
    p.add_argument("--budget", type=float, help="spending limit of all in USD")
    p.add_argument(
        "--iterations", type=int, default=3, metavar="K", help="rewrites (3)"
    )
    p.add_argument(
        "--optimizer", metavar="BACKEND", help="writes instructions (default: main)"
    )
    return p


def arguments(p: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """The flags of this program and those of a run. Raises ConfigError."""
    own, rest = p.parse_known_args(argv)
    of_run = words.of_runs(rest)
    if of_run.options.method not in METHODS:
        raise ConfigError(f"needs --method {' or '.join(METHODS)}")
    if not (own.budget and own.iterations > 0):
        raise ConfigError("needs --budget and at least one of --iterations")
    of_run.options = replace(of_run.options, budget_usd=own.budget)
    return argparse.Namespace(**{**vars(of_run), **vars(own)})


def main(argv: Sequence[str]) -> int:
    """Returns the exit code, as of a run."""
    p = parser()
    versions: list[Version] = []

    def work() -> None:
        optimize(arguments(p, argv), versions)

    code = run_program(p.prog, work)
    if front(versions):
        terminal.put(table(" ".join(COLUMNS), map(vars, versions)))
    return code
