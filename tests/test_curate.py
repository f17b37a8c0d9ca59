"""curate.py: the gates of Eq. 28, a curation from seeds to decision examples, its kill and its replay."""

import json
from types import SimpleNamespace

import pytest

from orchestra.curation import curate, gates, seeds
from orchestra.training import examples
from tests.conftest import ROOT, needs_sandbox
from tests.program import CLOCK, files_of, pool_file
from tests.scripted import complete, delegate, finish, is_main, last_text

FIXTURES = ROOT / "fixtures"
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
    "anchors": {"anchors": [FACT]}, "rewrite": TASK, "answer": {"reasoning": "", "answer": "Rome"}, "judge": {"reasoning": "", **GOOD},
}  # fmt: skip


def part_of(request):
    return next((p for p in REPLIES if f'{{"action": "{p}"' in last_text(request)), "")


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
def command(tmp_path, endpoint, monkeypatch, capsys):
    """Runs the command on one seed. Returns its exit code and what it printed."""

    def run(*flags, seed=SEED):
        (tmp_path / "seed.json").write_text(json.dumps(seed))
        monkeypatch.setenv("OPENAI_BASE_URL", run.url)
        paths = str(tmp_path / "seed.json"), "--out", str(run.out)
        code = curate.main([*paths, "--model", "m", "--per-seed", "1", *flags])
        return code, "".join(capsys.readouterr())

    run.respond, run.out = scripted(), tmp_path / "out"
    server = endpoint(lambda request: run.respond(request))
    run.url, run.requests = server.url, server.requests
    return run


@pytest.mark.parametrize(("gate", "changed", "passed"), [
    *[(gate.__name__, {}, True) for gate in gates.GATES[2:]],
    *[("anchor_coverage", {"question": question}, False) for question in ("What is 2 plus 2?", "What does the picture show?", "What can you see in clock.png?")],
    ("anchor_coverage", {"question": "In which country is the city that the picture shows?"}, True),
    ("similarity", {"question": f"{SEED['question']} Say."}, False), ("modal_bypass", {"answer": "rome"}, False),
    ("numeric_check", {"answer": "7"}, False),
    *[pytest.param("numeric_check", {"answer": answer, "code": "print(3 + 4)"}, answer == "7", marks=needs_sandbox) for answer in "78"],
])  # fmt: skip
def test_a_gate_accepts_and_refuses(gate, changed, passed, tmp_path):
    c = SimpleNamespace(tape=curate.Tape(tmp_path / "tape.jsonl", "record"), peers=[])
    c.ask = lambda x, prompt, **values: REPLIES["answer" if prompt == "bypass" else prompt]
    c.files = lambda seed: [("image", CLOCK)]
    x = {"id": "s1-1", "task": {**TASK, **changed}}
    assert getattr(gates, gate)(c, {**SEED, "anchors": [FACT]}, x)[0] is passed


@needs_sandbox
@pytest.mark.parametrize(("part", "wrong", "gate", "n"), [
    *[("anchors", {"anchors": [{**FACT, **wrong}]}, "anchors", 2) for wrong in ({"step": 3}, {"modality": "audio"})],
    *[("rewrite", wrong, "rewrite", 2) for wrong in ({"solution": ["."] * 5}, {"tools": ["VideoAnalysisAction"]})],
    ("answer", {"answer": None}, "modal_bypass", 2),
    *[("judge", {name: not good}, "judge", 1) for name, good in GOOD.items()],
])  # fmt: skip
def test_a_mistake_is_told_once_and_a_refusal_is_kept(part, wrong, gate, n, command):
    command.respond = scripted(part, **wrong)
    assert command()[0] == 0
    *_, last = json.loads((command.out / "candidates.jsonl").read_text())["verdicts"]
    assert (last["gate"], last["passed"]) == (gate, False) and last["reason"]
    assert [part_of(r) for r in command.requests].count(part) == n


@needs_sandbox
def test_training_reads_the_decisions_of_an_accepted_task(command):
    assert "1 candidates, 2 decisions" in command()[1]
    found = [e.reference["action"] for e in examples.read(command.out / "examples.jsonl")]
    assert found == ["delegate_task", "complete"]


@needs_sandbox
def test_what_was_cut_off_pays_for_the_rest_alone_and_replays(command):
    first, paid, out = command(), len(command.requests), command.out
    rows, (run,) = (out / "candidates.jsonl").read_text(), (out / "runs").iterdir()
    for tape, left in ((out / "tape.jsonl", 2), (out / "tape.jsonl", 4), (run / "tape.jsonl", 2)):
        lines = tape.read_bytes().splitlines(keepends=True)
        tape.write_bytes(b"".join(lines[:left]) + lines[left][:20])  # the last line is torn
        events = (run / "trajectory.jsonl").read_text().splitlines(keepends=True)
        (run / "trajectory.jsonl").write_text("".join(events[:-1]))  # and the run has no end
        assert command() == first and (out / "candidates.jsonl").read_text() == rows
        paid += sum(b'"answer"' in line for line in lines[left:])
        assert len(command.requests) == paid
    files = files_of(out)
    assert command("--replay") == first
    assert len(command.requests) == paid and files_of(out) == files
    command.url = "http://127.0.0.1:9/v1"  # where nobody answers
    assert command("--replay") == first  # the address is no part of a request


# ---- Eq. 26: the seeds ---------------------------------------------------------------------------

UNSOLVED = {key: SEED[key] for key in ("question", "media", "tools")}


@needs_sandbox
def test_a_seed_without_solution_and_level_gets_them_from_a_run(command):
    printed = command(seed={**UNSOLVED, "answer": "Prague"})
    assert "1 candidates, 2 decisions" in printed[1]
    asked = next(last_text(r) for r in command.requests if part_of(r) == "anchors")
    assert (
        "Read It found: Prague" in asked
        and "The answer: Prague" in asked
        and '"level": "easy"' in asked
    )
    assert "(1 to 2)" in asked  # the number of steps
    assert command("--replay", seed={**UNSOLVED, "answer": "Prague"}) == printed


@needs_sandbox
def test_a_seed_that_no_run_answers_rightly_is_left_out(command):
    printed = command(seed={**UNSOLVED, "answer": "Czech Republic"})
    assert printed[0] == 0 and "no run gave the right answer: seed 1" in printed[1]
    assert not any(part_of(r) for r in command.requests)
    assert command("--replay", seed={**UNSOLVED, "answer": "Czech Republic"}) == printed


def test_each_round_and_each_failure_makes_a_solved_seed_harder(run):
    turns = delegate("one", "two"), delegate("three"), complete("42")
    run(
        *turns,
        work=lambda text: (
            finish("", "blocked") if "# Your task\ntwo" in text else finish("a thing")
        ),
    )
    solution, level = seeds.solved(run.folder)
    assert level == "hard" and len(solution) == 3  # two rounds and a failure
    assert "one It found: a thing" in solution[0] and "The answer: 42" in solution[-1]


OFFICIAL = {  # the keys of OmniGAIA's test_metadata.json; the texts are ours
    "id": 7, "question": "What is said about the tower that the picture shows?", "answer": "79", "total_steps": 2,
    "omni_modal_input": [{"type": "audio", "id": "a1", "path": "audios/a.wav"}, {"type": "image", "id": "i1", "path": "images/b.jpg"}],
    "sources": [], "Level": "Medium", "required_external_tools": ["web_search", "code_executor"], "category": "History",
}  # fmt: skip
STEPS = "Step 1: Listen.", "Step 2: Look."


@pytest.mark.parametrize(
    "solution",
    [[*STEPS], "\n".join(STEPS), [STEPS[0], {"step": 2, "action": "Step 2:", "tool": "Look."}]],
)
def test_the_official_file_of_omnigaia_is_a_file_of_seeds(solution, tmp_path):
    (tmp_path / "test_metadata.json").write_text(
        json.dumps([{**OFFICIAL, "annotated_solution": solution}])
    )
    (seed,) = seeds.read(tmp_path / "test_metadata.json")
    assert seed == {
        "question": OFFICIAL["question"], "answer": "79", "solution": [*STEPS], "level": "medium",
        "media": [{"modality": "audio", "path": "audios/a.wav"}, {"modality": "image", "path": "images/b.jpg"}],
        "tools": ["ParseAudioAction", "ImageAnalysisAction", "GoogleSearchAction", "ExecuteCodeAction"],
    }  # fmt: skip


@pytest.mark.parametrize(("changed", "line"), [
    ({"answer": None}, "seed 1: None is not of type 'string'"), ({"required_external_tools": ["dig"]}, "'dig' is not one of"),
    ({"omni_modal_input": 3}, "seed 1: "),
])  # fmt: skip
def test_a_question_of_omnigaia_that_does_not_fit_is_named(changed, line, tmp_path):
    (tmp_path / "test_metadata.json").write_text(json.dumps([{**OFFICIAL, **changed}]))
    with pytest.raises(curate.ConfigError, match=line):
        seeds.read(tmp_path / "test_metadata.json")


@pytest.mark.parametrize(("flags", "seed", "code", "line"), [
    ((), {k: v for k, v in SEED.items() if k != "level"}, 2, "seed 1: 'level' is a dependency of 'solution'"),
    ((), {**SEED, "level": "odd"}, 2, "'odd' is not one of"), ((), {**SEED, "media": []}, 2, "seed.json: "),
    ((), {**SEED, "media": [{"modality": "image", "path": "gone.png"}]}, 2, "gone.png"),
    (("--budget", "1"), SEED, 2, "--budget needs prices"), (("--replay",), SEED, 3, "nothing is recorded"),
])  # fmt: skip
def test_a_users_mistake_is_one_line_before_a_call(flags, seed, code, line, command):
    status, printed = command(*flags, seed=seed)
    assert (status, len(printed.splitlines())) == (code, 1) and line in printed
    assert not command.requests


@needs_sandbox
def test_no_call_passes_the_budget_and_a_larger_one_goes_on(command, tmp_path):
    pool = str(pool_file(tmp_path, command.url, m=(100, 1000)))
    assert command("--backends", pool, "--budget", "0.3")[0] == 1
    assert len(command.requests) == 1
    assert "2 decisions" in command("--backends", pool, "--budget", "50")[1]


def test_the_recorded_curation_replays(capsys):
    pool, seeds = str(FIXTURES / "pools" / "qwen-curate.toml"), str(FIXTURES / "seeds.jsonl")
    flags = "--out", str(FIXTURES / "curated"), "--backends", pool, "--per-seed", "3", "--replay"
    assert curate.main([seeds, *flags]) == 0 and "9 candidates" in capsys.readouterr().out
