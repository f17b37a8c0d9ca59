"""What users give that can not be used is one line, and takes nothing of theirs away."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import orchestra_min
from orchestra import repository, secrets
from orchestra.pool import Engine, Pool
from orchestra.run_folder import Options, read_manifest
from orchestra.vocabulary import ConfigError, EndpointError
from tests.asking import answering
from tests.conftest import ROOT, pool_at
from tests.scripted import Raw, complete
from tools import engines
from tools.own import from_file


@pytest.mark.parametrize(
    "text", ["def f(:\n", "import not_there_at_all\n", "raise SystemExit(3)\n", "1 / 0\n"]
)
def test_a_tool_file_that_can_not_be_loaded_is_one_line(text, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(ConfigError, match="can not be loaded") as error:
        from_file(f"{file}:f")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "bad",
    [
        {"parallel": 0},
        {"rounds": -1},
        {"steps": 0},
        {"budget_usd": float("nan")},
        {"timeout_s": 0.0},
    ],
)
def test_a_number_that_no_run_can_have_is_said(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        Options(**bad)


def test_a_picture_of_odd_sides_is_read_in_little_memory(monkeypatch):
    pytest.importorskip("numpy")
    from PIL import Image

    from tools import image

    seen: list[tuple[int, ...]] = []

    class Engine:
        txts = ()

        def __call__(self, pixels: Any) -> Engine:
            seen.append(pixels.shape)
            return self

    monkeypatch.setattr(image, "_ocr", lambda quick: Engine())
    image.read_text(Image.new("RGB", (2000, 1)))
    assert seen == [(500, 2000, 3)]


def test_a_work_folder_is_whole_or_not_there(tmp_path):
    """A kill while it is copied leaves a part of another name, and the next try begins anew."""
    from subagents.work_folder import prepare

    (tmp_path / "workdir").mkdir()
    (tmp_path / "workdir" / "a.txt").write_text("a")
    folder = tmp_path / "work" / "r1-t1"
    part = Path(folder.parent, ".r1-t1.part")
    part.mkdir(parents=True)
    (part / "half.txt").write_text("h")
    prepare(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["a.txt"] and not part.exists()


def test_a_pipe_in_a_repository_is_left_out_of_its_copy(tmp_path):
    source = tmp_path / "source"
    (tmp_path / "run").mkdir()
    subprocess.run(["git", "init", "-q", str(source)], check=True)
    (source / "a.txt").write_text("a")
    os.mkfifo(source / "pipe")
    repository.copy_into(tmp_path / "run", source)
    copied = {p.name for p in (tmp_path / "run" / "workdir").iterdir()}
    assert copied == {"a.txt", ".git"}


@pytest.mark.parametrize("question", ['Who said "hi"?', "It's $5 or `ls`, 100%?"])
def test_make_live_asks_any_question_as_it_is(question, tmp_path):
    (tmp_path / "run").touch()  # as if set up
    asked = ["live", f"VENV={tmp_path}", "RUN=echo", f"QUESTION={question}"]
    done = subprocess.run(["make", "-s", *asked], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == f"orchestra_min.py --question {question}\n", done.stderr


def test_the_last_line_of_the_log_names_no_round_that_was_not(endpoint, tmp_path):
    server = endpoint(answering(complete("42")))
    orchestra_min.orchestrate("?", pool=pool_at(server.url), out=tmp_path / "run")
    last = (tmp_path / "run" / "log.txt").read_text().splitlines()[-1]
    assert last.partition(",")[2].split(" ", 1)[1].startswith("answer: '42'")


def test_a_replay_without_its_tape_says_so(endpoint, tmp_path):
    server = endpoint(answering(complete("42")))
    orchestra_min.orchestrate("?", pool=pool_at(server.url), out=tmp_path / "run")
    (tmp_path / "run" / "tape.jsonl").unlink()
    with pytest.raises(ConfigError, match="tape.jsonl: is missing"):
        orchestra_min.replay(tmp_path / "run")


def test_a_folder_of_the_users_stays_when_a_run_in_it_comes_to_nothing(endpoint, tmp_path):
    (tmp_path / "mine").mkdir()
    for name in ("mine", "new"):
        with pytest.raises(EndpointError):
            url = endpoint(lambda request: Raw(401, {})).url
            orchestra_min.orchestrate("?", (), pool_at(url), Options(), tmp_path / name)
    assert list((tmp_path / "mine").iterdir()) == [] and not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "url", ["http://a..b/v1", "http://a/v1\n", " http://a/v1", f"http://{'a' * 64}.b/v1"]
)
def test_an_address_that_no_client_takes_is_none(url):
    assert secrets.url_problem(url).startswith("needs http(s)://host/v1")


def test_a_run_in_the_folder_one_stands_in_leaves_it_when_it_comes_to_nothing(
    endpoint, tmp_path, monkeypatch
):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(EndpointError):
        url = endpoint(lambda request: Raw(401, {})).url
        orchestra_min.orchestrate("?", (), pool_at(url), Options(), ".")
    assert list(Path().iterdir()) == []


# ---- what a library is given ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "given, said",
    [
        ({"rounds": 2.5}, "rounds: needs a whole number"),
        ({"stop_threshold": float("nan")}, "stop_threshold: needs 0 to 1"),
    ],
)
def test_an_option_that_no_run_can_have_is_said(given, said):
    with pytest.raises(ConfigError, match=said):
        Options(**given)


def test_a_pool_of_names_that_are_no_backend_is_said():
    backends = pool_at("http://127.0.0.1:9/v1").backends
    with pytest.raises(ConfigError, match="main: 'typo' is no backend; one of small"):
        Pool(backends, "typo")
    with pytest.raises(ConfigError, match="engines, image: 'typo' is no backend"):
        Pool(backends, "small", {"image": Engine("endpoint", "typo")})


def test_a_pool_without_engines_has_the_default_ones(endpoint, tmp_path):
    pool = pool_at(endpoint(lambda request: complete("4")).url)
    orchestra_min.orchestrate("?", (), Pool(pool.backends, pool.main), Options(), tmp_path / "run")
    assert read_manifest(tmp_path / "run").pool.engines.keys() == {"image", "audio"}


def test_a_kind_of_media_that_there_is_not_is_said(tmp_path):
    picture = ROOT / "fixtures" / "media" / "clock.png"
    pool = pool_at("http://127.0.0.1:9/v1")
    with pytest.raises(ConfigError, match="'picture': is no kind of media; one of image"):
        orchestra_min.orchestrate("?", [("picture", picture)], pool, out=tmp_path / "run")


def test_a_round_before_the_first_is_said(tmp_path):
    with pytest.raises(ConfigError, match="--from-round 0: rounds are counted from 1"):
        orchestra_min.resume(ROOT / "fixtures/runs/equinox", from_round=0, out=tmp_path / "fork")
    assert not (tmp_path / "fork").exists()


@pytest.mark.parametrize("was_there", [False, True])
def test_a_comparison_that_comes_to_nothing_leaves_what_was_there(was_there, tmp_path):
    out = tmp_path / "out"
    if was_there:
        out.mkdir()
    with pytest.raises(ConfigError, match="there is no such file"):
        pool = pool_at("http://127.0.0.1:9/v1")
        orchestra_min.compare(["orchestra-o1"], "?", [("image", "none.png")], pool, out=out)
    assert out.exists() == was_there


@pytest.mark.parametrize("name", ["finish", "invalid"])
def test_a_tool_with_a_word_of_the_loop_is_said(name, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(f'def {name}(a: str) -> str:\n    """Say it."""\n    return a\n')
    with pytest.raises(ConfigError, match=f"the name {name} is taken"):
        options = Options(tools=(f"{file}:{name}",))
        pool = pool_at("http://127.0.0.1:9/v1")
        orchestra_min.orchestrate("?", (), pool, options, tmp_path / "run")


def test_a_line_of_a_trajectory_that_is_no_event_is_said(tmp_path):
    shutil.copytree(ROOT / "fixtures/runs/equinox", tmp_path / "run")
    with (tmp_path / "run" / "trajectory.jsonl").open("a") as file:
        file.write('{"a": 1}\n')
    with pytest.raises(ConfigError, match="holds a line that is no event"):
        orchestra_min.replay(tmp_path / "run")


def test_a_local_engine_that_is_missing_is_said_before_a_resume_pays(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "fixtures/runs/equinox", tmp_path / "run")
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs (rapidocr|faster_whisper)"):
        orchestra_min.resume(tmp_path / "run")
