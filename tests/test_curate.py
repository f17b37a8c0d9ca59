"""curate.py: the gates of Eq. 28, a curation from seeds to decision examples, its kill and its replay."""

import json
from types import SimpleNamespace

import pytest

import curate
from tests.conftest import ROOT
from tests.program import files_of
from tests.scripted import complete, delegate, finish, is_main, last_text
from training import examples

CLOCK = ROOT / "fixtures" / "media" / "clock.png"
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
REPLIES = {
    "List the anchor facts": {"action": "anchors", "anchors": [FACT]},
    "You write a new question": {"action": "rewrite", **TASK},
    "Answer this question": {"action": "answer", "reasoning": "", "answer": "Rome"},
    "You check a new question": {
        "action": "judge", "reasoning": "", "consistent": True, "same_difficulty": True,
        "duplicate": False,
    },
}  # fmt: skip


def scripted(changes=()):
    """A model for every part; `changes`: another reply of a part, by the beginning of its prompt."""
    replies = {**REPLIES, **dict(changes)}

    def respond(request):
        text = last_text(request)
        part = next((part for part in replies if part in text), "")
        if part:
            return json.dumps(replies[part])
        if not is_main(request):
            return finish("Prague")
        seen = "Nothing yet" not in str(request["messages"])
        return complete("Prague") if seen else delegate("Read clock.png")

    return respond


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs the command on one seed, in `tmp_path`/out. Returns its exit code and what it printed."""

    def run(url, *flags, seed=SEED):
        (tmp_path / "seed.json").write_text(json.dumps(seed))
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        paths = [str(tmp_path / "seed.json"), "--out", str(tmp_path / "out")]
        code = curate.main([*paths, "--model", "m", "--per-seed", "1", *flags])
        return code, "".join(capsys.readouterr())

    return run


# ---- the gates -----------------------------------------------------------------------------------

CASES = [
    ("anchor_coverage", {}, True), ("anchor_coverage", {"question": "What is 2 plus 2?"}, False),
    ("similarity", {}, True), ("similarity", {"question": f"{SEED['question']} Say."}, False),
    ("modal_bypass", {}, True), ("modal_bypass", {"answer": "rome"}, False),
    ("numeric_check", {}, True), ("numeric_check", {"answer": "7"}, False),
    ("numeric_check", {"answer": "7", "code": "print(3 + 4)"}, True),
    ("numeric_check", {"answer": "8", "code": "print(3 + 4)"}, False),
    ("judge", {}, True),
]  # fmt: skip


def asked(x, prompt, **values):
    return {
        "bypass": REPLIES["Answer this question"],
        "judge": REPLIES["You check a new question"],
    }[prompt]


@pytest.mark.parametrize(("gate", "changed", "passed"), CASES)
def test_a_gate_accepts_and_refuses(gate, changed, passed, tmp_path):
    tape = curate.tape.Tape(tmp_path / "tape.jsonl", "record")
    files = lambda seed: [("image", CLOCK)]  # noqa: E731
    case = SimpleNamespace(ask=asked, tape=tape, files=files, peers=[])
    x = {"id": "s1-1", "task": {**TASK, **changed}}
    verdict = getattr(curate, gate)(case, {**SEED, "anchors": [FACT]}, x)
    assert verdict[0] is passed and verdict[1]


@pytest.mark.parametrize(("part", "reply", "gate"), [
    ("List the anchor facts", {"action": "anchors", "anchors": [{**FACT, "step": 3}]}, "anchors"),
    ("List the anchor facts", {"action": "anchors", "anchors": [{**FACT, "modality": "audio"}]}, "anchors"),
    ("You write a new question", {"action": "rewrite", **TASK, "solution": ["."] * 5}, "rewrite"),
    ("You write a new question", {"action": "rewrite", **TASK, "tools": ["VideoAnalysisAction"]}, "rewrite"),
    ("You write a new question", "no", "rewrite"), ("Answer this question", {"action": "answer"}, "modal_bypass"),
    *[("You check a new question", {**REPLIES["You check a new question"], name: name == "duplicate"}, "judge")
      for name in ("consistent", "same_difficulty", "duplicate")],
])  # fmt: skip
def test_a_broken_invariant_is_told_once_and_a_refusal_is_kept(
    part, reply, gate, endpoint, command, tmp_path
):
    server = endpoint(scripted({part: reply}))
    assert command(server.url)[0] == 0
    (row,) = map(json.loads, (tmp_path / "out" / "candidates.jsonl").read_text().splitlines())
    last = row["verdicts"][-1]
    assert (last["gate"], last["passed"], row["accepted"]) == (gate, False, False) and last[
        "reason"
    ]
    times = [part in last_text(r) for r in server.requests].count(True)
    assert times == (1 if gate == "judge" else 2)


# ---- the whole -----------------------------------------------------------------------------------


def test_an_accepted_task_becomes_decision_examples_that_training_reads(
    endpoint, command, tmp_path
):
    code, report = command(endpoint(scripted()).url)
    read = examples.read(tmp_path / "out" / "examples.jsonl")
    assert code == 0 and "1 candidates, 2 decisions" in report
    assert [e.reference["action"] for e in read] == ["delegate_task", "complete"]
    assert {e.meta["answer"] for e in read} == {"Prague"}


def test_a_curation_that_was_cut_off_anywhere_pays_for_the_rest_alone_and_replays(
    endpoint, command, tmp_path
):
    server, out = endpoint(scripted()), tmp_path / "out"
    first, whole = command(server.url), len(server.requests)
    rows, tape = (out / "candidates.jsonl").read_text(), (out / "tape.jsonl").read_bytes()
    for cut in (1, 3):  # after so many calls of the curation, with one torn line
        lines = tape.splitlines(keepends=True)
        (out / "tape.jsonl").write_bytes(b"".join(lines[: cut + 1]) + lines[cut + 1][:20])
        assert command(server.url) == first
        assert (
            len(server.requests) == whole + 4 - cut
            and (out / "candidates.jsonl").read_text() == rows
        )
        whole = len(server.requests)
    before = files_of(out)
    assert (
        command("http://127.0.0.1:9/v1", "--replay")[0] == 3
    )  # another address is another request
    assert command(server.url, "--replay") == first
    assert len(server.requests) == whole and files_of(out) == before


def test_a_run_on_an_accepted_task_that_was_cut_off_goes_on(endpoint, command, tmp_path):
    server = endpoint(scripted())
    command(server.url)
    (run,), whole = (tmp_path / "out" / "runs").iterdir(), len(server.requests)
    for name in ("tape.jsonl", "trajectory.jsonl"):  # its last call
        lines = (run / name).read_text().splitlines(keepends=True)
        (run / name).write_text("".join(lines[: -2 if name == "trajectory.jsonl" else -1]))
    assert "2 decisions" in command(server.url)[1] and len(server.requests) == whole + 1


@pytest.mark.parametrize(("flags", "seed", "code", "line"), [
    ((), {**SEED, "level": "odd"}, 2, "seed.json: 'odd' is not one of"), ((), "no", 2, "seed.json: "),
    ((), {**SEED, "media": [{"modality": "image", "path": "gone.png"}]}, 2, "gone.png"),
    (("--budget", "1"), SEED, 2, "--budget needs prices"), (("--replay",), SEED, 3, "nothing is recorded"),
])  # fmt: skip
def test_a_mistake_of_the_user_ends_it_in_one_line_before_a_call(
    flags, seed, code, line, endpoint, command
):
    server = endpoint(scripted())
    status, said = command(server.url, *flags, seed=seed)
    assert status == code and line in said and "\n" not in said.strip() and not server.requests
