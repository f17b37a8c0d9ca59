"""The mini-SWE sub-agent: its commands, its work folder, and the diff."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestra.coding import worktree
from orchestra.coding.at_shell import change_of, check
from orchestra.coding.mini_swe import read_command
from orchestra.command import terminal
from orchestra.variation.fork import run_fork
from tests.conftest import ConfigError, Options, needs_git, needs_sandbox
from tests.program import CLOCK, resume, runs
from tests.scripted import complete
from tests.test_aorchestra import tuple4

pytestmark = needs_git
DONE = "echo TASK_COMPLETE; echo it works"


def git(folder, *arguments):
    subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True)


@pytest.fixture
def repo(tmp_path):
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "a").write_text("x\n")
    git(folder, "init", "-q")
    return folder


run = runs("aorchestra")


@pytest.fixture(params=[pytest.param("", marks=needs_sandbox)])
def swe(run, repo):
    """Runs one sub-task for each list of commands; each ends with the marker."""

    def start(*rounds, turns=(), repo=repo, **options):
        replies = (f"I see.\n```bash\n{c}\n```" for commands in rounds for c in (*commands, DONE))
        turns = turns or [*[tuple4("do it")] * len(rounds), complete("ok")]
        check(Options(agent="mini-swe"), repo, with_media="media" in options)
        how = {"agent": "mini-swe", "more": {"workdir": str(repo)}, **options}
        change = change_of(run.parent / "run", repo)
        return run(*turns, work=lambda _: next(replies), change_parts=change, **how)

    return start


def applied(folder, repo):
    """The files of the repository after `git apply changes.diff`."""
    git(repo, "apply", "--whitespace=nowarn", folder / "changes.diff")
    files = (p for p in repo.rglob("*") if ".git" not in p.parts and p.is_file())
    return {str(p.relative_to(repo)): p.read_bytes() for p in files}


# ---- one command ---------------------------------------------------------------------------------


@pytest.mark.parametrize("reply, command", [
    ("```bash\ncat > f <<'END'\n```python\nx\n```\nrest\nEND\n```", ""),
    ("````bash\ncat > f <<'END'\n```python\nx\n```\nEND\n````", "cat > f <<'END'\n```python\nx\n```\nEND"),
    ("I see.\r\n```bash\r\nls\r\n```\r\n", "ls"), ("```bash\nls\n```\nThat lists them.", "ls"),
    ("<think>Or ```bash\nrm a\n```?</think>\n```bash\nls\n```", "ls"), ("Or ```bash\nrm a\n```\n?</think>\n```bash\nls\n```", "ls"),
    ("```bash\nls\n```\n```bash\nrm a\n```", ""), ("```bash\nls\n```\nIt will print:\n```\nrm a\n```", ""),
    ("I think of ```bash\nrm a\n```</think>\nI am done.", ""),
    *((f"<think>a</think>b\n<think>\n```bash\nrm a\n```\n{end}I am done.", "") for end in ("</think>", "")),
    ("```bash\n" * 30_000, ""), ("```bash\ncat > f <<END\nhalf", ""), ("```bash\nls ``` it", ""), ("no command", ""),
])  # fmt: skip
def test_an_ambiguous_command_is_not_run(reply, command):
    _, found, mistake = read_command(reply, cut=False)
    assert found == command and bool(mistake) is not bool(command)


def test_a_reply_cut_at_an_inner_fence_is_not_run():
    assert "cut off" in read_command("```bash\ncat > f <<END\n```\nha", cut=True)[2]


def test_a_sub_agent_works_at_a_shell_until_the_marker(run, swe):
    swe(["echo hello > b; touch c", "cat b"])
    assert "[the command succeeded and printed nothing]" in run.prompts[1]
    assert "Output:\nhello" in run.prompts[2] and "Result: it works" in run.mains[1]


@pytest.mark.parametrize("command", [DONE + "; exit 3", "printf TASK_%s COMPLETE > b; cat b"])
def test_only_a_command_that_prints_the_marker_and_succeeds_ends_the_task(command, run, swe):
    swe([command])
    assert len(run.prompts) == 2 and "Result: it works" in run.mains[1]


def test_a_sub_agent_out_of_steps_is_partial_and_reports_its_diff(run, swe):
    swe(["echo 1", "echo 2 > b"], steps=2)
    assert all(text in run.mains[1] for text in ("Status: partial", "all its 2 steps", "+2"))


def test_the_end_is_announced_in_the_last_fifth_of_the_steps(run, swe):
    swe([f"echo {number}" for number in range(9)], steps=10)
    warned = [n for n, prompt in enumerate(run.prompts, 1) if "steps are left" in prompt]
    assert warned == [9] and "Only 2 steps are left" in run.prompts[8]
    assert "This is the last step" in run.prompts[9]
    assert not any("This is the last step" in prompt for prompt in run.prompts[:9])


# ---- what was changed ----------------------------------------------------------------------------


def test_the_main_agent_reads_the_top_level_and_that_nothing_was_changed(run, swe):
    swe(["cat a"])
    assert "Its top level: a" in run.mains[0] and "is unchanged: there is no diff" in run.mains[1]
    assert not (run.folder / "changes.diff").exists()
    row = {"state": "answered", "why": "", "failed_subtasks": 0, "run": str(run.folder)}
    assert list(terminal._notes(row, is_quiet=True)) == [
        f"no file of --workdir was changed; see {run.folder}/log.txt"
    ]


def test_an_answer_is_a_fallback_while_nobody_is_done_and_nothing_is_changed(run, swe):
    turns = [tuple4("do it"), *[complete("It works.")] * 3]
    result = swe(["echo 1", "echo 2"], turns=turns, steps=2)
    assert (result.state, result.answer) == ("fallback", "It works.")
    assert "No sub-agent has reported that its task is done" in result.ending.why


def test_a_sub_agent_that_changed_nothing_must_say_why(run, swe):
    swe(["echo TASK_COMPLETE"])
    assert "the diff of the repository is empty" in run.prompts[1]
    assert "Status: done" in run.mains[1] and "Result: it works" in run.mains[1]


def test_a_last_step_without_a_report_is_taken_as_it_is(run, swe):
    swe(["echo TASK_COMPLETE"], steps=1)
    assert "Status: done" in run.mains[1]


def test_a_sub_agent_that_changed_a_file_may_end_without_a_report(run, swe):
    swe(["echo 2 > b; echo TASK_COMPLETE"])
    assert len(run.prompts) == 1 and "Result: I see." in run.mains[1]


def test_commands_find_the_copy_at_the_path_of_the_repository_with_its_environment(run, swe, repo):
    (repo / ".venv" / "bin").mkdir(parents=True)
    (repo / ".venv" / "pyvenv.cfg").write_text("")
    tool = repo / ".venv" / "bin" / "checker"
    writes = f"echo x > {repo}/.venv/new || echo read-only"
    tool.write_text(f"#!/bin/sh\ncat {repo}/a; echo $0; {writes}")
    tool.chmod(0o755)
    (repo / ".git" / "info" / "exclude").write_text(".venv")
    swe([f"echo mine > {repo}/a; checker; git status --short"])
    assert f"mine\n{tool}\n" in run.prompts[1]
    assert "read-only\n M a\n" in run.prompts[1]
    assert (repo / "a").read_text() == "x\n" and applied(run.folder, repo)["a"] == b"mine\n"


@pytest.mark.parametrize("command", [
    "rm -rf .git", "chmod 000 new/f a; mkfifo pipe .gitignore",
    "printf '* -diff\\n' > .git/info/attributes; git config color.ui always; git config diff.noprefix true",
    "git add -A; git -c user.name=a -c user.email=b commit -qm n", "git config core.fsmonitor 'touch TRAP; true'",
])  # fmt: skip
def test_the_diff_does_not_depend_on_what_commands_do_to_git(command, run, swe, repo, tmp_path):
    """And no command named in the copy's git settings runs outside the sandbox."""
    command = command.replace("TRAP", f"{tmp_path}/trapped")
    swe([f"echo y > a; mkdir new; echo n > new/f; {command}"], ["cat a"])
    assert "Output:\ny" in run.prompts[-1] and "-x\n+y" in run.mains[1]
    assert (repo / "a").read_text() == "x\n" and not (tmp_path / "trapped").exists()
    assert applied(run.folder, repo) == {"a": b"y\n", "new/f": b"n\n"}


def test_a_diff_with_binary_files_and_any_bytes_can_be_applied(run, swe, repo):
    (repo / "old.bin").write_bytes(bytes(range(256)) * 9)
    binary = "head -c 5000 /dev/urandom > new.bin; rm old.bin"
    swe([f"{binary}; seq 100000 > numbers; printf 'th\\351\\n\\n \\n' > a"])
    assert run.mains[1].count("[a binary file, left out here]") == 2 and len(run.mains[1]) < 12_000
    after = applied(run.folder, repo)
    assert (after.keys(), after["a"]) == ({"a", "new.bin", "numbers"}, b"th\xe9\n\n \n")
    assert after["numbers"].endswith(b"\n100000\n")


def test_a_repository_inside_the_copy_runs_nothing_outside_the_sandbox(run, swe, repo, tmp_path):
    """Its settings may name commands, and a later `git add` would obey them."""
    made = "git init -q sub && cd sub && echo 1 > f && echo '* filter=x' > .gitattributes && git add -A"
    made += " && git -c user.name=a -c user.email=b commit -qm 1"
    settings = f"git config filter.x.clean 'sh -c \"touch {tmp_path}/got; cat\"'"
    swe([f"{made} && {settings}"], ["echo 2 > sub/f"])
    assert not (tmp_path / "got").exists()
    assert applied(run.folder, repo)["sub/f"] == b"2\n"


def test_a_media_folder_is_kept_and_ignored_files_are_not_sent(run, swe, repo, monkeypatch):
    """Nor are they in a diff."""
    (repo / "media").mkdir()
    (repo / "media/logo").write_text("1\n")
    (repo / ".gitignore").write_text("*.o\nkept\n.env\n")
    (repo / "kept").write_text("1\n")
    git(repo, "add", "-f", ".")
    (repo / ".env").write_text("PASSWORD=hunter2horse\n")
    edit = "echo 2 > media/logo; echo 2 > kept; mkdir cache; echo '*' > cache/.gitignore"
    swe([f"cat .env; ls -a; {edit}; touch cache/x y.o new"])
    assert "hunter2horse" not in json.dumps(run.requests) and ".gitignore" in run.prompts[1]
    monkeypatch.chdir(run.folder)
    assert "+2" in worktree.changes(Path("work/r1-t1"))  # run folders are relative by default
    after = applied(run.folder, repo)
    assert (after["media/logo"], after["kept"], after["new"]) == (b"2\n", b"2\n", b"")
    assert after.keys() == {"a", ".env", ".gitignore", "media/logo", "kept", "new"}


def test_the_files_of_the_task_are_in_the_folder_and_not_in_the_diff(run, swe):
    swe(["echo y > a; wc -c media/clock.png"], media=[CLOCK])
    assert f"\n{CLOCK.stat().st_size} media/clock.png" in run.prompts[1]
    assert "clock" not in (run.folder / "changes.diff").read_text()


def test_a_fork_continues_in_the_folder_of_its_round(swe, run, repo, tmp_path):
    """And runs nothing outside the sandbox, even in a run folder made by someone else."""
    turns = *[tuple4("do")] * 3, complete("x"), tuple4("do"), complete("ok")
    swe(*([f"echo {n} >> a"] for n in range(4)), turns=turns)
    base, got = run.folder / "workdir.git", f"touch {tmp_path}/GOT; cat"
    for key in ("filter.x.clean", "diff.x.textconv", "core.fsmonitor"):
        git(base, "config", key, got)
    (base / "info").mkdir(exist_ok=True)
    (base / "info/attributes").write_text("* filter=x diff=x\n")
    fork = tmp_path / "fork"
    run_fork(run.folder, fork, 3, change=change_of(fork, repo))
    assert applied(tmp_path / "fork", repo) == {"a": b"x\n0\n1\n3\n"}
    (tmp_path / "fork/workdir.git/refs/heads/main").write_text(f"--output={tmp_path}/GOT")
    second = tmp_path / "fork-2"
    with pytest.raises(ConfigError, match="fork-2"):
        run_fork(fork, second, 2, change=change_of(second, repo))
    assert not (tmp_path / "GOT").exists()


def test_a_command_that_a_kill_cut_off_runs_again_in_its_folder(run, swe, repo):
    swe(["echo 1 >> a"])
    tape = run.folder / "tape.jsonl"
    rows = tape.read_text().splitlines(keepends=True)
    tape.write_text("".join(row for row in rows if '"code": "echo 1' not in row))
    (run.folder / "trajectory.jsonl").write_text("")
    resume(run.folder, change=change_of(run.folder, repo))
    assert (run.folder / "work" / "r1-t1" / "a").read_text() == "x\n1\n1\n"


# ---- what is copied ------------------------------------------------------------------------------


def test_files_with_odd_names_are_copied_but_no_link_target_and_no_run_folder(tmp_path, repo):
    names = ("-n", "new\nline", ":(top)x", "*", "sp ace", "d/f")
    (repo / "d").mkdir()
    for name in (*names, "gone"):
        (repo / name).write_text("1")
    (repo / "link").symlink_to("/nowhere")
    git(repo, "add", "-A")
    (repo / "gone").unlink()
    (repo / "d").rename(tmp_path / "elsewhere")
    (repo / "d").symlink_to(tmp_path / "elsewhere")
    run = repo / "runs" / "now"
    run.mkdir(parents=True)
    (run / "lock").touch()
    shutil.copytree(CLOCK.parents[1] / "runs/equinox", repo / "runs" / "earlier")
    worktree.copy_into(run, repo, print)
    copied = (str(p.relative_to(run / "workdir")) for p in (run / "workdir").rglob("*"))
    assert {p for p in copied if ".git" not in p} == {"a", "link", "d", *names[:-1]}


@pytest.mark.parametrize("name, told", [
    ("plain", "no .git"), ("broken", "cannot be copied .fatal: not"), ("repo", "a folder media"),
])  # fmt: skip
def test_a_folder_that_cannot_be_worked_in_is_refused(name, told, swe, run, repo, tmp_path):
    for folder in ("plain", "broken/.git", "repo/media"):
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(ConfigError, match=told):
        swe(repo=tmp_path / name, media=[CLOCK])
    assert not (tmp_path / "run").exists()
