#!/usr/bin/env python3
"""Does a graph take only the time of its critical path? Runs with calls of 50 ms, against their limit.

    python benchmarks/latency.py [REPEATS=7]

The limit of a row is the longest chain of calls that need each other; `in a row` is what one call
after another would take. Each figure is the median of REPEATS runs after a warm-up, recording on, against
a scripted server in a process of its own. Below: Proposition 1 of arXiv 2606.13707 (Eq. 16-18),
AOrchestra next to Orchestra-o1 on 8 independent sub-tasks of 3 calls each.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import sys
import tempfile
from functools import cache
from pathlib import Path

from common import running
from scripted_server import reply, serve

from tests.scripted import agent, edge, thought

CALL_S = 0.05
K = 8
LAYERS = 3
MAS_MARK, FAN_OUT_MARK, SPEEDUP_MARK = 1.15, 1.2, 5.0


def node_s(layer: int, i: int) -> float:
    """Unequal: 50 to 120 ms."""
    return CALL_S + 0.01 * ((7 * i + 3 * layer) % 8)


# ---- the server: replies by the content of the request -------------------------------------------


@cache
def layers() -> str:
    """3 layers of 8 CoT agents, each fed by two of the layer before, and one that joins them."""
    agents, ends = [], []
    for layer in range(LAYERS):
        for i in range(K):
            before = (
                []
                if layer == 0
                else [f"n{layer - 1}_{i}", f"n{layer - 1}_{(i + 1) % K}"]
            )
            told = f"wait={node_s(layer, i)} " + " ".join(f"${{{id}}}" for id in before)
            agents.append(agent(f"n{layer}_{i}", "CoTAgent", told))
            ends += [end for id in before for end in (id, f"n{layer}_{i}")]
    last = [f"n{LAYERS - 1}_{i}" for i in range(K)]
    agents.append(
        agent(
            "end", "CoTAgent", f"wait={CALL_S} " + " ".join(f"${{{n}}}" for n in last)
        )
    )
    ends += [end for id in last for end in (id, "end")]
    return thought(*agents, edge(*ends))


GRAPHS = {
    "layers": layers,
    "sc": lambda: thought(agent("A", "SCAgent", "go")),
    "debate": lambda: thought(agent("A", "DebateAgent", "go", roles='["P", "Q", "R"]')),
}


def respond(body: bytes) -> tuple[float, str]:
    if b"You design a system of agents" in body:
        question = json.loads(body)["messages"][-1]["content"].split()
        return CALL_S, next(
            graph() for name, graph in GRAPHS.items() if name in question
        )
    if b"You are the main agent" in body or b"You are a sub-agent" in body:
        return CALL_S, reply(body, K)
    wait = re.search(rb"wait=([\d.]+)", body)
    return float(wait[1]) if wait else CALL_S, "Answer: done"


# ---- the measurements ----------------------------------------------------------------------------


def median_s(url: str, method: str, question: str, repeats: int) -> float:
    from overhead import scripted_pool, with_echo

    from orchestra_min import Options, orchestrate

    pool = scripted_pool(url)
    walls = []
    for _ in range(1 + repeats):
        with tempfile.TemporaryDirectory() as folder:
            how = pool, Options(method=method), Path(folder) / "run"
            run = orchestrate(question, (), *how, change=with_echo)
        assert run.answer in ("done", "42") and not run.fallback, run
        walls.append(run.latency_s)
    return statistics.median(walls[1:])


def layers_path_s() -> float:
    """The longest chain through the layers, the decision and the end included."""
    ends = [node_s(0, i) for i in range(K)]
    for layer in range(1, LAYERS):
        ends = [node_s(layer, i) + max(ends[i], ends[(i + 1) % K]) for i in range(K)]
    return 2 * CALL_S + max(ends)


def main(url: str, repeats: int) -> None:
    print(f"load of this machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    nodes_s = sum(node_s(layer, i) for layer in range(LAYERS) for i in range(K))
    rows = [
        (
            "MAS, 3 layers x 8",
            "layers",
            layers_path_s(),
            nodes_s + 2 * CALL_S,
            MAS_MARK,
        ),
        ("SC, 5 samples", "sc", 2 * CALL_S, 6 * CALL_S, FAN_OUT_MARK),
        ("debate, 3 x 5", "debate", 7 * CALL_S, 17 * CALL_S, FAN_OUT_MARK),
    ]
    print(
        f"{'':<20} {'took':>8} {'limit':>8} {'in a row':>9} {'took/limit':>11} {'mark':>5}"
    )
    for name, question, limit_s, in_a_row_s, mark in rows:
        wall_s = median_s(url, "mas-orchestra", question, repeats)
        shown = f"{wall_s:>6.3f} s {limit_s:>6.3f} s {in_a_row_s:>7.3f} s"
        print(f"{name:<20} {shown} {wall_s / limit_s:>11.3f} {mark:>5}", flush=True)
    linear_s = median_s(url, "aorchestra", "How?", repeats)
    parallel_s = median_s(url, "orchestra-o1", "How?", repeats)
    calls = K * (1 + 3) + 1, 1 + 3 + 1
    print(
        f"\nProposition 1, {K} independent sub-tasks of 3 calls, {CALL_S * 1e3:.0f} ms a call:"
    )
    took = ("aorchestra", calls[0], linear_s), ("orchestra-o1", calls[1], parallel_s)
    for name, n, took_s in took:
        shown = f"predicted {n * CALL_S:.3f} s, took {took_s:.3f} s"
        print(f"{name:<14} {n:>2} calls in a row: {shown}")
    predicted, measured = calls[0] / calls[1], linear_s / parallel_s
    print(
        f"speed-up: predicted {predicted:.2f}, measured {measured:.2f} (mark {SPEEDUP_MARK:g})"
    )
    print(f"of the sub-tasks alone, Eq. 18: sum / max = {K} at most")


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        asyncio.run(serve(respond))
    else:
        with running(__file__, "serve") as url:
            main(url, int(sys.argv[1]) if len(sys.argv) > 1 else 7)
