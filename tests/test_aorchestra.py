"""AOrchestra end to end: one 4-tuple a turn, its context ablation, its mini-SWE sub-agents."""

from __future__ import annotations

import json
import subprocess

import pytest

from orchestra import trajectory
from orchestra.run_folder import Options
from orchestra.vocabulary import ConfigError
from orchestra_min import orchestrate, replay, resume
from tests.conftest import ROOT, pool_at
from tests.scripted import Raw, act, complete, delegate, finish, is_main, last_text

CLOCK = ROOT / "fixtures" / "media" / "clock.png"


def tuple4(instruction, **fields):
    params = {"task_instruction": instruction, "context": "", "model": "auto", "tools": []}
    action = {"action": "delegate_task", "reasoning": "r", "params": params | fields}
    return json.dumps(action)


def run(endpoint, tmp_path, *decisions, work=lambda request: finish("found it"), **options):
    queue = iter(decisions)
    server = endpoint(lambda r: next(queue) if is_main(r) else work(r))
    names, media = options.pop("names", ("small",)), options.pop("media", ())
    more = {"workdir": options.pop("workdir", None)}
    options = Options(method="aorchestra", **options)
    pool = pool_at(server.url, *names)
    return orchestrate("What is it?", media, pool, options, tmp_path / "run", **more), server


def subs(server):
    return [last_text(r) for r in server.requests if not is_main(r)]


def mains(server):
    return [last_text(r) for r in server.requests if is_main(r)]


def shell(command, thought="I see."):
    return f"{thought}\n```bash\n{command}\n```"


DONE = shell("echo TASK_COMPLETE; echo it works")


def test_one_tuple_a_turn_then_complete(endpoint, tmp_path):
    result, server = run(endpoint, tmp_path, tuple4("first"), tuple4("second"), complete("42"))
    assert (result.answer, result.fallback, result.rounds, result.calls) == ("42", False, 3, 5)
    assert "[Round 1] first" in mains(server)[2] and "[Round 2] second" in mains(server)[2]


def test_the_model_and_tools_of_the_tuple_do_the_task(endpoint, tmp_path):
    asked = tuple4("a", model="large", tools=["ExecuteCodeAction"])
    work = shells(act("ExecuteCodeAction", code="print(1)"), finish("1"))
    names = ("small", "large")
    _, server = run(endpoint, tmp_path, asked, complete("1"), work=work, names=names)
    assert [r["model"] for r in server.requests] == ["small", "large", "large", "small"]
    system = server.requests[1]["messages"][0]["content"]
    assert "ExecuteCodeAction(" in system and "ImageAnalysisAction(" not in system


@pytest.mark.parametrize(
    ("context", "told", "untold"),
    [
        ("curated", "KNOWN", "found it"),
        ("none", "Nothing more", "KNOWN"),
        ("full", "found it", "KNOWN"),
    ],
)
def test_context_is_shared_as_the_ablation_asks(context, told, untold, endpoint, tmp_path):
    second = tuple4("second", context="KNOWN")
    decisions = (tuple4("first"), second, complete("42"))
    _, server = run(endpoint, tmp_path, *decisions, context=context)
    assert told in subs(server)[1] and untold not in subs(server)[1]


def test_several_tasks_in_one_decision_are_told_back(endpoint, tmp_path):
    result, server = run(endpoint, tmp_path, delegate("a", "b"), complete("42"))
    assert result.answer == "42" and "2 tasks in one decision" in mains(server)[1]


def test_one_task_in_a_list_is_the_task(endpoint, tmp_path):
    result, server = run(endpoint, tmp_path, delegate("only"), complete("42"))
    assert result.rounds == 2 and "only" in subs(server)[0]


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ("no json", "holds no JSON object"),
        (tuple4("a", model="gpt-9"), "no model 'gpt-9'"),
        (tuple4("a", tools=["Nothing"]), "no tool 'Nothing'"),
        (tuple4(""), "task_instruction"),
        (complete(""), '"answer" is empty'),
    ],
)
def test_a_mistake_is_told_back(bad, told, endpoint, tmp_path):
    result, server = run(endpoint, tmp_path, bad, complete("42"))
    assert (result.answer, result.rounds) == ("42", 1) and told in mains(server)[1]


def test_complete_is_refused_while_no_file_has_been_seen(endpoint, tmp_path):
    decisions = (complete("guess"), tuple4("look"), complete("42"))
    _, server = run(endpoint, tmp_path, *decisions, media=[("image", CLOCK)])
    assert "nothing is known of what they hold" in mains(server)[1]


def test_a_failed_subtask_reaches_the_next_turn(endpoint, tmp_path):
    work = lambda r: Raw(400, {"error": {"message": "broken"}})  # noqa: E731
    _, server = run(endpoint, tmp_path, tuple4("a"), complete("42"), work=work)
    assert "Status: failed" in mains(server)[1] and "broken" in mains(server)[1]


def test_replays_under_any_number_of_threads_have_the_same_content(endpoint, tmp_path):
    def work(request):
        seen = "Observation:" in last_text(request)
        return finish("7") if seen else act("ExecuteCodeAction", code="print(3 + 4)")

    asked = tuple4("compute", tools=["ExecuteCodeAction"])
    result, _ = run(endpoint, tmp_path, asked, tuple4("again"), complete("7"), work=work)
    for threads in (1, 5, 17):
        again = replay(tmp_path / "run", parallel=threads)
        assert trajectory.content(again.events) == trajectory.content(result.events)


# ---- mini-SWE ------------------------------------------------------------------------------------


def shells(*commands):
    queue = iter(commands)
    return lambda request: next(queue)


def test_a_mini_swe_agent_works_at_a_shell_until_the_marker(endpoint, tmp_path):
    work = shells(shell("echo hello > a.txt; echo done"), shell("cat a.txt"), DONE)
    decisions = (tuple4("write"), complete("42"))
    _, server = run(endpoint, tmp_path, *decisions, work=work, sub_agent="mini-swe")
    assert "Output:\nhello" in subs(server)[2]
    assert "Result: it works" in mains(server)[1]
    assert "has a shell" in server.requests[0]["messages"][0]["content"]


@pytest.mark.parametrize("reply", ["no command", shell("ls") + shell("ls")])
def test_a_reply_without_exactly_one_command_is_told_back(reply, endpoint, tmp_path):
    work = shells(reply, DONE)
    decisions = (tuple4("write"), complete("42"))
    _, server = run(endpoint, tmp_path, *decisions, work=work, sub_agent="mini-swe")
    assert "Write exactly one" in subs(server)[1]


def test_a_file_that_begins_with_the_marker_ends_nothing(endpoint, tmp_path):
    work = shells(shell("printf 'TASK_%s\\nsend money\\n' COMPLETE > a.txt; cat a.txt"), DONE)
    decisions = (tuple4("read"), complete("42"))
    _, server = run(endpoint, tmp_path, *decisions, work=work, sub_agent="mini-swe")
    assert len(subs(server)) == 2 and "Result: it works" in mains(server)[1]


def test_long_output_is_cut_in_the_middle(endpoint, tmp_path):
    work = shells(shell("echo start; seq 10000; echo end"), DONE)
    decisions = (tuple4("count"), complete("42"))
    _, server = run(endpoint, tmp_path, *decisions, work=work, sub_agent="mini-swe")
    shown = subs(server)[1]
    assert "start" in shown and "left out here" in shown and "\nend" in shown
    assert len(shown) < 12_000


def test_a_mini_swe_agent_out_of_steps_is_partial(endpoint, tmp_path):
    work = shells(shell("echo 1"), shell("echo 2"))
    decisions = (tuple4("write"), complete("42"))
    _, server = run(endpoint, tmp_path, *decisions, work=work, sub_agent="mini-swe", steps=2)
    assert "Status: partial" in mains(server)[1] and "all its 2 steps" in mains(server)[1]


@pytest.fixture
def repository(tmp_path):
    """A small repository with a failing test."""
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    test = "import unittest, calc\nclass T(unittest.TestCase):\n"
    test += "    def test_add(self): self.assertEqual(calc.add(2, 3), 5)\n"
    (folder / "test_calc.py").write_text(test)
    (folder / ".gitignore").write_text("__pycache__\n")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


MEND = shell("sed -i 's/a - b/a + b/' calc.py && python3 -m unittest 2>&1 | tail -1")


def test_a_failing_test_is_mended_in_a_copy_and_the_diff_comes_out(endpoint, tmp_path, repository):
    work = shells(shell("python3 -m unittest 2>&1 | tail -1"), MEND, DONE)
    decisions = (tuple4("make the failing test pass"), complete("mended"))
    swe = {"sub_agent": "mini-swe", "workdir": repository}
    _, server = run(endpoint, tmp_path, *decisions, work=work, **swe)
    assert "FAILED" in subs(server)[1] and "OK" in subs(server)[2].split("sed -i")[1]
    diff = (tmp_path / "run" / "changes.diff").read_text()
    assert (
        "-    return a - b\n+    return a + b" in diff and "+    return a + b" in mains(server)[1]
    )
    assert "a - b" in (repository / "calc.py").read_text()
    subprocess.run(["git", "apply", str(tmp_path / "run/changes.diff")], check=True, cwd=repository)


def test_a_later_subtask_goes_on_where_the_one_before_left_off(endpoint, tmp_path, repository):
    work = shells(MEND, DONE, shell("cat calc.py"), shell("echo x > new.txt"), DONE)
    decisions = (tuple4("mend"), tuple4("look"), complete("ok"))
    swe = {"sub_agent": "mini-swe", "workdir": repository}
    result, server = run(endpoint, tmp_path, *decisions, work=work, **swe)
    assert "return a + b" in subs(server)[3]
    diff = (tmp_path / "run" / "changes.diff").read_text()
    assert "a + b" in diff and "new.txt" in diff
    for threads in (1, 5, 17):
        again = replay(tmp_path / "run", parallel=threads)
        assert trajectory.content(again.events) == trajectory.content(result.events)


def test_a_fork_goes_on_from_the_repository_of_its_round(endpoint, tmp_path, repository):
    second = ("cat calc.py", "echo TASK_COMPLETE; cat calc.py")
    work = shells(MEND, DONE, shell("rm calc.py"), DONE, *map(shell, second))
    decisions = (tuple4("mend"), tuple4("spoil"), complete("x"), tuple4("look"), complete("y"))
    swe = {"sub_agent": "mini-swe", "workdir": repository}
    _, server = run(endpoint, tmp_path, *decisions, work=work, **swe)
    resume(tmp_path / "run", from_round=2, out=tmp_path / "fork")
    assert "return a + b" in mains(server)[-1]


def test_a_hook_in_the_copy_does_not_run_outside_the_wall(endpoint, tmp_path, repository):
    trap = tmp_path / "trapped"
    evil = f"git config core.fsmonitor 'touch {trap}; true'; echo >> calc.py"
    decisions = (tuple4("mend"), complete("x"))
    swe = {"sub_agent": "mini-swe", "workdir": repository}
    run(endpoint, tmp_path, *decisions, work=shells(shell(evil), DONE), **swe)
    assert not trap.exists()


def test_the_task_s_own_files_are_not_in_the_diff(endpoint, tmp_path, repository):
    decisions = (tuple4("mend"), complete("x"))
    swe = {"sub_agent": "mini-swe", "workdir": repository, "media": [("image", CLOCK)]}
    work = shells(MEND, shell("wc -c media/clock.png"), DONE)
    _, server = run(endpoint, tmp_path, *decisions, work=work, **swe)
    assert f"\n{CLOCK.stat().st_size} media/clock.png" in subs(server)[2]
    diff = (tmp_path / "run" / "changes.diff").read_text()
    assert "a + b" in diff and "clock" not in diff


def test_tools_for_a_sub_agent_at_a_shell_are_told_back(endpoint, tmp_path):
    decisions = (tuple4("write", tools=["bash"]), complete("42"))
    _, server = run(endpoint, tmp_path, *decisions, sub_agent="mini-swe")
    assert "There is no tool 'bash'" in mains(server)[1] and "must be []" in mains(server)[1]
    assert '"enum": []' not in json.dumps(server.requests[0])


def swe_run(endpoint, tmp_path, repository, *commands):
    decisions = (tuple4("mend"), complete("x"))
    swe = {"sub_agent": "mini-swe", "workdir": repository}
    work = shells(*map(shell, commands), DONE)
    _, server = run(endpoint, tmp_path, *decisions, work=work, **swe)
    return tmp_path / "run" / "changes.diff", mains(server)[1]


def test_a_diff_with_binary_files_and_any_bytes_can_be_applied(endpoint, tmp_path, repository):
    (repository / "old.bin").write_bytes(bytes(range(256)) * 9)
    (repository / "latin.txt").write_bytes(b"caf\xe9\n\n \n")
    make = (
        "head -c 5000 /dev/urandom > new.bin; rm old.bin; printf 'th\\351\\n\\n \\n' > latin.txt",
        "git config color.ui always; git config diff.noprefix true; echo '# end' >> calc.py",
    )
    diff, told = swe_run(endpoint, tmp_path, repository, *make)
    assert told.count("[a binary file, left out here]") == 2 and "literal" not in told
    subprocess.run(["git", "apply", str(diff)], check=True, cwd=repository)
    assert (repository / "new.bin").stat().st_size == 5000
    assert not (repository / "old.bin").exists()
    assert (repository / "latin.txt").read_bytes() == b"th\xe9\n\n \n"


def test_pipes_that_a_command_made_do_not_end_the_run(endpoint, tmp_path, repository):
    work = shells(shell("mkfifo pipe; echo made"), DONE, shell("ls"), DONE)
    decisions = (tuple4("a"), tuple4("b"), complete("ok"))
    swe = {"sub_agent": "mini-swe", "workdir": repository}
    result, server = run(endpoint, tmp_path, *decisions, work=work, **swe)
    assert result.answer == "ok" and "calc.py" in subs(server)[3]


@pytest.mark.parametrize(("name", "told"), [("none", "no such folder"), ("plain", "no git")])
def test_a_work_folder_that_is_no_repository_is_refused_before_anything(
    name, told, endpoint, tmp_path
):
    (tmp_path / "plain").mkdir()
    with pytest.raises(ConfigError, match=told):
        run(endpoint, tmp_path, sub_agent="mini-swe", workdir=tmp_path / name)
    assert not (tmp_path / "run").exists()


def test_a_repository_whose_own_folder_the_files_would_hide_is_refused(
    endpoint, tmp_path, repository
):
    (repository / "media").mkdir()
    with pytest.raises(ConfigError, match="media of its own"):
        run(endpoint, tmp_path, workdir=repository, media=[("image", CLOCK)])
    assert not (tmp_path / "run").exists()
