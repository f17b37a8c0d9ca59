"""Random scripted runs of all methods, and what a variation of one must take from its tape: found by comparing
the two tapes request by request. tests/test_variations.py makes a few of them, benchmarks/variations.py many.
"""

import itertools
import json
import random
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import orchestra_min
from orchestra.kernel.folder import read_manifest
from orchestra.kernel.tape import Answer, exchanges
from orchestra.kernel.tool import Environment, tool
from orchestra.methods import METHODS
from orchestra.variation.fork import change_of, run_fork
from orchestra.variation.reuse import answers_of
from orchestra_min import Options, orchestrate
from tests.conftest import pool_at
from tests.scripted import (
    CHAIN,
    DEBATE,
    SAMPLES,
    Endpoint,
    act,
    complete,
    delegate,
    finish,
    is_main,
    last_text,
)

WORDS = ["amber", "birch", "cedar", "dune"]


@tool("look", "txt")
def look(env: Environment, name: str) -> str:
    """Look something up.

    name: its name
    """
    return env.local("tool:look", {"name": name}, lambda: f"{name} is known")


TOOLS = {"look": look}


def replay(folder, **how):
    """A replay of a run or a fork, with its tool."""
    change = change_of(Path(folder), given={"tools": TOOLS})
    return orchestra_min.replay(folder, change=change, tools=TOOLS, **how)


class Script:
    """Replies that depend on the request alone; `unique`: each also has a number of its own."""

    def __init__(self, seed, unique=True, delay_s=0.0):
        self.seed, self.unique, self.delay_s = seed, unique, delay_s
        self.numbers = itertools.count()

    def __call__(self, request):
        time.sleep(random.random() * self.delay_s)
        plain = json.dumps(request, sort_keys=True)
        dice = random.Random(f"{self.seed} {plain}")
        word = f"{dice.choice(WORDS)} {next(self.numbers)}" if self.unique else dice.choice(WORDS)
        return self.reply(request, dice, word)

    def reply(self, request, dice, word):
        system = request["messages"][0]
        if system["role"] == "user":
            return f"a thought\nAnswer: {word}"
        if "tools" in request:
            name = dice.choice(["answer", "enhance_reasoning", "enhance_reasoning"])
            arguments = {"model": "answer-1" if name == "answer" else "reasoner-1"}
            call = json.dumps({"name": name, "arguments": arguments})
            return f"{word} <tool_call>{call}</tool_call>"
        if "You design a system of agents" in system["content"]:
            return dice.choice([SAMPLES, CHAIN, DEBATE])
        if is_main(request):
            return self.decision(system["content"], last_text(request), dice, word)
        steps = last_text(request).count("Observation:")
        if dice.random() < 0.5 and steps < 2:
            return act("look", f"note {word}", name=dice.choice(WORDS))
        return finish(word)

    def decision(self, system, text, dice, word):
        if dice.random() < 0.2 and "=>" in text:
            return complete(word)
        linear = "one sub-agent after another" in system
        count = 1 if linear else dice.randint(1, 3)
        tasks = [
            {"task_instruction": f"find {dice.choice(WORDS)}", "tools": ["look"]}
            for _ in range(count)
        ]
        reply = delegate(*tasks)
        return reply.replace('{"tasks": [', "").replace("]}}", "}") if linear else reply


def recorded(seed, folder):
    """A random run of one of the methods, and its server."""
    dice = random.Random(seed)
    method = list(METHODS)[seed % len(METHODS)]
    server = Endpoint(Script(seed))
    options = Options(
        method=method,
        steps=dice.randint(2, 4),
        parallel=dice.randint(1, 8),
        rounds=dice.randint(2, 4),
        budget_usd=dice.choice([None, 1.0]),
    )
    pool = pool_at(server.url, "small", "large")
    run = orchestrate("What is it?", pool=pool, options=options, out=folder, tools=TOOLS)
    return run, server


def unchanged(run, server, out, threads):
    """Make the run again with all of its answers: nothing is paid, and nothing differs."""
    held = read_manifest(Path(run.run))
    before = len(server.requests)
    again = orchestrate(
        held.question,
        pool=held.pool,
        options=held.options,
        out=out,
        sources=[answers_of(run.run)],
        tools=TOOLS,
        listeners=[lambda event: time.sleep(random.random() * 0.002)],
    )
    assert len(server.requests) == before, "a call was paid"
    assert again.paid_usd == 0 and again.calls == run.calls
    assert plain(again.events) == plain(run.events)
    replay(out, parallel=threads)


def named_again(seed, run, server, out):
    """Fork the run from a random round, and name settings that it had: nothing is paid, and nothing differs."""
    dice = random.Random(f"same {seed}")
    held = read_manifest(Path(run.run))
    k = dice.randint(1, last_round(run))
    same = {"method": held.options.method}
    same |= {name: getattr(held.options, name) for name in ("steps", "parallel", "budget_usd")}
    if held.options.method not in ("mas-orchestra", "react"):
        same["rounds"] = held.options.rounds
    known = [name for name, value in same.items() if value is not None]
    named = {name: same[name] for name in dice.sample(known, dice.randint(1, len(known)))}
    before = len(server.requests)
    fork = run_fork(run.run, out, k, pool=held.pool, options=named, tools=TOOLS)
    assert len(server.requests) == before, (named, "a call was paid")
    assert fork.paid_usd == 0 and fork.calls == run.calls
    assert plain(fork.events) == plain(run.events)
    assert all(row.reused for row in rows(out)) and len(rows(out)) == len(rows(run.run))
    replay(out, parallel=dice.randint(1, 8))


def last_round(run):
    return max(row.round for row in rows(run.run))


def varied(seed, run, out, **how):
    """A fork from a random round with something changed, at a server that replies otherwise."""
    dice = random.Random(f"variation {seed}")
    held = read_manifest(Path(run.run))
    k = dice.randint(1, last_round(run))
    change = dice.choice([
        {"main": "large"}, {"steps": held.options.steps + 1}, {"rounds": 5}, {"what_if": {f"r{k}": other(dice)}},
        {"what_if": {f"r{k}": {"action": "complete", "answer": "mine"}}},
    ])  # fmt: skip
    if held.options.method in ("mas-orchestra", "react") and "rounds" in change:
        change = {"steps": held.options.steps + 1}
    with closing(Endpoint(Script(-seed, **how))) as server:
        named = dict(change)
        main = named.pop("main", held.pool.main)
        what_if = named.pop("what_if", {})
        moved = replace(pool_at(server.url, "small", "large"), main=main)
        fork = run_fork(run.run, out, k, what_if, moved, named, tools=TOOLS)
        paid = len(server.requests)
    check(run.run, out, k, paid)
    replay(out, parallel=dice.randint(1, 8))
    return fork, k, change


def other(dice):
    """A decision that the main agent may not have made."""
    u = {"id": "mine", "instruction": f"find {dice.choice(WORDS)}", "tools": ["look"]}
    return {"action": "delegate", "subtasks": [u], "reasoning": "", "answers": dice.random() < 0.3}


def rows(folder):
    return list(exchanges(Path(folder) / "tape.jsonl"))


def step(call):
    """The call without the number of a parallel sample."""
    head, _, tail = call.rpartition("/")
    return head if tail[:1] == "p" and tail[1:].isdigit() else call


def check(parent, fork, k, paid):
    """Brute force: the rounds before k are kept, and of the others exactly those exchanges are reused whose
    request is on the tape of the parent (in another sample of the same step it does not count).
    """
    old = rows(parent)
    made = Counter()
    for row in rows(fork):
        call = row.call
        made[call, row.key] += 1
        if row.round < k:
            assert row.kept and row.reused
            continue
        equal = [o for o in old if o.key == row.key and isinstance(o.outcome, Answer)]
        usable = [o for o in equal if o.call == call or step(o.call) != step(call)]
        expected = made[call, row.key] <= len(usable)
        assert bool(row.reused) == expected, (call, row.reused, len(usable))
        if expected:
            own = [o for o in usable if o.call == call] or usable
            assert row.outcome in [o.outcome for o in own], call
    kept = [row for row in old if row.round < k]
    assert len([row for row in rows(fork) if row.kept]) == len(kept)
    chats = [row for row in rows(fork) if row.request["kind"] == "chat"]
    assert sum(not row.reused for row in chats) == paid


def plain(events):
    """What a run decided, did and found, without what is measured."""
    kept = [e for e in events if e["event"] not in ("run", "end")]
    kept.sort(key=lambda e: tuple(e["at"]))
    return json.loads(json.dumps([{k: v for k, v in e.items() if k != "timing"} for e in kept]))
