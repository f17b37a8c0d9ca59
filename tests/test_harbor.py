"""benchmarks/harbor_agent.py: a trial of the real harness, whose container is a sandbox here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, needs_sandbox
from tests.program import pool_file
from tests.scripted import complete, is_main
from tests.test_aorchestra import tuple4

pytest.importorskip("harbor", reason="needs Harbor (Python 3.12: pip install harbor)")
pytestmark = needs_sandbox
TASK = """schema_version = "1.1"
[agent]
timeout_sec = 120.0
[verifier]
timeout_sec = 60.0
[environment]
network_mode = "no-network"
"""
TEST = "grep -qx 42 /app/answer.txt && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt"


@pytest.fixture
def trial(tmp_path, endpoint):
    """`trial(*commands)`: the result of a trial in which a sub-agent gives these commands."""
    task = tmp_path / "task"
    (task / "tests").mkdir(parents=True)
    (task / "environment").mkdir()
    (task / "task.toml").write_text(TASK)
    (task / "instruction.md").write_text("Write 42 into /app/answer.txt.")
    (task / "environment/Dockerfile").write_text("FROM scratch\n")
    (task / "tests/test.sh").write_text(f"#!/bin/bash\n{TEST}\n")

    def trial(*commands, flags=()):
        replies = [
            f"I see.\n```bash\n{c}\n```" for c in (*commands, "echo TASK_COMPLETE; echo done")
        ]
        decisions = [tuple4("write it"), complete("written")]

        def respond(request):
            trial.requests.append(request)
            return decisions.pop(0) if is_main(request) else replies.pop(0)

        pool = pool_file(tmp_path, endpoint(respond).url, m=(1, 2))
        words = f"run -p {task} -e tests.harbor_local:LocalEnvironment -o {tmp_path}/jobs -y -q"
        words += f" --agent benchmarks.harbor_agent:HarborAgent --ak backends={pool}"
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        harbor = Path(sys.executable).with_name("harbor")
        done = subprocess.run(
            [harbor, *words.split(), *flags], env=env, cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (result,) = (tmp_path / "jobs").glob("*/*/result.json")
        trial.folder = result.parent
        return json.loads(result.read_text())

    trial.requests = []
    return trial


def test_commands_of_sub_agents_run_in_the_container_and_the_tests_of_the_task_judge_them(trial):
    result = trial("echo 42 > answer.txt", "cat answer.txt; ls /nothing")
    assert result["verifier_result"]["rewards"] == {"reward": 1.0}
    assert result["agent_result"]["cost_usd"] > 0
    last = str(trial.requests[-2]["messages"])
    assert "42" in last and "exit status 2" in last  # what the sub-agent has read


def test_a_trial_that_does_not_do_the_task_has_no_reward_and_its_run_replays(trial):
    result = trial("echo 41 > answer.txt")
    assert result["verifier_result"]["rewards"] == {"reward": 0.0}
    names = "orchestra.coding.at_shell:AtShell", "benchmarks.harbor_agent:at_work"
    words = ["replay", trial.folder / "agent/run", "--method", names[0], "--agent", names[1]]
    done = subprocess.run(
        [sys.executable, ROOT / "orchestra_min.py", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout) == (0, "written\n"), done.stderr


def test_a_command_that_takes_too_long_is_told_to_the_sub_agent(trial):
    result = trial("sleep 60", flags=["--ak", "command_timeout=1"])
    assert result["exception_info"] is None
    assert "took longer than 1 s" in str(trial.requests[-2]["messages"])


def test_a_budget_that_is_too_small_ends_the_trial_without_an_answer(trial):
    result = trial("true", flags=["--ak", "budget=0.0000001"])
    assert result["agent_result"]["metadata"] == {"state": "stopped", "answer": ""}
    assert trial.requests == []
