"""Data curation of Orchestra-o1 (arXiv 2606.13707, section 3.3.1): new questions about the files of
old ones, and decision examples of the runs that answer them.

    orchestra-min curate fixtures/seeds.jsonl --out data/curated --budget 5

The folder --out holds:

    tape.jsonl        every call: the same command again pays only for what is missing
    candidates.jsonl  a line a candidate, with the verdict of each gate
    runs/             runs of Orchestra-o1 on the accepted candidates
    examples.jsonl    a line a decision of the runs that gave the right answer, for train_da_grpo.py

Differences from the paper
1. The pool's main model does all: extractor, rewriter, solver without files, judge, expert.
2. Seeds come with a solution and a level; the paper makes them from runs of Orchestra-o1.
3. The paper does not define AnchorCov and Sim: see `anchor_coverage` and `similarity`.
4. A candidate is refused where the model's reply stays unusable after one correction.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

import orchestra_min
from orchestra import memory, money
from orchestra.evaluation import questions
from orchestra.evaluation.scores import matches
from orchestra.runtime import (
    chat,
    command_line,
    console,
    openai_api,
    parsing,
    pool,
    prompts,
    secrets,
    tape,
)
from orchestra.runtime.options import Options
from orchestra.runtime.run_folder import write_whole
from orchestra.runtime.trajectory import usd
from orchestra.tools import code, media, sandbox
from orchestra.training import examples
from orchestra.vocabulary import ConfigError, ModelMistake

Row = dict[str, Any]
Verdict = tuple[bool, str]  # whether a candidate passes, and why
SEED = json.loads(
    Path(__file__).with_name("training").joinpath("seed.json").read_text("utf-8")
)
STRATEGIES = {
    "easy": "AD",
    "medium": "ADBC",
    "hard": "CE",
}  # level -> z of Eq. 27, in turn
MAX_STEP_CHANGE, MAX_SIMILARITY = 2, 0.85  # |s~ - s| of Eq. 27, Sim of Eq. 28
TIMEOUT_S = 600.0  # of one attempt of a call
as_json = partial(json.dumps, ensure_ascii=False)


class Curation:
    """The state of one command. `seeds` is D_0 of Eq. 26: x = (q, M, a, T) with its solution r and
    level l, as training/seed.json describes it. `peers` are the questions that were accepted for
    the current seed.
    """

    def __init__(self, a: Any) -> None:
        self.a, self.seeds, self.peers = (
            a,
            questions.items(a.seeds),
            list[str](),
        )  # D_0, Eq. 26
        if wrong := best_match(
            Draft202012Validator({"items": SEED}).iter_errors(self.seeds)
        ):
            raise ConfigError(f"{a.seeds}: {wrong.message}; see docs/training.md")
        if a.per_seed < 1 or not (a.budget is None or a.budget >= 0):
            raise ConfigError("--per-seed needs 1 or more, --budget 0 or more")
        self.pool = pool.choose(a.backends, a.model, None)
        if not a.replay:
            pool.check(self.pool, a.budget)
            files = media.check(
                file for seed in self.seeds for file in self.files(seed)
            )
            media.check_engines([modality for modality, _ in files], self.pool)
            if sandbox.trouble():
                raise ConfigError(
                    f"numeric answers are checked by a program: {sandbox.missing()}"
                )
            a.out.mkdir(parents=True, exist_ok=True)
        redact = secrets.Secrets(b.api_key_env for b in self.pool.backends)
        self.tape = tape.Tape(
            a.out / "tape.jsonl", "replay" if a.replay else "resume", redact
        )
        self.chat, self.purse = chat.Chat(self.tape, TIMEOUT_S), money.Purse(a.budget)
        self.backend = openai_api.with_model(self.chat, self.pool[self.pool.main])

    def files(self, seed: Row) -> list[tuple[str, Path]]:
        """M: modality and path of each file."""
        return [(m["modality"], self.a.seeds.parent / m["path"]) for m in seed["media"]]

    def ask(self, x: Row, prompt: str, mistake: str = "", **values: Any) -> Row:
        """The model's reply to prompts/curation/<prompt>.md, checked with <prompt>.json. A mistake
        is returned to the model once; a second one raises ModelMistake.
        """
        text = prompts.render(f"curation/{prompt}.md", mistake=mistake, **values)
        schema = json.loads(prompts.render(f"curation/{prompt}.json", **values))
        with self.tape.call(x["id"], prompt, "a2" if mistake else "a1"):
            messages = [{"role": "user", "content": text}]
            reply = self.chat(self.backend, messages, self.purse, (prompt, schema))
        try:
            found = parsing.find_action(reply.text, reply.cut)
            if wrong := best_match(Draft202012Validator(schema).iter_errors(found)):
                raise ModelMistake("bad_fields", problems=wrong.message[-200:])
            return {key: value for key, value in found.items() if key != "action"}
        except ModelMistake as error:
            if mistake:
                raise
            return self.ask(x, prompt, prompts.explained(error), **values)

    def passes(self, gate: Any, seed: Row, x: Row) -> bool:
        """The verdict of a gate, which is added to the row."""
        try:
            passed, reason = gate(self, seed, x)
        except ModelMistake as error:
            passed, reason = False, prompts.explained(error)
        x["verdicts"].append(
            {"gate": gate.__name__, "passed": passed, "reason": reason}
        )
        return bool(passed)

    def decisions(self, seed: Row, x: Row) -> list[examples.Example]:
        """The decisions of tau, a run of Orchestra-o1 on an accepted task, if it is right."""
        question, answer = x["task"]["question"], x["task"]["answer"]
        folder, mode = (
            self.a.out / "runs" / x["id"],
            "none" if self.a.replay else "once",
        )
        left_usd = self.purse.split(1)[0].limit_usd  # B_t, not below 0
        how: Row = {
            "pool": self.pool,
            "options": Options(budget_usd=left_usd, timeout_s=TIMEOUT_S),
        }
        run = orchestra_min.recorded(question, self.files(seed), folder, mode, **how)
        self.purse.charge(run.cost_usd, tokens=run.tokens)
        right = examples.succeeded(folder, answer, question)
        return examples.from_run(folder, answer) if right else []

    def run(self) -> str:
        """Every candidate of every seed. Returns the report."""
        rows, found, path = (
            list[Row](),
            list[examples.Example](),
            self.a.out / "candidates.jsonl",
        )
        for n, seed in enumerate(self.seeds, 1):
            ways, self.peers = STRATEGIES[seed["level"]], []
            for k in range(self.a.per_seed):
                x: Row = {
                    "id": f"s{n}-{k + 1}",
                    "strategy": ways[k % len(ways)],
                    "verdicts": [],
                }
                rows.append(x)
                x["accepted"] = all(
                    self.passes(gate, seed, x) for gate in GATES
                )  # V(x~)
                if not self.a.replay:
                    write_whole(path, "".join(as_json(row) + "\n" for row in rows))
                if x["accepted"]:
                    self.peers.append(x["task"]["question"])
                    found += self.decisions(seed, x)
        if self.a.replay and rows != list(tape.read(path)):
            raise tape.TapeMiss(f"{path}: the replay differs from it")
        if found and not self.a.replay:
            examples.write(self.a.out / "examples.jsonl", found)
        dropped_by = [x["verdicts"][-1]["gate"] for x in rows if not x["accepted"]]
        table = [
            {"gate": g.__name__, "dropped": dropped_by.count(g.__name__)} for g in GATES
        ]
        counts = f"{len(rows)} candidates, {len(found)} decisions, {usd(self.purse.spent_usd)}"
        return f"{console.table('gate dropped', table)}\n{counts}, {self.a.out}"


# ---- anchors and rewrites ------------------------------------------------------------------------


def anchors(c: Curation, seed: Row, x: Row) -> Verdict:
    """A = {(f, mu, e)}, once a seed: a fact that only a file gives, its modality, the step that
    supports it.
    """
    if "anchors" not in seed:
        known = as_json(sorted({m["modality"] for m in seed["media"]}))
        about: Row = {"modalities": known, "steps": len(seed["solution"])}
        seed["anchors"] = c.ask(x, "anchors", seed=as_json(seed), **about)["anchors"]
    return True, as_json(seed["anchors"])


def rewrite(c: Curation, seed: Row, x: Row) -> Verdict:
    """Eq. 27: x~ ~ G(. | x, A, z). The schema keeps the invariants: M and l have no field, T~ is
    part of T, and the number of steps changes by 2 at most.
    """
    steps, way = (
        len(seed["solution"]),
        prompts.say("curation/strategies", x["strategy"]),
    )
    about: Row = {
        "least": max(1, steps - MAX_STEP_CHANGE),
        "most": steps + MAX_STEP_CHANGE,
    }
    about |= {"seed": as_json(seed), "strategy": way, "tools": as_json(seed["tools"])}
    x["task"] = c.ask(x, "rewrite", **about)
    return True, f"{len(x['task']['solution'])} steps"


# ---- the gates of Eq. 28 -------------------------------------------------------------------------


def anchor_coverage(c: Curation, seed: Row, x: Row) -> Verdict:
    """AnchorCov(q~, A) >= 1. A question covers an anchor if it shares a content word with the fact,
    the names of its files, or the words for such a file ("picture", "recording").
    """
    asked, count = memory.terms(x["task"]["question"]), 0
    for a in seed["anchors"]:
        called = prompts.say("curation/called", a["modality"])
        names = [
            path.name for modality, path in c.files(seed) if modality == a["modality"]
        ]
        count += bool(asked & memory.terms(f"{a['fact']} {called} {names}"))
    return count >= 1, f"covers {count} of {len(seed['anchors'])} anchors"


def similarity(c: Curation, seed: Row, x: Row) -> Verdict:
    """Sim(q, q~) <= 0.85: difflib's ratio of the words of both questions, in lower case."""
    old, new = (row["question"].lower().split() for row in (seed, x["task"]))
    ratio = SequenceMatcher(None, old, new, autojunk=False).ratio()
    return ratio <= MAX_SIMILARITY, f"similarity {ratio:.2f}"


def modal_bypass(c: Curation, seed: Row, x: Row) -> Verdict:
    """Bypass(q~, a~) = 0: the model does not find the answer without the files."""
    question, right = x["task"]["question"], x["task"]["answer"]
    guess = c.ask(x, "bypass", question=question)["answer"]
    return not matches(guess, right, question), f"without the files: {guess!r}"


def numeric_check(c: Curation, seed: Row, x: Row) -> Verdict:
    """NumCheck(r~, a~) = 1: the program of a numeric answer, run in the sandbox, prints it."""
    program, right = x["task"]["code"], x["task"]["answer"]
    if not program.strip():
        return not any(char.isdigit() for char in right), "there is no program"
    run = partial(code.run, program, "python", timeout_s=10.0, world=sandbox.World())
    with c.tape.call(x["id"], "code"):
        ran, _ = c.tape.exchange("code", {"code": program}, run, code.Observed)
    same = ran["well"] and matches(ran["observation"], right, x["task"]["question"])
    return same, f"the program printed {ran['observation'][-200:]!r}"


def judge(c: Curation, seed: Row, x: Row) -> Verdict:
    """Judge(x~) = 1: consistent, as difficult as the seed, and no duplicate of an accepted peer."""
    new = prompts.quoted_whole(as_json(x["task"]))
    o = c.ask(x, "judge", seed=as_json(seed), candidate=new, peers=as_json(c.peers))
    return o["consistent"] and o["same_difficulty"] and not o["duplicate"], as_json(o)


GATES = (
    anchors,
    rewrite,
    anchor_coverage,
    similarity,
    modal_bypass,
    numeric_check,
    judge,
)


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    p = command_line.OneLineParser(
        prog="orchestra-min curate", description="Makes tasks and examples."
    )
    p.add_argument("seeds", type=Path, metavar="SEEDS", help="old tasks, JSON or JSONL")
    p.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder of the curation"
    )
    p.add_argument("--backends", type=Path, metavar="FILE", help="a pool of models")
    p.add_argument("--model", metavar="NAME", help="the model that curates")
    p.add_argument("--budget", type=float, metavar="USD", help="spending limit")
    p.add_argument(
        "--per-seed", type=int, default=5, metavar="N", help="candidates a seed (5)"
    )
    p.add_argument(
        "--replay", action="store_true", help="the same command again, offline"
    )
    return command_line.ended(p.prog, lambda: print(Curation(p.parse_args(argv)).run()))
