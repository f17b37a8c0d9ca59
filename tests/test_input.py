"""What a user gives, on the command line and in a program: a mistake is one line, before anything is paid."""

import dataclasses
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
import vcr

from orchestra.runtime.run_folder import read_manifest
from orchestra_min import orchestrate
from tests.conftest import ROOT, ConfigError, EndpointError, Options, pool_at
from tests.program import CLOCK, PROGRAM, any_method, called, line_of, pool_file, program, replay
from tests.scripted import Raw, complete, delegate, finish, last_text

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

# ---- flags, files, keys --------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [
    "--rounds 0", "--rounds many", "--steps -1", "--parallel 1.5", "--budget nan", "--budget -1", "--timeout 0", "--stop-threshold 2",
    "--colour red", "--method magic", "--replay b --resume c", "--from-round 2", "--replay b --image c.png", "--replay b --out c", "--resume b --out c",
    "--allow-host http://wiki/", "--dom low", "--method toolorchestra --context full", "--compare react,nothing", "--compare react,gone.py:X", "--compare a.py:X,b.py:X",
    "--method aorchestra --workdir .", "--method mas-orchestra --rounds 3", "--compare all --method react", "--budget 1",
    f"--method react --instruction {PROGRAM.parent}/prompts/aorchestra/system.md",
    "--method aorchestra --instruction /nowhere", "--prefer cost=1", "--method toolorchestra --prefer cost=2", "--perception none", "--method aorchestra --agent mini-swe --workdir /nowhere",
])  # fmt: skip
def test_flags_that_do_not_fit_are_one_line_that_names_one(flags, endpoint, tmp_path):
    server = endpoint(any_method)
    question = ("?",) if "--re" not in flags else ()
    line = line_of(called(*question, *flags.split(), at=server.url))
    words = re.findall(r"--[\w-]+|/nowhere|gone\.py|nothing", flags)
    assert any(word in line for word in words)
    assert server.requests == [] and list(tmp_path.iterdir()) == []


@pytest.fixture
def bad_files(tmp_path):
    (tmp_path / "empty.png").touch()
    (tmp_path / "notes.png").write_text("these are notes\n" * 50)
    os.mkfifo(tmp_path / "pipe.png")
    texts = {"full/mine.txt": "mine", "damaged/run.json": "{", "newer/run.json": '{"v": 999}'}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    with (tmp_path / "huge.png").open("wb") as file:
        file.truncate(101 << 20)
    yield
    (tmp_path / "huge.png").unlink()  # or attacks/conftest.py would search it for a key


@pytest.mark.parametrize("flags", [
    *(f"--image {name}" for name in ("gone.png", "empty.png", "full", "pipe.png", "huge.png", "notes.png")), "--video notes.png", f"--audio {CLOCK}",
    "--out full", "--out full/mine.txt", "--out full/mine.txt/run", "--backends gone.toml", "--backends full", "--instruction gone.md", "--tools gone.py:f",
    f"--tools {PROGRAM}:nothing", "--replay full", "--replay gone", "--resume gone", "--resume newer", "--replay damaged",
])  # fmt: skip
def test_a_file_that_cannot_be_used_is_named_in_one_line(flags, bad_files, endpoint, tmp_path):
    server, before = endpoint(any_method), {p for p in tmp_path.rglob("*") if not p.is_dir()}
    flag, name = flags.split()
    question = () if flag in ("--replay", "--resume") else ("--question", "?")
    assert name in line_of(called(*question, flag, name, at=server.url))
    assert server.requests == [] and before == {p for p in tmp_path.rglob("*") if not p.is_dir()}


@pytest.mark.parametrize("key", ["", "a key\nin two lines", "schlüssel", "\ufeffkey"])
def test_a_key_that_cannot_be_sent_is_said_by_its_name(key, endpoint, tmp_path):
    server = endpoint(any_method)
    pool = pool_file(tmp_path, server.url, "MY_KEY", a=(0, 0))
    line = line_of(called("--question", "?", "--backends", pool, MY_KEY=key))
    assert "MY_KEY" in line and (not key or key.strip() not in line)
    assert server.requests == [] and not (tmp_path / "runs").exists()


def test_a_dash_reads_the_question_from_standard_input_whatever_its_bytes(endpoint, tmp_path):
    server = endpoint(any_method)
    (tmp_path / "question").write_bytes("Wie spät ist es\nin Prag?".encode() + b" caf\xe9")
    with (tmp_path / "question").open("rb") as stdin:
        done = program(tmp_path, "--question", "-", at=server.url, stdin=stdin)
    asked = last_text(server.requests[0])
    assert done.stdout == "42\n" and "Wie spät ist es\nin Prag? caf" in asked


def test_files_of_any_name_can_be_given(run, tmp_path):
    names = ["My clock (1).png", "-rf.png", "line\nbreak.png", "Uhr-größe.png", "a" * 100 + ".png"]
    names += ["no-suffix", "hf-20240612-evening-walk.png", os.fsdecode(b"\xff.png"), "sub/-rf.png"]
    (tmp_path / "sub").mkdir()
    for name in names:
        shutil.copy(CLOCK, tmp_path / name)
    media = [("image", tmp_path / name) for name in names]
    assert run(delegate("look"), complete("42"), media=media).answer == "42"
    kept = [p.name for p in (run.folder / "media").iterdir()]
    assert len(kept) == len(names) and all(n.isprintable() and " " not in n for n in kept)


# ---- as a library --------------------------------------------------------------------------------


def library_hours(day: str) -> str:
    """When the library is open."""
    return f"closed on {day}"


@pytest.mark.parametrize("given", [
    {"media": ["a.png"]}, {"media": [("picture", CLOCK)]}, {"pool": "x.toml"}, {"question": " "},
    *({"options": wrong} for wrong in ({"parallel": 0}, {"steps": 2.5}, {"budget_usd": float("nan")}, {"timeout_s": 0.0}, {"method": "magic"}, {"mcp": "python x.py"})),
])  # fmt: skip
def test_a_mistake_in_a_library_call_is_a_config_error(given, tmp_path):
    how = {"question": "?", "pool": pool_at("http://127.0.0.1:9/v1"), "options": {}, **given}
    with pytest.raises(ConfigError):
        orchestrate(**{**how, "options": Options(**how["options"])}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_function_is_a_tool_and_an_outcome_is_json(run, tmp_path):
    result = run(delegate("look"), complete("42"), tools=library_hours, media=str(CLOCK))
    assert json.loads(json.dumps(dataclasses.asdict(result)))["run"] == str(tmp_path / "run")


@pytest.mark.parametrize("how", [{}, {"question": ""}, {"steps": 0}, {"media": ["gone"]}])
def test_errors_can_be_pickled(how, run):
    with pytest.raises((EndpointError, ConfigError)) as raised:
        run(Raw(200, "<html>"), **how)
    again = pickle.loads(pickle.dumps(raised.value))
    assert (type(again), str(again)) == (raised.type, str(raised.value))


OWN = """from collections import Counter
from orchestra.vocabulary import Complete, Delegate, SubTask
from orchestra.methods.aorchestra import AOrchestra
def hours(day): return "9 to 17"
class Half:
    rounds = 2
    def __init__(self, pool, tools, options): pass
    def decide(self, state, ask, mistake="", last_chance=False): pass
class Once(Half):
    rounds, shares_context = 1, False
    def decide(self, state, ask, mistake="", last_chance=False):
        if last_chance:
            return Complete("the last chance")
        return Delegate((SubTask("a", state.task.question, tools=()),))
class Mine(AOrchestra): pass
class Majority(Half):
    shares_context = False
    def decide(self, state, ask, mistake="", last_chance=False):
        if state.history:
            return Complete(Counter(h.answer for h in state.history).most_common(1)[0][0])
        return Delegate(tuple(SubTask(n, state.task.question, tools=()) for n in "abc"))"""


@pytest.fixture
def own(run, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    answers = iter(["4", "5", "5"])
    work = lambda text: finish(next(answers))  # noqa: E731
    return lambda name: run(work=work, method=f"{tmp_path}/own.py:{name}").answer


@pytest.mark.parametrize(("name", "why"), [
    ("Minority", ".*has no 'Minority'"), ("Half", "is not a class with rounds"), ("hours", "is not a class with rounds"),
])  # fmt: skip
def test_what_is_no_orchestrator_is_refused_in_one_line(name, why, own):
    with pytest.raises(ConfigError, match=f"own.py:{name}: {why}"):
        own(name)


def test_an_orchestrator_of_ones_own_takes_the_flags_of_the_one_it_extends(own, endpoint):
    given = "--method", "own.py:Mine", "--context", "none", "--out", "run"
    assert called("?", *given, at=endpoint(any_method).url).stdout == "42\n"


@pytest.mark.parametrize(("name", "answer"), [("Majority", "5"), ("Once", "the last chance")])
def test_an_orchestrator_of_ones_own_decides_and_is_named_again_for_a_replay(name, answer, own):
    assert own(name) == answer  # its replay names it
    flags = line_of(called("--replay", "run")).partition("add ")[2].split()
    assert called("--replay", "run", *flags).stdout == f"{answer}\n"


FORKED = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from orchestra.runtime.run_folder import read_manifest
from orchestra_min import orchestrate
def one(n):
    return orchestrate(f"question {n}.", out=f"run{n}").answer
print(one(0))
with ProcessPoolExecutor(3, get_context("fork")) as workers:
    print(*workers.map(one, range(1, 7)), sep="\\n")"""


def test_forked_workers_get_their_own_answers(endpoint, tmp_path):
    def respond(request):
        return complete(last_text(request).partition("question ")[2].partition(".")[0])

    server = endpoint(respond)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OPENAI_BASE_URL": server.url}
    call = ["timeout", "-s", "KILL", "40", sys.executable, "-c", FORKED]  # with its workers
    done = subprocess.run(call, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == [str(n) for n in range(7)], done.stderr[-500:]


# ---- the calls and cassettes of the program that runs us are untouched --------------------------


def test_calls_of_the_host_program_are_untouched_before_during_and_after(endpoint, run):
    import openai  # takes long

    other = endpoint(lambda request: f"mine {len(other.requests) - 1}")
    client = openai.OpenAI(base_url=other.url, api_key="none")
    how = {"model": "m", "messages": [{"role": "user", "content": "mine"}]}
    url = f"{other.url}/chat/completions"
    by = (lambda: client.chat.completions.create(**how).to_dict(),
          lambda: requests.post(url, json=how, timeout=5).json())  # fmt: skip

    def mine(*_):
        with ThreadPoolExecutor(1) as thread:
            for reply in (thread.submit(ask).result() for ask in by):
                said = reply["choices"][0]["message"]["content"]
                assert said == f"mine {len(other.requests) - 1}"

    mine()
    run(listeners=[mine])
    replay(run.folder, listeners=[mine])
    mine()
    assert len(other.requests) > 8 and "mine" not in (run.folder / "tape.jsonl").read_text()


def test_a_run_inside_a_cassette_of_the_host_program_has_its_own_tape(run, tmp_path):
    with vcr.use_cassette(str(tmp_path / "mine.yaml")):
        assert [run(out=name).answer for name in ("first", "second")] == ["42"] * 2
    assert [replay(tmp_path / name).answer for name in ("first", "second")] == ["42"] * 2


@pytest.mark.parametrize(("words", "question", "files"), [
    (["What city?", "a.png", "b.png"], "What city?", ["a.png", "b.png"]),
    (["--question", "Why?", "a.png"], "Why?", ["a.png"]),
    (["Which", "city", "is", "a.png"], "Which city is a.png", ["a.png"]),
    (["Which", "city?"], "Which city?", []),
    (["Where?", "a.png", "b.png"], "Where?", ["a.png", "b.png"]),
])  # fmt: skip
def test_words_after_the_question_are_files(words, question, files, endpoint):
    for name in files:
        Path(name).write_bytes(CLOCK.read_bytes() + name.encode())
    called(*words, "--out", "run", at=endpoint(lambda request: complete("42")).url)
    manifest = read_manifest(Path("run"))
    assert (manifest.question, [m.name for m in manifest.media]) == (question, files)


def test_a_file_that_does_not_exist_is_not_sent_as_a_part_of_the_question(endpoint):
    server = endpoint(lambda request: complete("42"))
    assert "gone.png: there is no such file" in line_of(
        called("What city?", "gone.png", at=server.url)
    )
    assert server.requests == []


@pytest.mark.parametrize(("flags", "meant"), [
    ("--metod react", "--method"), ("--budgt=1", "--budget"), ("--method raect", "react"),
    ("--backends pool.toml --model smal", "small"), ("--backends wrong.toml", "price_usd_per_mtok"),
])  # fmt: skip
def test_a_misspelled_name_has_a_hint(flags, meant):
    backend = '[[backend]]\nname = "small"\nbase_url = "http://127.0.0.1:1/v1"\n'
    Path("pool.toml").write_text(backend)
    Path("wrong.toml").write_text(f"{backend}price_usd_per_mtoken = {{ input = 1, output = 1 }}\n")
    assert f"did you mean {meant}?" in line_of(
        called("?", *flags.split(), at="http://127.0.0.1:1/v1")
    )
