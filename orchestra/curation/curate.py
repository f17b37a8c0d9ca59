"""Data curation of Orchestra-o1 (arXiv 2606.13707, section 3.3.1): new questions about the files of
old ones, and decision examples of the runs that answer them.

    orchestra-min curate fixtures/seeds.jsonl --out data/curated --budget 5

The folder --out holds:

    tape.jsonl        every call: the same command again pays only for what is missing
    candidates.jsonl  a line a candidate, with the verdict of each gate
    runs/             runs of Orchestra-o1 on seeds without a solution and on accepted candidates
    examples.jsonl    a line a decision of the runs that gave the right answer, for train_da_grpo.py

Differences from the paper
1. The pool's main model does all: extractor, rewriter, solver without files, judge, expert.
2. A seed may come with its solution and level. Otherwise they are made from a run of Orchestra-o1,
   as in the paper, which does not say how: see seeds.py.
3. The paper does not define AnchorCov and Sim: see gates.py.
4. A candidate is refused where the model's reply stays unusable after one correction.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from orchestra import methods as shipped
from orchestra.command import outside, pool_file, terminal
from orchestra.command.flags import OneLineParser
from orchestra.command.programs import run_program
from orchestra.command.redact import Redact
from orchestra.command.runs import table
from orchestra.command.terminal import usd
from orchestra.curation import seeds
from orchestra.curation.gates import GATES, Candidate, Gate, as_json
from orchestra.curation.seeds import Seed
from orchestra.evaluation.running import checked_pool
from orchestra.kernel import prompts
from orchestra.kernel.chat import Chat
from orchestra.kernel.folder import Options, write_whole
from orchestra.kernel.money import Purse
from orchestra.kernel.tape import Mode, Tape, TapeMiss, rows_of
from orchestra.kernel.vocabulary import ConfigError, ModelMistake
from orchestra.methods.react_careful import careful
from orchestra.methods.replies import find_action
from orchestra.training import examples
from orchestra.training.examples import Example, from_run, succeeded
from orchestra.variation.recorded import recorded
from orchestra_min import Outcome, replay

STRATEGIES = {
    "easy": "AD",
    "medium": "ADBC",
    "hard": "CE",
}  # level: z of Eq. 27, in turn
TIMEOUT_S = 600.0  # of one attempt of a call
PROBLEM_CHARS = 200  # of a mistake, for the model
# A "done" of what no tool has shown would become an example: sub-agents heed the rule against it.
AGENTS = {"react": careful}


class Curation:
    """The state of one command. `peers`: the questions that were accepted for the current seed."""

    def __init__(self, a: argparse.Namespace) -> None:
        self.a = a
        self.seeds = seeds.read(a.seeds)  # D_0, Eq. 26
        self.peers: list[str] = []
        if a.per_seed < 1 or not (a.budget is None or a.budget >= 0):
            raise ConfigError("--per-seed needs 1 or more, --budget 0 or more")
        if a.replay:
            self.pool = pool_file.named(a.backends, a.model)
        else:
            self.pool = checked_pool(a.backends, a.model, a.budget)
        if not a.replay:
            self._check()
            a.out.mkdir(parents=True, exist_ok=True)
        for folder in (a.out, a.out / "runs"):
            outside.check(folder)
        redact = Redact(b.api_key_env for b in self.pool.backends)
        mode: Mode = "replay" if a.replay else "resume"
        self.tape = Tape(a.out / "tape.jsonl", mode, redact=redact)
        self.chat = Chat(self.tape, timeout_s=TIMEOUT_S)
        self.purse = Purse(a.budget)
        self.backend = self.pool[self.pool.main]

    def _check(self) -> None:
        """Raises ConfigError for what is missing, before the first call."""
        files = [file for seed in self.seeds for file in self.files(seed)]
        shipped.check_engines(shipped.check_media(files), self.pool)
        if not shipped.can_run_code(Options()):
            raise ConfigError("a program checks numeric answers: install bubblewrap")

    def files(self, seed: Seed) -> list[tuple[str, Path]]:
        """M: modality and path of each file."""
        folder = self.a.seeds.parent
        return [(file["modality"], folder / file["path"]) for file in seed["media"]]

    def ask(self, x: Candidate, prompt: str, **values: Any) -> dict[str, Any]:
        """The model's reply to prompts/curation/<prompt>.md, checked with <prompt>.json. A mistake
        is returned to the model once; a second one raises ModelMistake.
        """
        try:
            return self._asked(x, prompt, "a1", mistake="", **values)
        except ModelMistake as error:
            mistake = prompts.explained(error)
        return self._asked(x, prompt, "a2", mistake=mistake, **values)

    def _asked(
        self, x: Candidate, prompt: str, attempt: str, **values: Any
    ) -> dict[str, Any]:
        """One attempt. Raises ModelMistake."""
        text = prompts.render(f"curation/{prompt}.md", **values)
        schema = json.loads(prompts.render(f"curation/{prompt}.json", **values))
        messages = [{"role": "user", "content": text}]
        with self.tape.call(x["id"], prompt, attempt):
            reply = self.chat(self.backend, messages, self.purse, (prompt, schema))
        found = find_action(reply.text, reply.cut)
        wrong = best_match(Draft202012Validator(schema).iter_errors(found))
        if wrong is not None:
            raise ModelMistake("bad_fields", problems=wrong.message[-PROBLEM_CHARS:])
        return {key: value for key, value in found.items() if key != "action"}

    def passes(self, gate: Gate, seed: Seed, x: Candidate) -> bool:
        """The verdict of a gate, which is added to the candidate."""
        try:
            passed, reason = gate(self, seed, x)
        except ModelMistake as error:
            passed = False
            reason = prompts.explained(error)
        x["verdicts"].append(
            {"gate": gate.__name__, "passed": passed, "reason": reason}
        )
        return passed

    def solve(self, seed: Seed, number: int) -> bool:
        """Whether a seed has a solution r and a level l. One that has none gets them from a run of
        Orchestra-o1, if that is right.
        """
        if "solution" in seed:
            return True
        question = seed["question"]
        folder = self._run(seed, f"s{number}", question)
        if not succeeded(folder, seed["answer"], question):
            return False
        seed["solution"], seed["level"] = seeds.solved(folder)
        return True

    def decisions(self, seed: Seed, x: Candidate) -> list[Example]:
        """The decisions of tau, a run of Orchestra-o1 on an accepted task, if it is right."""
        question = x["task"]["question"]
        answer = x["task"]["answer"]
        folder = self._run(seed, x["id"], question)
        if not succeeded(folder, answer, question):
            return []
        return from_run(folder, answer, agents=AGENTS)

    def _run(self, seed: Seed, name: str, question: str) -> Path:
        """The folder of a run of Orchestra-o1 on a question about the files of a seed."""
        folder: Path = self.a.out / "runs" / name
        run = (
            replay(folder, agents=AGENTS)
            if self.a.replay
            else self._recorded(folder, seed, question)
        )
        self.purse.charge(run.cost_usd, tokens=run.tokens)
        return folder

    def _recorded(self, folder: Path, seed: Seed, question: str) -> Outcome:
        left_usd = self.purse.left_usd  # B_t
        if left_usd is not None:
            left_usd = max(left_usd, 0.0)
        options = Options(budget_usd=left_usd, timeout_s=TIMEOUT_S)
        return recorded(
            question,
            self.files(seed),
            folder,
            pool=self.pool,
            options=options,
            agents=AGENTS,
        )

    def run(self) -> str:
        """Every candidate of every seed. Returns the report."""
        candidates: list[Candidate] = []
        found: list[Example] = []
        unsolved: list[int] = []
        for number, seed in enumerate(self.seeds, 1):
            self.peers = []
            if not self.solve(seed, number):
                unsolved.append(number)
                continue
            strategies = STRATEGIES[seed["level"]]
            for k in range(self.a.per_seed):
                x: Candidate = {
                    "id": f"s{number}-{k + 1}",
                    "strategy": strategies[k % len(strategies)],
                    "verdicts": [],
                }
                candidates.append(x)
                x["accepted"] = all(
                    self.passes(gate, seed, x) for gate in GATES
                )  # V(x~)
                self._write(candidates)
                if x["accepted"]:
                    self.peers.append(x["task"]["question"])
                    found += self.decisions(seed, x)
        self._finish(candidates, found)
        return self._report(candidates, len(found), unsolved)

    def _write(self, candidates: Sequence[Candidate]) -> None:
        if not self.a.replay:
            lines = [f"{as_json(x)}\n" for x in candidates]
            write_whole(self.a.out / "candidates.jsonl", "".join(lines))

    def _finish(
        self, candidates: Sequence[Candidate], found: Sequence[Example]
    ) -> None:
        """Write the examples. Raises TapeMiss if a replay has other candidates."""
        if not self.a.replay:
            self._write(candidates)
            if found:
                examples.write(self.a.out / "examples.jsonl", found)
            return
        path = self.a.out / "candidates.jsonl"
        if list(candidates) != list(rows_of(path)):
            raise TapeMiss(f"{path}: the replay differs from it")

    def _report(
        self, candidates: Sequence[Candidate], decisions: int, unsolved: Sequence[int]
    ) -> str:
        """How many candidates each gate dropped, which seeds have no right run, and the cost."""
        dropped = Counter(
            x["verdicts"][-1]["gate"] for x in candidates if not x["accepted"]
        )
        rows = [{"gate": g.__name__, "dropped": dropped[g.__name__]} for g in GATES]
        spent = usd(self.purse.spent_usd)
        counts = f"{len(candidates)} candidates, {decisions} decisions, {spent}"
        lines = [table("gate dropped", rows)]
        if unsolved:
            numbers = ", ".join(map(str, unsolved))
            lines.append(f"left out, no run gave the right answer: seed {numbers}")
        return "\n".join([*lines, f"{counts}, {self.a.out}"])


def parser() -> argparse.ArgumentParser:
    p = OneLineParser(
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
    return p


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    p = parser()

    def work() -> None:
        terminal.put(Curation(p.parse_args(argv)).run())

    return run_program(p.prog, work)
