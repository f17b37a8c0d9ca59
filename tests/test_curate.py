"""curate.py: the gates of Eq. 28, a curation from seeds to decision examples, its kill and its replay."""

import json
from types import SimpleNamespace

import pytest

import curate
from tests.conftest import ROOT
from tests.program import files_of
from tests.scripted import complete, delegate, finish, is_main, last_text
from training import examples

FIXTURES = ROOT / "fixtures"
CLOCK = FIXTURES / "media" / "clock.png"
SEED = {
    "question": "In which country is the clock that the picture shows?", "answer": "Czech Republic",
    "media": [{"modality": "image", "path": str(CLOCK)}], "tools": ["ImageAnalysisAction"],
    "solution": ["clock.png names Prague.", "Prague is in the Czech Republic."], "level": "easy",
}  # fmt: skip
FACT = {"fact": "The caption names Prague.", "modality": "image", "step": 1}
TASK = {
    "question": "Which town does the caption name?", "answer": "Prague", "code": "",
    "solution": ["It names Prague."], "tools": ["ImageAnalysisAction"],
}  # fmt: skip
GOOD = {"consistent": True, "same_difficulty": True, "duplicate": False}
REPLIES = {
    "anchors": {"anchors": [FACT]}, "rewrite": TASK, "answer": {"reasoning": "", "answer": "Rome"},
    "judge": {"reasoning": "", **GOOD},
}  # fmt: skip


def part_of(request):
    text = last_text(request)
    return next((part for part in REPLIES if f'{{"action": "{part}"' in text), "")


def scripted(changed="", **fields):
    """A model for every part; `fields` change the reply of one part."""

    def respond(request):
        if part := part_of(request):
            changes = fields if part == changed else {}
            return json.dumps({"action": part, **REPLIES[part], **changes})
        if not is_main(request):
            return finish("Prague")
        return delegate("Read") if "Nothing yet" in str(request["messages"]) else complete("Prague")

    return respond


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs the command on one seed, into `tmp_path`/out. Returns its exit code and what it printed."""

    def run(url, *flags, seed=SEED):
        (tmp_path / "seed.json").write_text(json.dumps(seed))
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        paths = [str(tmp_path / "seed.json"), "--out", str(tmp_path / "out")]
        code = curate.main([*paths, "--model", "m", "--per-seed", "1", *flags])
        return code, "".join(capsys.readouterr())

    return run


@pytest.mark.parametrize(("gate", "changed", "passed"), [
    ("anchor_coverage", {}, True), ("anchor_coverage", {"question": "What is 2 plus 2?"}, False),
    ("similarity", {}, True), ("similarity", {"question": f"{SEED['question']} Say."}, False),
    ("modal_bypass", {}, True), ("modal_bypass", {"answer": "rome"}, False),
    ("numeric_check", {}, True), ("numeric_check", {"answer": "7"}, False),
    ("numeric_check", {"answer": "7", "code": "print(3 + 4)"}, True),
    ("numeric_check", {"answer": "8", "code": "print(3 + 4)"}, False), ("judge", {}, True),
])  # fmt: skip
def test_a_gate_accepts_and_refuses(gate, changed, passed, tmp_path):
    c = SimpleNamespace(tape=curate.tape.Tape(tmp_path / "tape.jsonl", "record"), peers=[])
    c.ask = lambda x, prompt, **values: REPLIES["answer" if prompt == "bypass" else prompt]
    c.files = lambda seed: [("image", CLOCK)]
    x = {"id": "s1-1", "task": {**TASK, **changed}}
    verdict, reason = getattr(curate, gate)(c, {**SEED, "anchors": [FACT]}, x)
    assert verdict is passed and reason


@pytest.mark.parametrize(("part", "fields", "gate", "calls"), [
    ("anchors", {"anchors": [{**FACT, "step": 3}]}, "anchors", 2),
    ("anchors", {"anchors": [{**FACT, "modality": "audio"}]}, "anchors", 2),
    ("rewrite", {"solution": ["."] * 5}, "rewrite", 2), ("answer", {"answer": None}, "modal_bypass", 2),
    ("rewrite", {"tools": ["VideoAnalysisAction"]}, "rewrite", 2),
    *[("judge", {name: not good}, "judge", 1) for name, good in GOOD.items()],
])  # fmt: skip
def test_a_broken_invariant_is_told_once_and_a_refusal_is_kept(
    part, fields, gate, calls, endpoint, command, tmp_path
):
    server = endpoint(scripted(part, **fields))
    assert command(server.url)[0] == 0
    row = json.loads((tmp_path / "out" / "candidates.jsonl").read_text())
    last = row["verdicts"][-1]
    assert (last["gate"], last["passed"], row["accepted"]) == (gate, False, False) and last[
        "reason"
    ]
    assert [part_of(r) for r in server.requests].count(part) == calls


def test_an_accepted_task_becomes_decision_examples_that_training_reads(
    endpoint, command, tmp_path
):
    code, report = command(endpoint(scripted()).url)
    found = examples.read(tmp_path / "out" / "examples.jsonl")
    assert code == 0 and "1 candidates, 2 decisions" in report
    assert [e.reference["action"] for e in found] == ["delegate_task", "complete"]
    assert {e.meta["answer"] for e in found} == {"Prague"}


def test_a_curation_that_was_cut_off_anywhere_pays_for_the_rest_alone_and_replays(
    endpoint, command, tmp_path
):
    server, out = endpoint(scripted()), tmp_path / "out"
    first, paid, files = command(server.url), len(server.requests), files_of(out)
    (run,) = (out / "runs").iterdir()
    for tape, left in ((out / "tape.jsonl", 2), (out / "tape.jsonl", 4), (run / "tape.jsonl", 2)):
        lines = tape.read_bytes().splitlines(keepends=True)
        tape.write_bytes(b"".join(lines[:left]) + lines[left][:20])  # the last line is torn
        trajectory = (run / "trajectory.jsonl").read_text().splitlines(keepends=True)
        (run / "trajectory.jsonl").write_text("".join(trajectory[:-1]))  # and the run has no end
        assert command(server.url) == first
        paid += sum(b'"answer"' in line for line in lines[left:])
        assert len(server.requests) == paid
    now = files_of(out)
    assert all(now[name][1] == files[name][1] for name in ("candidates.jsonl", "examples.jsonl"))
    assert command(server.url, "--replay") == first
    assert len(server.requests) == paid and files_of(out) == now
    assert command("http://127.0.0.1:9/v1", "--replay")[0] == 3  # another request


@pytest.mark.parametrize(("flags", "seed", "code", "line"), [
    ((), {**SEED, "level": "odd"}, 2, "'odd' is not one of"), ((), {**SEED, "media": []}, 2, "seed.json: "),
    ((), {**SEED, "media": [{"modality": "image", "path": "gone.png"}]}, 2, "gone.png"),
    (("--budget", "1"), SEED, 2, "--budget needs prices"), (("--replay",), SEED, 3, "nothing is recorded"),
])  # fmt: skip
def test_a_mistake_of_the_user_ends_it_in_one_line_before_a_call(
    flags, seed, code, line, endpoint, command
):
    server = endpoint(scripted())
    status, said = command(server.url, *flags, seed=seed)
    assert status == code and line in said and "\n" not in said.strip() and not server.requests


def test_no_call_passes_the_budget_and_a_larger_one_goes_on(endpoint, command, tmp_path):
    server, pool = endpoint(scripted()), tmp_path / "pool.toml"
    pool.write_text(
        f'[[backend]]\nname = "m"\nbase_url = "{server.url}"\nskills = {{ txt = 1, img = 1 }}\nprice_usd_per_mtok = {{ input = 100, output = 1000 }}'
    )
    assert command(server.url, "--backends", str(pool), "--budget", "0.3")[0] == 1
    paid = len(server.requests)
    code, report = command(server.url, "--backends", str(pool), "--budget", "50")
    assert 0 < paid <= 2 and code == 0 and "2 decisions" in report


def test_the_recorded_curation_replays_from_the_repository_as_it_is(capsys):
    flags = (
        "--backends",
        str(FIXTURES / "pools" / "qwen-curate.toml"),
        "--per-seed",
        "3",
        "--replay",
    )
    paths = str(FIXTURES / "seeds.jsonl"), "--out", str(FIXTURES / "curated")
    assert curate.main([*paths, *flags]) == 0
    assert "9 candidates" in capsys.readouterr().out
