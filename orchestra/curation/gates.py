"""How a candidate of curate.py is made and what it must pass: Eq. 27 and 28 of
Orchestra-o1 (arXiv 2606.13707, section 3.3.1).

Every function here reads the seed and the candidate and returns a verdict. The first two also add
to them: `anchors` to the seed, `rewrite` the task to the candidate.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from orchestra.curation.seeds import Seed
from orchestra.evaluation.scores import matches
from orchestra.kernel import prompts
from orchestra.kernel.selection import terms
from orchestra.kernel.tape import Tape
from orchestra.kernel.vocabulary import SKILL_OF
from orchestra.tools import execution, sandbox

MAX_STEP_CHANGE = 2  # |s~ - s| of Eq. 27
MAX_SIMILARITY = 0.85  # Sim of Eq. 28
CODE_TIMEOUT_S = 10.0
SHOWN_CHARS = 200  # of what a program printed
as_json = partial(json.dumps, ensure_ascii=False)


# x~ and how far it came: id, strategy (z of Eq. 27), verdicts (gate, passed, reason), accepted, and
# task, what the rewrite changes: question, answer, tools, solution, the code of a numeric answer
Candidate = dict[str, Any]
Verdict = tuple[bool, str]  # whether a candidate passes, and why


class Curator(Protocol):
    """What a gate needs. `peers`: the questions that were accepted for the current seed."""

    peers: list[str]
    tape: Tape

    def files(self, seed: Seed) -> list[tuple[str, Path]]: ...

    def ask(self, x: Candidate, prompt: str, **values: Any) -> dict[str, Any]: ...


Gate = Callable[[Curator, Seed, Candidate], Verdict]


# ---- anchors and rewrites ------------------------------------------------------------------------


def anchors(c: Curator, seed: Seed, x: Candidate) -> Verdict:
    """A = {(f, mu, e)}, once a seed: a fact that only a file gives, its modality, the step that
    supports it.
    """
    if "anchors" not in seed:
        modalities = {file["modality"] for file in seed["media"]}
        reply = c.ask(
            x,
            "anchors",
            seed=as_json(seed),
            modalities=as_json(sorted(modalities)),
            steps=len(seed["solution"]),
        )
        seed["anchors"] = reply["anchors"]
    return True, as_json(seed["anchors"])


def rewrite(c: Curator, seed: Seed, x: Candidate) -> Verdict:
    """Eq. 27: x~ ~ G(. | x, A, z). The schema keeps the invariants: M and l have no field, T~ is
    part of T, and the number of steps changes by 2 at most.
    """
    steps = len(seed["solution"])
    x["task"] = c.ask(
        x,
        "rewrite",
        least=max(1, steps - MAX_STEP_CHANGE),
        most=steps + MAX_STEP_CHANGE,
        seed=as_json(seed),
        strategy=prompts.say("curation/strategies", x["strategy"]),
        tools=as_json(seed["tools"]),
    )
    return True, f"{len(x['task']['solution'])} steps"


# ---- the gates of Eq. 28 -------------------------------------------------------------------------


def anchor_coverage(c: Curator, seed: Seed, x: Candidate) -> Verdict:
    """AnchorCov(q~, A) >= 1. The paper does not define it. Here a question covers an anchor if it
    shares a content word with the fact; or if it names a file of that modality, or uses a word for
    one ("picture"), and asks for something in it. A name of a file, a word for a kind of file and a
    word such as "shows" ask for nothing: "What does the picture show?" covers no anchor.
    """
    question = x["task"]["question"]
    for _, path in c.files(seed):
        question = question.replace(path.name, " ")
    words = terms(question) - _common()
    covered = 0
    for anchor in seed["anchors"]:
        is_in_fact = bool(words & terms(anchor["fact"]))
        refers = words != frozenset() and _refers(c, seed, x, anchor["modality"])
        covered += is_in_fact or refers
    return covered >= 1, f"covers {covered} of {len(seed['anchors'])} anchors"


def _refers(c: Curator, seed: Seed, x: Candidate, modality: str) -> bool:
    """Whether a question names a file of a modality, or uses a word for one."""
    called = prompts.say("curation/called", modality)
    names = [path.name for kind, path in c.files(seed) if kind == modality]
    words = terms(x["task"]["question"])
    return bool(words & terms(f"{called} {names}"))


def _common() -> frozenset[str]:
    """The words that a question about any file may have."""
    sections = (*SKILL_OF, "any")
    texts = [prompts.say("curation/called", section) for section in sections]
    return terms(" ".join(texts))


def similarity(c: Curator, seed: Seed, x: Candidate) -> Verdict:
    """Sim(q, q~) <= 0.85: difflib's ratio of the words of both questions, in lower case."""
    old = seed["question"].lower().split()
    new = x["task"]["question"].lower().split()
    ratio = SequenceMatcher(None, old, new, autojunk=False).ratio()
    return ratio <= MAX_SIMILARITY, f"similarity {ratio:.2f}"


def modal_bypass(c: Curator, seed: Seed, x: Candidate) -> Verdict:
    """Bypass(q~, a~) = 0: the model does not find the answer without the files."""
    question = x["task"]["question"]
    guess = c.ask(x, "bypass", question=question)["answer"]
    found = matches(guess, x["task"]["answer"], question)
    return not found, f"without the files: {guess!r}"


def numeric_check(c: Curator, seed: Seed, x: Candidate) -> Verdict:
    """NumCheck(r~, a~) = 1: the program of a numeric answer, run in the sandbox, prints it."""
    task = x["task"]
    code = task["code"]
    if not code.strip():
        numeric = any(char.isdigit() for char in task["answer"])
        return not numeric, "there is no program"
    run = partial(
        execution.run,
        code,
        "python",
        timeout_s=CODE_TIMEOUT_S,
        mounts=sandbox.Mounts(),
    )
    with c.tape.call(x["id"], "code"):
        ran = c.tape.value("code", {"code": code}, run)
    printed = ran["observation"]
    same = ran["well"] and matches(printed, task["answer"], task["question"])
    return same, f"the program printed {printed[-SHOWN_CHARS:]!r}"


def judge(c: Curator, seed: Seed, x: Candidate) -> Verdict:
    """Judge(x~) = 1: consistent, as difficult as the seed, and no duplicate of an accepted peer."""
    opinion = c.ask(
        x,
        "judge",
        seed=as_json(seed),
        candidate=prompts.quoted_whole(as_json(x["task"])),
        peers=as_json(c.peers),
    )
    fits = opinion["consistent"] and opinion["same_difficulty"]
    return fits and not opinion["duplicate"], as_json(opinion)


GATES: tuple[Gate, ...] = (
    anchors,
    rewrite,
    anchor_coverage,
    similarity,
    modal_bypass,
    numeric_check,
    judge,
)
