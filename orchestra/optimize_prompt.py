"""AOrchestra's learning without weights (arXiv 2602.03786): a better instruction of the main agent.

    orchestra-min optimize_prompt --tasks tasks.json --method aorchestra \
        --budget 2 --out runs/learned
    orchestra-min "..." --method aorchestra --instruction runs/learned/best.md

I_{k+1} = OPTIMIZE(I_k, tau_k, Perf(tau_k), Cost(tau_k)). For k = 0 ... K, in `optimize`:

1. roll out   each task with I_k; every run is recorded in OUT/k<k>/task<n>
2. measure    Perf, the share of right answers, and Cost, USD a task
3. keep       I_k, unless a version on the Pareto front is as right and as cheap
4. rewrite    the optimizer model reads the best version of the front and writes I_{k+1}

TASKS is a file of questions and answers as evaluate.py reads it; the paths of media are relative to
it. The same command again replays what has ended and pays only for what is missing.
The flags of a run (orchestra_min.py --help) are taken too.

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
from dataclasses import dataclass
from pathlib import Path

from orchestra.evaluation.questions import Question, load
from orchestra.evaluation.scores import matches
from orchestra.money import Purse
from orchestra.recorded import recorded
from orchestra.runtime import command_line, console, trajectory
from orchestra.runtime import pool as pools
from orchestra.runtime.chat import Chat
from orchestra.runtime.openai_api import with_model
from orchestra.runtime.options import fillable
from orchestra.runtime.parsing import after_thinking
from orchestra.runtime.prompts import (
    ROOT,
    as_messages,
    capped,
    explained,
    quoted_whole,
    render,
    say,
)
from orchestra.runtime.secrets import Secrets
from orchestra.runtime.tape import Tape
from orchestra.tools import media as media_files
from orchestra.vocabulary import Backend, ConfigError, ModelMistake, Reply

METHODS = {
    "aorchestra": "aorchestra/system.md",
    "orchestra-o1": "orchestra_o1/system.md",
}
NOT_HERE = "image audio video compare workdir"
MESSAGES = "optimize/messages"
RECORDS_CHARS = 24_000  # of all runs in one prompt
SHOWN = "question action mistake instruction context backend tools status answer error cost_usd"
COLUMNS = "k success cost_usd kept why change"


@dataclass
class Version:
    """I_k, what it changes, tau_k as text, Perf(tau_k) from 0 to 1, Cost(tau_k) in USD a task, and
    whether it is kept and why.
    """

    k: int
    instruction: str = ""
    change: str = ""
    records: str = ""
    success: float = float("nan")
    cost_usd: float = float("nan")
    kept: str = "refused"
    why: str = ""

    def covers(self, other: Version) -> bool:
        """At least as right and at most as expensive."""
        return self.success >= other.success and self.cost_usd <= other.cost_usd


# ---- roll out and measure ------------------------------------------------------------------------


def measure(
    v: Version, tasks: Sequence[Question], runs: Sequence[trajectory.Trajectory]
) -> None:
    right = [
        matches(r.answer, q.answer, q.question)
        for r, q in zip(runs, tasks, strict=True)
    ]
    texts = [compact(*pair) for pair in zip(runs, right, strict=True)]
    v.records = "\n".join(
        quoted_whole(capped(t, RECORDS_CHARS // len(texts))) for t in texts
    )
    v.success = sum(right) / len(runs)
    v.cost_usd = sum(run.cost_usd or 0.0 for run in runs) / len(runs)


def compact(run: trajectory.Trajectory, right: bool) -> str:
    """tau as JSON lines: the question, decisions, sub-tasks and results."""
    events = [e for e in trajectory.in_order(run.events) if e["event"] != "step"]
    flat = [{**e, **e.get(e["event"], {})} for e in events]  # a decision, a sub-task
    rows = [{key: e[key] for key in SHOWN.split() if e.get(key)} for e in flat]
    return "\n".join(
        json.dumps(row, ensure_ascii=False) for row in [{"right": right}, *rows]
    )


def front(versions: Sequence[Version]) -> list[Version]:
    """The Pareto front, the version with the most right answers first. Sets `kept` and `why` of all
    versions that were measured; of two equal ones the first is kept.
    """
    measured = [v for v in versions if v.records]
    for v in measured:
        better = [
            w.k for w in measured if w.covers(v) and (w.k < v.k or not v.covers(w))
        ]
        v.kept = "no" if better else "yes"
        v.why = say(MESSAGES, "beaten", k=better[0]) if better else say(MESSAGES, "new")
    return sorted((v for v in measured if v.kept == "yes"), key=lambda v: -v.success)


def chart(versions: Sequence[Version]) -> str:
    """Each k at its cost and success; * is on the front."""
    measured = [v for v in versions if v.records]
    most = max(v.cost_usd for v in measured) or 1.0
    rows = {v.success: [" "] * 64 for v in sorted(measured, key=lambda v: -v.success)}
    for v in measured:
        rows[v.success][round(60 * v.cost_usd / most)] = (
            f"{v.k}{'*' * (v.kept == 'yes')}"
        )
    lines = [
        f"{success:7.2f} |{''.join(row).rstrip()}" for success, row in rows.items()
    ]
    return "\n".join(["success", *lines, f"{'USD':>8} 0{most:>60.6f}"])


# ---- rewrite -------------------------------------------------------------------------------------


def rewrite(
    chat: Chat, backend: Backend, versions: Sequence[Version], purse: Purse
) -> Version:
    """I_{k+1} = OPTIMIZE(I_k, tau_k, Perf(tau_k), Cost(tau_k)), in at most two attempts."""
    base, k = front(versions)[0], len(versions)
    fixed = re.findall(
        r"^(?:[{$].*|.*<data>.*)$", base.instruction, re.M
    )  # lines that must stay
    rows = (
        json.dumps({name: vars(v)[name] for name in COLUMNS.split()}) for v in versions
    )
    shown = {"versions": "\n".join(rows), "fixed": "\n".join(fixed), **vars(base)}
    messages = as_messages(
        render("optimize/system.md"), render("optimize/user.md", **shown)
    )
    for attempt in (1, 2):
        with chat.tape.call(f"r{k}", "optimizer", f"a{attempt}"):
            reply = chat(with_model(chat, backend), messages, purse)
        try:
            return Version(
                k, *read_rewrite(reply, fixed, [v.instruction for v in versions])
            )
        except ModelMistake as mistake:
            why = explained(mistake)
        messages += [
            {"role": "assistant", "content": reply.text},
            {"role": "user", "content": why},
        ]
    return Version(k, why=why)


def read_rewrite(
    reply: Reply, fixed: Sequence[str], earlier: Sequence[str]
) -> tuple[str, str]:
    """I_{k+1} in a reply, and what it changes. Raises ModelMistake."""
    text = after_thinking(reply.text)
    found = re.search(r"(.*?)<instruction>\s*(.*\S)\s*</instruction>", text, re.S)
    if reply.cut or not found:
        raise ModelMistake("cut" if reply.cut else "no_instruction", MESSAGES)
    change, text = found.groups()
    if not fillable(text) or not {*fixed} <= {*text.splitlines()}:
        raise ModelMistake("must_stay", MESSAGES, lines="\n".join(fixed))
    if text in earlier:
        raise ModelMistake("unchanged", MESSAGES)
    return text, " ".join(change.split())[:300]


def optimize(a: argparse.Namespace, versions: list[Version]) -> None:
    """Fills in I_0 ... I_K. OUT/best.md is the best so far. Raises as `orchestrate` does."""
    tasks = load(a.tasks)
    media = [
        modality for modality, _ in media_files.check(f for q in tasks for f in q.media)
    ]
    pool = pools.choose(a.backends, a.model, a.perception, media)
    optimizer = pool.with_(main=a.optimizer or pool.main)
    a.out.mkdir(parents=True, exist_ok=True)
    redact = Secrets(b.api_key_env for b in pool.backends)
    with closing(Tape(a.out / "tape.jsonl", "resume", redact)) as tape:
        chat = Chat(tape, a.options.timeout_s, a.options.patience_s)
        share_usd = a.options.budget_usd / (
            len(tasks) * (a.iterations + 1) + a.iterations
        )
        file = ROOT / METHODS[a.options.method]
        v = Version(0, a.options.instruction or file.read_text("utf-8").strip())
        for k in range(a.iterations + 1):
            v = (
                rewrite(chat, pool[optimizer.main], versions, Purse(share_usd))
                if k
                else v
            )
            if v.instruction:
                o = a.options.with_(budget_usd=share_usd, instruction=v.instruction)
                tau = [
                    recorded(
                        q.question,
                        q.media,
                        a.out / f"k{k}/task{n}",
                        options=o,
                        pool=pool,
                    )
                    for n, q in enumerate(tasks, 1)
                ]
                measure(v, tasks, tau)
            versions.append(v)
            (a.out / "best.md").write_text(
                front(versions)[0].instruction + "\n", encoding="utf-8"
            )
            console.tell(
                f"version {k}: success {v.success:.2f}, {v.cost_usd:.6f} USD a task, {v.kept}"
            )


# ---- the command line ----------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Returns the exit code, as of orchestra_min.py."""
    p = command_line.OneLineParser(
        prog="orchestra-min optimize_prompt", description=__doc__, allow_abbrev=False
    )
    p.formatter_class = argparse.RawDescriptionHelpFormatter
    p.add_argument(
        "--tasks", type=Path, required=True, metavar="FILE", help="TASKS, as above"
    )
    p.add_argument(
        "--iterations", type=int, default=3, metavar="K", help="rewrites (3)"
    )
    p.add_argument(
        "--optimizer", metavar="BACKEND", help="writes instructions (default: main)"
    )
    versions = list[Version]()

    def work() -> None:
        own, rest = p.parse_known_args(argv)
        a = command_line.parse([*rest, "--question", "?"])
        if a.methods[0] not in METHODS:
            raise ConfigError(f"needs --method {' or '.join(METHODS)}")
        if not (a.out and a.options.budget_usd and own.iterations > 0):
            raise ConfigError("needs --out, --budget and at least one of --iterations")
        if wrong := [name for name in NOT_HERE.split() if getattr(a, name)]:
            raise ConfigError(
                f"--{wrong[0]}: leave it out; the media are named in --tasks"
            )
        optimize(argparse.Namespace(**{**vars(a), **vars(own)}), versions)

    code = command_line.ended(p.prog, work)
    if front(versions):
        print(
            console.table(COLUMNS, map(vars, versions)),
            chart(versions),
            sep="\n\n",
            flush=True,
        )
    return code
