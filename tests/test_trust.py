"""A stranger's run folder loads, starts, reaches and sends nothing that the user does not name."""

from __future__ import annotations

import os
import shlex
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import orchestra_min
from orchestra import trust
from orchestra.command_line import parse
from orchestra.pool import Pool
from orchestra.run_folder import Options, read_manifest, write_manifest
from orchestra.trust import Named
from orchestra.vocabulary import Backend, ConfigError
from tests.conftest import pool_at
from tests.scripted import Raw, complete, delegate, finish

MINE = '''
from pathlib import Path
Path(__file__).with_name("loaded").touch()
def f(day: str) -> str:
    """When."""
    return day
'''


@pytest.fixture
def call(tmp_path, monkeypatch, capfd):
    """Run a command in `tmp_path`: its exit code, and what it said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_MODEL_KEY", "a-secret-of-this-test")

    def run_command(*arguments):
        code = orchestra_min.main(parse([str(a) for a in arguments]))
        return code, *capfd.readouterr()

    return run_command


@pytest.fixture
def run(endpoint, tmp_path, monkeypatch):
    """A run with a tool of the user's; its file tells when it is loaded."""
    (tmp_path / "mine.py").write_text(MINE)
    server = endpoint(lambda request: complete("42"))
    options = Options(tools=(f"{tmp_path}/mine.py:f",))
    orchestra_min.orchestrate("?", (), pool_at(server.url), options, tmp_path / "run")
    (tmp_path / "loaded").unlink()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    return tmp_path / "run"


@pytest.mark.parametrize("flag", ["--replay", "--resume"])
def test_a_run_of_ones_own_needs_nothing_named_again(
    flag, run, call, monkeypatch, tmp_path_factory
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
    assert call(flag, run)[1] == "42\n"
    assert (run.parent / "loaded").exists()


def test_a_run_json_that_was_changed_is_not_ones_own(run, call, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
    with_options(run, mcp=("touch started",))
    code, _, line = call("--resume", run)
    assert code == 2 and "--mcp 'touch started'" in line
    assert not (run.parent / "started").exists()


def test_the_key_is_the_users_alone_and_one_for_all_that_start_together(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda _: trust._key(make=True), range(32)))
    assert len(set(keys)) == 1 and len(keys[0]) == 32
    assert [p.name for p in (tmp_path / "orchestra-min").iterdir()] == ["key"]
    assert (tmp_path / "orchestra-min" / "key").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("state", ["a file", "owner is damaged", "key is cut"])
def test_without_a_key_or_a_mark_a_folder_is_a_strangers(state, endpoint, tmp_path, monkeypatch):
    if state == "a file":
        (tmp_path / "state").touch()
    if state != "owner is damaged":
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    server = endpoint(lambda request: complete("42"))
    orchestra_min.orchestrate("?", (), pool_at(server.url), out=tmp_path / "run")
    if state == "key is cut":
        (tmp_path / "state/orchestra-min/key").write_bytes(b"")
    elif state != "a file":
        assert trust.own(tmp_path / "run")
        (tmp_path / "run" / "owner").write_bytes("ä".encode())
    assert not trust.own(tmp_path / "run")


def with_options(run, **changed):
    manifest = read_manifest(run)
    write_manifest(run, replace(manifest, options=replace(manifest.options, **changed)))


@pytest.mark.parametrize("flag", ["--replay", "--resume"])
def test_a_tool_that_only_the_folder_names_is_not_loaded(flag, run, call):
    code, _, line = call(flag, run)
    assert code == 2 and line.endswith(f"if you trust it, add --tools {run.parent}/mine.py:f\n")
    assert not (run.parent / "loaded").exists()


@pytest.mark.parametrize("flag", ["--replay", "--resume"])
def test_a_tool_is_loaded_from_where_the_user_says_it_is_now(flag, run, call):
    elsewhere = run.parent / "elsewhere"
    elsewhere.mkdir()
    (run.parent / "mine.py").rename(elsewhere / "mine.py")
    assert call(flag, run, "--tools", "elsewhere/mine.py:f")[1] == "42\n"
    assert (elsewhere / "loaded").exists()


def test_a_replay_starts_no_server_and_needs_none_named(run):
    """All that servers said is on the tape; without their list the replay ends there."""
    with_options(run, mcp=("touch started",), allow_hosts=("wiki:80",))
    with pytest.raises(orchestra_min.TapeMiss, match="mcp"):
        orchestra_min.replay(run, named=Named(tools=(f"{run.parent}/mine.py:f",)))


def test_what_the_line_asks_for_is_enough(run, call):
    with_options(run, mcp=("no 'server'",), allow_hosts=("wiki:80",))
    asked = call("--resume", run)[2].partition("if you trust it, add ")[2]
    line = call("--resume", run, *shlex.split(asked))[2]
    assert line.startswith("orchestra_min.py: --mcp")  # it does not start, but was let to


def test_a_tool_that_the_run_does_not_have_is_said(run, call):
    both = "--tools", f"{run.parent}/mine.py:f", "--tools", "other.py:g"
    code, _, line = call("--replay", run, *both)
    assert code == 2 and "/other.py:g: the run was started without; leave it out" in line


def test_what_leads_out_of_a_strangers_folder_is_refused(run, call):
    (run.parent / "bashrc").write_text("mine\n")
    (run / "trajectory.jsonl").unlink()
    (run / "trajectory.jsonl").symlink_to(run.parent / "bashrc")
    code, _, line = call("--resume", run, "--tools", f"{run.parent}/mine.py:f")
    assert code == 2 and "trajectory.jsonl: the run is not yours and this leads out of it" in line
    assert (run.parent / "bashrc").read_text() == "mine\n"


def test_a_fork_keeps_the_tools_that_the_user_named(run, call):
    evil = run.parent / "evil"
    evil.mkdir()
    (evil / "mine.py").write_text(MINE)
    with_options(run, tools=(f"{evil}/mine.py:f",))
    flags = "--from-round", "1", "--out", "fork", "--tools", "mine.py:f"
    assert call("--resume", run, *flags)[1] == "42\n"
    os.chdir(evil)
    assert call("--replay", "../fork")[1] == "42\n"
    assert not (evil / "loaded").exists()


def test_a_run_keeps_its_pool_and_says_so(endpoint, call, tmp_path):
    server = endpoint(lambda request: complete("42"))
    for name in ("its", "another"):
        pool = f'[[backend]]\nname = "{name}"\nbase_url = "{server.url}"\nmodel = "m"\n'
        (tmp_path / f"{name}.toml").write_text(pool)
    call("--question", "?", "--out", "run", "--backends", "its.toml")
    assert call("--resume", "run", "--backends", "its.toml")[:2] == (0, "42\n")
    code, _, line = call("--resume", "run", "--backends", "another.toml")
    assert code == 2 and "--backends: differs from the pool in run/run.json, which the" in line


def test_headers_of_the_environment_go_to_no_strangers_endpoint(run, call, monkeypatch):
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Gateway: a-secret-of-this-test")
    line = call("--resume", run, "--tools", f"{run.parent}/mine.py:f")[2]
    assert "OPENAI_CUSTOM_HEADERS" in line and "would go to" in line


COST = "cost unknown: a model used has no price, or a call got no answer\n"


def keyed(url: str) -> Pool:
    return pool_at(url, api_key_env="MY_MODEL_KEY")


def test_a_key_goes_to_no_address_that_only_the_folder_names(endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_MODEL_KEY", "a-secret-of-this-test")
    server, theirs = (endpoint(lambda request: complete("42")) for _ in range(2))
    orchestra_min.orchestrate("?", (), keyed(server.url), out=tmp_path / "run")
    (tmp_path / "run" / "tape.jsonl").unlink()
    manifest = replace(read_manifest(tmp_path / "run"), pool=keyed(theirs.url))
    write_manifest(tmp_path / "run", manifest)
    for own in (None, keyed(server.url)):
        with pytest.raises(ConfigError, match=f"MY_MODEL_KEY would go to {theirs.url}"):
            orchestra_min.resume(tmp_path / "run", named=Named(pool=own))
    assert theirs.requests == []
    assert (
        orchestra_min.resume(tmp_path / "run", named=Named(pool=keyed(theirs.url))).answer == "42"
    )


def test_a_key_of_a_worker_goes_to_no_address_that_only_the_folder_names(
    endpoint, tmp_path, monkeypatch
):
    monkeypatch.setenv("MINE", "k")
    server = endpoint(lambda request: complete("42"))
    beside = (Backend("worker 1", "x", "http://127.0.0.1:9/v1", "MINE"),)
    pool = replace(pool_at(server.url), beside=beside)
    orchestra_min.orchestrate("?", (), pool, None, tmp_path / "run")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    with pytest.raises(ConfigError, match="MINE would go to http://127.0.0.1:9/v1"):
        orchestra_min.resume(tmp_path / "run", named=Named(pool=pool_at(server.url)))


def test_the_line_that_resumes_is_enough(endpoint, call, tmp_path):
    answers = iter([delegate("look"), finish("seen"), Raw(401, {}), complete("42")])
    server = endpoint(lambda request: next(answers))
    (tmp_path / "mine.py").write_text(MINE)
    pool = f'[[backend]]\nname = "a"\nbase_url = "{server.url}"\napi_key_env = "MY_MODEL_KEY"\n'
    (tmp_path / "my pool.toml").write_text(pool)
    flags = "--backends", "my pool.toml", "--tools", "mine.py:f", "--allow-host", "wiki:80"
    line = call("--question", "?", "--out", "run", *flags)[2]
    again = line.partition("go on with: python orchestra_min.py ")[2]
    assert call(*shlex.split(again)) == (0, "42\n", COST)
