"""The mini-SWE sub-agent: its command, its work folder over a kill, and what comes out of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from orchestra import changes, repository
from orchestra.run_folder import Options
from orchestra.vocabulary import ConfigError
from orchestra_min import orchestrate, resume
from subagents import bash_block
from tests.conftest import ROOT, pool_at
from tests.scripted import complete, is_main, last_text

DONE = "echo TASK_COMPLETE; echo it works"
DELEGATE = json.dumps({"action": "delegate_task", "params": {"task_instruction": "do it"}})


def git(folder, *arguments):
    who = ("-c", "user.name=a", "-c", "user.email=b", "-c", "protocol.file.allow=always")
    call = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(call, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repo(tmp_path):
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "a").write_text("x\n")
    git(folder, "init", "-q")
    return folder


def answering(*rounds):
    """A main agent that delegates as often as there are rounds; each is the commands of one."""
    state = {"round": -1, "step": 0}

    def respond(request):
        if is_main(request):
            state["round"], state["step"] = state["round"] + 1, 0
            return DELEGATE if state["round"] < len(rounds) else complete("ok")
        commands = [*rounds[state["round"]], DONE]
        state["step"] += 1
        return f"I see.\n```bash\n{commands[state['step'] - 1]}\n```"

    return respond


def swe(endpoint, tmp_path, repo, *rounds, steps=30, out="run"):
    """Runs it; returns the run folder and what the endpoint was asked."""
    server = endpoint(answering(*rounds))
    options = Options(method="aorchestra", sub_agent="mini-swe", steps=steps)
    orchestrate("What?", (), pool_at(server.url), options, tmp_path / out, workdir=repo)
    return tmp_path / out, server.requests


def applied(run, repo):
    """The repository after `git apply changes.diff`."""
    git(repo, "apply", "--whitespace=nowarn", str(run / "changes.diff"))
    return {
        str(p.relative_to(repo)): p.read_bytes()
        for p in repo.rglob("*")
        if ".git" not in p.parts and p.is_file()
    }


# ---- one command ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("```bash\ncat > f <<'END'\n```python\nx\n```\nrest\nEND\n```", "cat > f <<'END'\n```python\nx\n```\nrest\nEND"),
        ("```bash\ncat > f <<END\n```\nx\n```\nEND\nrm a\n```\n", "cat > f <<END\n```\nx\n```\nEND\nrm a"),
        ("```bash\nprintf '\n```\n' > f\n```", "printf '\n```\n' > f"),
        ("````bash\necho '```bash\nls\n```'\n````", "echo '```bash\nls\n```'"),
        ("I see.\r\n```bash\r\nls\r\n```\r\n", "ls"),
        ("```Bash\nls\n```\nThat lists them.", "ls"),
        ("<think>Or ```bash\nrm a\n```?</think>\n```bash\nls\n```", "ls"),
        ("Or ```bash\nrm a\n```\n?</think>\n```bash\nls\n```", "ls"),
        ("```bash\necho '<think>' '</think>'\n```", "echo '<think>' '</think>'"),
    ],
)  # fmt: skip
def test_a_command_is_read_to_its_end(reply, command):
    assert bash_block.read(reply, cut=False)[1:] == (command, "")


@pytest.mark.parametrize(
    "reply",
    [
        "```bash\nls\n```\n```bash\nrm a\n```",
        "```bash\nls\n```\nIt will print:\n```\nrm a\n```",
        "<think>```bash\nrm a\n```</think>\nI am done.",
        "I think of ```bash\nrm a\n```</think>\nI am done.",
        "```bash\nls\n```\n<think>```bash\nrm a\n```</think>",
        "```bash\ncat > f <<END\nhalf",
        "```bash\nls ``` it",
    ],
)
def test_what_can_be_read_in_two_ways_is_not_run(reply):
    block = bash_block.read(reply, cut=False)
    assert not block.command and "```" in block.mistake


def test_a_reply_cut_at_an_inner_fence_is_not_run():
    block = bash_block.read("```bash\ncat > f <<END\n```python\nx\n```\nha", cut=True)
    assert not block.command and "cut off" in block.mistake


def test_a_silent_command_is_not_told_to_use_print(endpoint, tmp_path, repo):
    _, requests = swe(endpoint, tmp_path, repo, ["touch b"])
    assert "[the command ended well and printed nothing]" in last_text(requests[2])


def test_the_marker_of_a_command_that_fails_ends_nothing(endpoint, tmp_path, repo):
    _, requests = swe(endpoint, tmp_path, repo, ["echo TASK_COMPLETE; echo no; exit 3"])
    assert "Result: it works" in last_text(requests[-1])


# ---- what was changed ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "git init -q new; echo n > new/f",
        "git init -q new; cd new; echo n > f; git add f; git -c user.name=a -c user.email=b commit -qm n",
        "mkdir new; echo n > new/f; git tag -d base",
        "mkdir new; echo n > new/f; rm -rf .git",
        "mkdir new; echo n > new/f; git add -A; git -c user.name=a -c user.email=b commit -qm n",
        "mkdir new; echo n > new/f; chmod 000 new/f a",
        "mkdir new git~1; echo n > new/f; echo n > git~1/config",
        "mkdir new; echo n > new/f; printf '* -diff\\n' > .git/info/attributes",
    ],
)  # fmt: skip
def test_whatever_is_done_to_git_the_diff_is_of_the_files(command, endpoint, tmp_path, repo):
    run, _ = swe(endpoint, tmp_path, repo, [f"echo y > a; {command}"])
    assert applied(run, repo) == {"a": b"y\n", "new/f": b"n\n"}


def test_a_tracked_file_that_is_ignored_is_in_the_diff_and_a_new_one_is_not(
    endpoint, tmp_path, repo
):
    (repo / ".gitignore").write_text("build/\n:odd\n")
    (repo / "build").mkdir()
    (repo / "build" / "keep").write_text("old\n")
    git(repo, "add", "-f", "build/keep")
    run, _ = swe(endpoint, tmp_path, repo, ["echo new > build/keep; touch build/n :odd; rm a"])
    after = applied(run, repo)
    assert after == {".gitignore": b"build/\n:odd\n", "build/keep": b"new\n"}


def test_a_long_diff_applies_and_the_model_reads_its_ends(endpoint, tmp_path, repo):
    run, requests = swe(endpoint, tmp_path, repo, ["seq 100000 > numbers"])
    assert (run / "changes.diff").stat().st_size > 600_000
    assert "left out here" in last_text(requests[-1]) and len(last_text(requests[-1])) < 12_000
    assert applied(run, repo)["numbers"].endswith(b"\n100000\n")


def test_too_large_files_are_named_and_the_rest_applies(endpoint, tmp_path, repo, monkeypatch):
    monkeypatch.setattr(changes, "MAX_BYTES", 1000)
    make = "head -c 2000 /dev/zero > $'b\\nig'; echo y > a"
    run, requests = swe(endpoint, tmp_path, repo, [make])
    assert "left out of it: 'b\\nig'" in last_text(requests[-1])
    assert applied(run, repo) == {"a": b"y\n"}


def test_where_nothing_can_be_compared_no_old_diff_stays(
    endpoint, tmp_path, repo, monkeypatch, caplog
):
    swe(endpoint, tmp_path, repo, ["echo y > a"])
    assert (tmp_path / "run" / "changes.diff").exists()
    monkeypatch.setattr(changes, "DIFF", "diff base nothing")
    diff, note = changes.write(tmp_path / "run", tmp_path / "run" / "work" / "r1-t1")
    assert not diff and "could not be compared" in note
    assert "r1-t1 could not be compared (fatal: " in caplog.text
    assert not list((tmp_path / "run").glob("changes.diff*"))


def test_a_folder_behind_a_link_is_not_read(endpoint, tmp_path, repo):
    (repo / "d").mkdir()
    (repo / "d" / "f").write_text("mine\n")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_text("of the user\n")
    run, _ = swe(endpoint, tmp_path, repo, [f"rm -r d; ln -s {tmp_path}/d d"])
    assert "of the user" not in (run / "changes.diff").read_text()
    assert applied(run, repo).keys() == {"a"} and (repo / "d").is_symlink()


def test_a_command_that_fills_the_disk_does_not_delete_the_repository(endpoint, tmp_path, repo):
    fill = "echo y > a; for i in $(seq 6000); do echo > f$i; done; sleep 1"
    run, requests = swe(endpoint, tmp_path, repo, [fill, "cat a"])
    assert "all of its files were deleted" in last_text(requests[2])
    assert "Output:\nx" in last_text(requests[3]) and not (run / "changes.diff").read_bytes()


def test_a_fork_whose_rest_only_completes_has_the_diff_of_what_it_holds(endpoint, tmp_path, repo):
    run, _ = swe(endpoint, tmp_path, repo, ["echo 1 >> a"], ["echo 2 >> a"])
    server = endpoint(lambda request: complete("ok"))
    text = (run / "run.json").read_text()
    url = json.loads(text)["pool"]["backends"][0]["base_url"]
    (run / "run.json").write_text(text.replace(url, server.url))
    resume(run, from_round=2, out=tmp_path / "fork")
    assert applied(tmp_path / "fork", repo) == {"a": b"x\n1\n"}


# ---- a command that a kill ended -----------------------------------------------------------------


@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGINT])
def test_a_command_cut_off_changes_its_folder_once(signal_, endpoint, tmp_path, repo):
    server = endpoint(answering(["echo 1 >> a", "echo 2 >> a; sleep 3", "cat a"]))
    flags = ["--method", "aorchestra", "--sub-agent", "mini-swe", "--workdir", str(repo)]
    start = [sys.executable, str(ROOT / "orchestra_min.py"), "--question", "?", "--model", "m"]
    run = tmp_path / "run"
    process = subprocess.Popen(
        [*start, *flags, "--out", str(run)], env={**os.environ, "OPENAI_BASE_URL": server.url},
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    changed, deadline = run / "work" / "r1-t1" / "a", time.monotonic() + 30
    while time.monotonic() < deadline:
        if changed.exists() and changed.read_text() == "x\n1\n2\n":
            break
        time.sleep(0.02)
    process.send_signal(signal_)
    process.wait(30)
    resume(run)
    assert changed.read_text() == "x\n1\n2\n" and applied(run, repo) == {"a": b"x\n1\n2\n"}


# ---- what is copied ------------------------------------------------------------------------------


def copied(tmp_path, repo, run="run"):
    folder = tmp_path / run
    folder.mkdir(parents=True, exist_ok=True)
    repository.copy_into(folder, repo)
    found = (folder / "workdir").rglob("*")
    return {str(p.relative_to(folder / "workdir")) for p in found if ".git" not in p.parts}


def test_what_git_ignores_is_neither_copied_nor_sent(endpoint, tmp_path, repo):
    (repo / ".gitignore").write_text(".env\n")
    (repo / ".env").write_text("PASSWORD=hunter2horse\n")
    run, requests = swe(endpoint, tmp_path, repo, ["cat .env; ls -a"])
    assert "hunter2horse" not in json.dumps(requests)
    assert "hunter2horse" not in (run / "tape.jsonl").read_text()
    assert ".gitignore" in last_text(requests[2])


def test_odd_names_links_and_modes_are_copied_as_they_are(tmp_path, repo):
    for name in ("-n", "new\nline", ":(top)x", "*", "sp ace", "e.sh", "gone"):
        (repo / name).write_text("1")
    (repo / "link").symlink_to("/nowhere")
    (repo / "loop").symlink_to(".")
    (repo / "e.sh").chmod(0o755)
    git(repo, "add", "-A")
    (repo / "gone").unlink()
    names = {"a", "-n", "new\nline", ":(top)x", "*", "sp ace", "e.sh", "link", "loop"}
    found = {name for name in copied(tmp_path, repo) if not name.startswith("loop/")}
    assert found == names and (tmp_path / "run" / "workdir" / "loop").is_symlink()
    assert (tmp_path / "run" / "workdir" / "e.sh").stat().st_mode & 0o777 == 0o755


def test_a_folder_that_became_a_link_is_not_followed(tmp_path, repo):
    (repo / "d").mkdir()
    (repo / "d" / "f").write_text("1")
    git(repo, "add", "-A")
    (repo / "d").rename(tmp_path / "elsewhere")
    (repo / "d").symlink_to(tmp_path / "elsewhere")
    copied(tmp_path, repo)
    assert (tmp_path / "run" / "workdir" / "d").is_symlink()


def test_submodules_and_repositories_inside_are_copied_as_their_files(tmp_path, repo):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "s").write_text("1")
    git(tmp_path / "other", "init", "-q")
    git(tmp_path / "other", "add", "-A")
    git(tmp_path / "other", "commit", "-qm", "s")
    git(repo, "submodule", "-q", "add", str(tmp_path / "other"), "sub")
    git(repo, "clone", "-q", str(tmp_path / "other"), "inner")
    (repo / "sub" / "new").write_text("1")
    names = {"a", ".gitmodules", "sub", "sub/s", "sub/new", "inner", "inner/s"}
    assert copied(tmp_path, repo) == names


@pytest.mark.parametrize("run", ["repo/now", "repo/runs/now", "repo/runs/now/aorchestra"])
def test_run_folders_inside_the_repository_are_left_out(run, tmp_path, repo):
    old, beside = repo / "runs" / "old", repo / "runs" / "now" / "react"
    for other in (tmp_path / run, old, beside):
        other.mkdir(parents=True)
        (other / "lock").touch()
    (old / "run.json").touch()
    if run != "repo/runs/now/aorchestra":  # beside which it has just begun
        (beside / "run.json").touch()
    fixture = repo / "fixtures" / "old"
    fixture.mkdir(parents=True)
    for name in ("lock", "run.json"):
        (fixture / name).touch()
    git(repo, "add", "fixtures")
    tracked = {"fixtures", "fixtures/old", "fixtures/old/lock", "fixtures/old/run.json"}
    assert copied(tmp_path, repo, run) == {"a", *tracked}


def test_a_git_folder_that_git_can_not_read_is_one_line(tmp_path):
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    with pytest.raises(ConfigError, match="git can not read it .fatal: not a git repository"):
        repository.copy_into(tmp_path / "run", tmp_path / "repo")
