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

import orchestra
import orchestra_min
from orchestra import methods as shipped
from orchestra.kernel.folder import read_manifest
from orchestra.tools.python_function import tool_of
from orchestra_min import orchestrate
from tests.conftest import ROOT, ConfigError, EndpointError, Options, pool_at
from tests.program import CLOCK, PROGRAM, any_method, called, line_of, pool_file, program, replay
from tests.scripted import Raw, complete, delegate, finish, is_main, last_text

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

# ---- flags, files, keys --------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [
    "--rounds 0", "--rounds many", "--steps -1", "--parallel 1.5", "--k-max 0", "--budget nan", "--budget -1", "--timeout 0", "--option stop_threshold=2",
    "--colour red", "--method magic", "--agent magic", "--prompts tiny", "--replay b --resume c", "--from-round 2", "--what-if r1={}", "--replay b --file c.png", "--replay b --out c",
    "--resume b --out c", "--resume b --budget 1", "--allow-host http://wiki/", "--option dom=low", "--method toolorchestra --option context=full", "--option patience_s",
    "--method aorchestra --workdir .", "--method mas-orchestra --rounds 3", "--budget 1", "--method react --prompts small",
    "--method aorchestra --option instruction=@/nowhere", "--option prefer=cost=1", "--method toolorchestra --option prefer=cost=2", "--agent mini-swe",
])  # fmt: skip
def test_flags_that_do_not_fit_are_one_line_that_names_one(flags, endpoint, tmp_path):
    server = endpoint(any_method)
    question = ("?",) if "--re" not in flags else ()
    line = line_of(called(*question, *flags.split(), at=server.url))
    assert any(word in line for word in re.findall(r"--[\w-]+|/nowhere", flags))
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
    *(f"--file image:{name}" for name in ("gone.png", "empty.png", "full", "pipe.png", "huge.png", "notes.png")), "--file video:notes.png", f"--file audio:{CLOCK}",
    "--file gone.png", "--file empty.png", "--out full", "--out full/mine.txt", "--out full/mine.txt/run", "--backends gone.toml", "--backends full", "--tools gone.py:f",
    f"--tools {PROGRAM}:nothing", "--reuse full", "--replay full", "--replay gone", "--resume gone", "--resume newer", "--replay damaged",
])  # fmt: skip
def test_a_file_that_cannot_be_used_is_named_in_one_line(flags, bad_files, endpoint, tmp_path):
    server, before = endpoint(any_method), {p for p in tmp_path.rglob("*") if not p.is_dir()}
    flag, name = flags.split()
    question = () if flag in ("--replay", "--resume") else ("--question", "?")
    assert name.rpartition(":")[2] in line_of(called(*question, flag, name, at=server.url))
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
    {"media": ["a.png"]}, {"media": [("picture", CLOCK)]}, {"pool": None}, {"options": {"method": "magic"}}, {"options": {"stop_threshold": 2}},
])  # fmt: skip
def test_a_mistake_in_a_library_call_is_a_config_error(given, tmp_path):
    how = {"question": "?", "pool": pool_at("http://127.0.0.1:9/v1"), "options": {}, **given}
    with pytest.raises(ConfigError):
        orchestrate(**{**how, "options": Options.of(**how["options"])}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_function_is_a_tool_and_an_outcome_becomes_json(run, tmp_path):
    tools = {"library_hours": tool_of(library_hours)}
    result = run(delegate("look"), complete("42"), tools=tools, media=[CLOCK])
    row = json.loads(json.dumps(dataclasses.asdict(result), default=str))
    assert row["run"] == str(tmp_path / "run")


@pytest.mark.parametrize("how", [{}, {"method": "magic"}, {"media": ["gone"]}])
def test_errors_can_be_pickled(how, run):
    with pytest.raises((EndpointError, ConfigError)) as raised:
        run(Raw(200, "<html>"), **how)
    again = pickle.loads(pickle.dumps(raised.value))
    assert (type(again), str(again)) == (raised.type, str(raised.value))


OWN = """from collections import Counter
from orchestra.kernel.method import Method
from orchestra.kernel.vocabulary import Complete, Delegate, SubTask
from orchestra.methods.aorchestra import AOrchestra
def hours(day): return "9 to 17"
nothing = None
class Empty: pass
class Wrong(Method): def
class Once(Method):
    rounds = 1
    def __init__(self, pool, tools, options): pass
    def decide(self, state, ask, mistake, last_chance):
        if last_chance:
            return Complete("the last chance")
        return Delegate((SubTask("a", state.task.question, tools=()),))
class Mine(AOrchestra): pass
class Majority(Once):
    rounds = 2
    def decide(self, state, ask, mistake, last_chance):
        if state.history:
            return Complete(Counter(h.answer for h in state.history).most_common(1)[0][0])
        return Delegate(tuple(SubTask(n, state.task.question, tools=()) for n in "abc"))"""


@pytest.fixture
def own(endpoint, tmp_path):
    """`own(name, *flags)`: a run of one's own method, whose sub-agents answer 4, 5, 5."""
    (tmp_path / "own.py").write_text(OWN.replace("class Wrong(Method): def\n", ""))
    (tmp_path / "wrong.py").write_text(OWN)
    answers = iter(["4", "5", "5"])
    server = endpoint(lambda request: complete("42") if is_main(request) else finish(next(answers)))
    flags = "--model", "m", "--out", "run"
    return lambda spec, *more: called("?", *flags, "--method", spec, *more, at=server.url)


@pytest.mark.parametrize(("spec", "why"), [
    ("own.py:Minority", "has no 'Minority'"), ("own.py:Empty", "is not a class with decide"), ("own.py:nothing", "is not a class with decide"),
    ("wrong.py:Majority", "cannot be loaded (SyntaxError"), ("own.py:", "add :NAME"), ("no.such.module:X", "cannot be loaded (ModuleNotFoundError"),
])  # fmt: skip
def test_what_is_not_an_orchestrator_is_refused_in_one_line(spec, why, own, tmp_path):
    assert f"--method {spec}" in (line := line_of(own(spec))) and why in line
    assert not (tmp_path / "run").exists()


def test_an_orchestrator_of_ones_own_takes_the_options_of_the_one_it_extends(own, endpoint):
    given = "--method", "own.py:Mine", "--option", "context=none", "--out", "run"
    assert called("?", *given, at=endpoint(any_method).url).stdout == "42\n"
    assert read_manifest(Path("run")).options.more["context"] == "none"


@pytest.mark.parametrize(("name", "answer"), [("Majority", "5"), ("Once", "the last chance")])
def test_an_orchestrator_of_ones_own_decides_and_is_named_again_for_a_replay(name, answer, own):
    assert own(f"own.py:{name}").stdout in ("5\n", "the last chance\n")
    flags = line_of(called("--replay", "run")).partition("add ")[2].split()
    assert called("--replay", "run", *flags).stdout == f"{answer}\n"


FORKED = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from orchestra.kernel.vocabulary import Backend, Pool
from orchestra_min import orchestrate
import os
pool = Pool((Backend("m", "m", os.environ["OPENAI_BASE_URL"]),), "m")
def one(n):
    return orchestrate(f"question {n}.", (), pool, out=f"run{n}").answer
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
    run(out="before")  # its connections are kept
    with vcr.use_cassette(str(tmp_path / "mine.yaml")) as cassette:
        assert [run(out=name).answer for name in ("first", "second")] == ["42"] * 2
        assert len(cassette) > 0
    assert [replay(tmp_path / name).answer for name in ("first", "second")] == ["42"] * 2


# ---- the words of a command line -----------------------------------------------------------------


@pytest.mark.parametrize(("words", "question", "files"), [
    (["What city?", "a.png", "b.png"], "What city?", ["a.png", "b.png"]),
    (["--question", "Why?", "a.png"], "Why?", ["a.png"]), (["--question", "runs"], "runs", []), (["--question", "replay"], "replay", []),
    (["Which", "city", "is", "a.png"], "Which city is", ["a.png"]), (["Which", "city?"], "Which city?", []), (["Is", "3.5", "e.g.", "odd?"], "Is 3.5 e.g. odd?", []),
    (["Where?", "a.png", "b.png"], "Where?", ["a.png", "b.png"]), (["Transcribe gone.mp3, if it is there"], "Transcribe gone.mp3, if it is there", []),
    (["What city?", "--file", "image:a.png", "--file", "b.png"], "What city?", ["a.png", "b.png"]),
])  # fmt: skip
def test_words_after_the_question_are_files(words, question, files, endpoint):
    for name in files:
        Path(name).write_bytes(CLOCK.read_bytes() + name.encode())
    done = called(*words, "--out", "run", at=endpoint(lambda request: complete("42")).url)
    assert done.stdout == "42\n", done.stderr
    manifest = read_manifest(Path("run"))
    assert (manifest.question, [name for _, name, _ in manifest.media]) == (question, files)


@pytest.mark.parametrize(
    "words", [["What is it? " * 30], ["x" * 300, "what is it?"], ["What", "is", "y" * 300]]
)
def test_a_question_may_be_longer_than_a_name_of_a_file(words, endpoint):
    done = called(*words, at=endpoint(lambda request: complete("42")).url)
    assert done.stdout == "42\n" or "there is no such file" in done.stderr


@pytest.mark.parametrize(("words", "told"), [
    (["runs"], "no such folder"), (["replay", "RUN"], "RUN is not a run folder"), (["resume", "RUN"], "RUN is not a run folder"), (["replay"], "name a run"), (["replay", "--quiet"], "name a run"),
    (["resume", "--parallel", "1", "RUN"], "RUN is not a run folder"),
    (["reprot", "RUN"], "did you mean report?"), (["Replay", "it"], "did you mean replay?"), (["hlep"], "did you mean help?"), (["evaluate-run"], "not a command"),
    (["clock.png", "What time is it?"], "clock.png is a file; the question comes first"), (["clock.png"], "clock.png is a file"),
    (["Transcribe", "tlak.mp3"], "tlak.mp3: there is no such file"), (["What city?", "gone.png"], "gone.png: there is no such file"), (["What city?", "/usr"], "/usr: is a folder"), (["Q?", "/usr"], "/usr: is a folder"), (["why"], "why is neither a command"),
    ([], "the question is missing"), ([" "], "the question is empty"), (["--question", " "], "the question is empty"),
])  # fmt: skip
def test_a_command_a_file_or_one_word_is_never_a_paid_question(words, told, endpoint, tmp_path):
    server = endpoint(any_method)
    shutil.copy(CLOCK, tmp_path / "clock.png")
    assert told in line_of(called(*words, at=server.url))
    assert server.requests == [] and [p.name for p in tmp_path.iterdir()] == ["clock.png"]


@pytest.mark.parametrize(("words", "meant"), [
    (["?", "--bugdet", "1"], "--budget"), (["resume", "RUN", "--from-ruond", "2"], "--from-round"), (["?", "--prompts", "smal"], "small"),
    (["?", "--method", "raect"], "react"),
])  # fmt: skip
def test_a_misspelt_flag_or_choice_gets_a_suggestion(words, meant, endpoint):
    server = endpoint(any_method)
    assert f"; did you mean {meant}?" in line_of(called(*words, at=server.url))
    assert server.requests == []


def test_help_and_version_are_words_too(capsys):
    for word, shown in (("help", "record and replay:"), ("version", orchestra.__version__)):
        with pytest.raises(SystemExit) as ended:
            orchestra_min.main([word])
        assert ended.value.code == 0 and shown in capsys.readouterr().out


def test_the_help_has_at_most_26_flags_in_groups(capsys):
    with pytest.raises(SystemExit):
        orchestra_min.main(["--help"])
    _, _, text = capsys.readouterr().out.partition("\nask:")
    flags = re.findall(r"^  (--[\w-]+)", text, re.M)
    assert len(flags) == len(set(flags)) == 26
    assert [row for row in text.splitlines() if re.fullmatch(r"[a-z ]+:", row)] == [
        "models:", "spend:", "record and replay:", "swap:", "safety:",
    ]  # fmt: skip


def test_an_option_without_a_flag_is_read_by_its_type(endpoint, tmp_path):
    (tmp_path / "system.md").write_text("You use ${models} and ${tools}. Say complete.")
    given = [
        "patience_s=0.5",
        "context_tokens=900",
        "stop_threshold=0.25",
        "instruction=@system.md",
    ]
    words = [word for option in given for word in ("--option", option)]
    done = called("?" * 2, "Why?", *words, "--out", "run", at=endpoint(any_method).url)
    assert done.returncode in (0, 1), done.stderr
    options = read_manifest(Path("run")).options
    assert (options.patience_s, options.context_tokens) == (0.5, 900)
    own = shipped.make_method(pool_at("http://127.0.0.1:9"), {}, options).own
    assert own["stop_threshold"] == 0.25 and "${tools}" in own["instruction"]
    line = line_of(called("?", "it?", "--option", "colour=red", at="http://127.0.0.1:9"))
    assert "patience_s, context_tokens, stop_threshold, instruction" in line


@pytest.mark.parametrize("words", [["--help"], ["evaluate", "--help"], ["What is it?"]])
def test_without_the_packages_that_it_needs_it_says_how_to_install_them_in_one_line(words):
    command = [sys.executable, "-S", ROOT / "orchestra_min.py", *words]  # -S: no packages
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("-m pip install -r requirements.txt\n")
    assert len(done.stderr.splitlines()) == 1
