"""OPTIMIZE of AOrchestra: what moves the front of success and cost is kept, and nothing is paid twice."""

import json

import pytest

from orchestra.curation import optimize_prompt
from orchestra_min import replay
from tests.conftest import ROOT
from tests.program import called, line_of, pool_file
from tests.scripted import Raw, complete, delegate, finish, is_main, last_text

START = (ROOT / "prompts" / "aorchestra" / "system.md").read_text().strip()
RULES = "Check.", "Be brief.", "Guess."
CHECK, BRIEF, GUESS = (START.replace("# Reply", f"{rule}\n\n# Reply") for rule in RULES)


def reply(instruction):
    return f"A reason.\n<instruction>\n{instruction}\n</instruction>"


def agent(request):
    """Asks a sub-agent first, unless told to be brief; knows the second answer if told to check."""
    system, user = request["messages"][0]["content"], last_text(request)
    if "[Round 1]" not in user and "Be brief." not in system:
        return delegate("look")
    return complete("one" if "Q1?" in user else "two" if "Check." in system else "unknown")


@pytest.fixture
def learn(endpoint, tmp_path, capsys):
    """`learn(*rewrites)`: exit code and what became of each version; `learn.prompts`: of the optimizer."""

    def respond(request):
        if is_main(request):
            return agent(request)
        if "You improve" not in request["messages"][0]["content"]:
            return finish("seen")
        learned.prompts.append(last_text(request))
        return next(learned.queue)

    def learned(*rewrites, iterations=None):
        learned.queue = iter(rewrites)
        n = iterations or len(rewrites)
        pool = pool_file(tmp_path, learned.server.url, small=(1, 1))
        files = f"--tasks {tmp_path}/tasks.json --backends {pool}"
        flags = f"{files} --out {tmp_path}/out --method aorchestra --budget 1 --iterations {n}"
        code = optimize_prompt.main(flags.split())
        rows = (line.split() for line in capsys.readouterr().out.splitlines() if line[:1].isdigit())
        return code, [kept for _, _, _, kept, *_ in rows]

    learned.prompts, learned.server = [], endpoint(respond)
    rows = [{"question": "Q1?", "answer": "One"}, {"question": "Q2?", "answer": "two"}]
    (tmp_path / "tasks.json").write_text(json.dumps(rows))
    return learned


def test_a_version_that_moves_the_front_is_kept(learn, tmp_path):
    assert learn(*map(reply, (GUESS, CHECK, BRIEF))) == (0, ["no", "no", "yes", "yes"])
    assert (tmp_path / "out" / "best.md").read_text().strip() == CHECK


def test_the_optimizer_reads_which_answers_were_right_but_not_the_right_ones(learn):
    learn(reply(GUESS), reply(CHECK))
    first, second = learn.prompts
    assert '"right": true' in first and '"right": false' in first and '"two"' not in first
    assert '"k": 1, "success": 0.5' in second and "version 0 is as right and as cheap" in second


@pytest.mark.parametrize("broken, told", [
    ("no tags", "has no text between"), (reply(START), "same as an earlier"),
    (reply(CHECK.replace("${tools}", "tools")), "must stay"), (reply(CHECK + " ${other}"), "must stay"),
    (reply(CHECK.replace('"complete"', '"finish"')), '\n{"reasoning"'), (reply(CHECK.replace("<data>", "quote")), "<data> marks"),
])  # fmt: skip
def test_a_broken_rewrite_is_told_once_and_then_refused(broken, told, learn):
    outcome = learn(broken, reply(CHECK), broken, broken, iterations=2)
    assert outcome == (0, ["no", "yes", "refused"])
    assert told in learn.prompts[1] and len(learn.prompts) == 4


def test_the_same_command_again_pays_only_for_what_is_missing(learn):
    assert learn(Raw(401, {}), iterations=1) == (4, ["yes"])
    paid = len(learn.server.requests)
    for rewrites in ([reply(BRIEF)], []):
        assert learn(*rewrites, iterations=1) == (0, ["no", "yes"])
        assert len(learn.server.requests) == paid + 1 + 2


def test_a_run_keeps_its_own_instruction_and_replays_with_it(learn, endpoint, tmp_path):
    learn(reply(BRIEF))
    server = endpoint(agent)
    flags = ["Q1?", "--model", "m", "--method", "aorchestra", "--out", tmp_path / "run"]
    done = called(*flags, "--option", f"instruction=@{tmp_path}/out/best.md", at=server.url)
    assert done.stdout == "one\n" and len(server.requests) == 1
    assert replay(tmp_path / "run").answer == "one"


def test_the_main_agent_of_orchestra_o1_takes_an_instruction_too(run):
    text = "${tools}: $$5 for one of ${models}"
    run(respond=lambda request: complete("42"), instruction=text)
    assert ": $5 for one of - small:" in run.requests[0]["messages"][0]["content"]


@pytest.mark.parametrize("text", ["${tools}", "${models} ${tools} ${x}", "${models} ${tools} $5"])
def test_an_instruction_that_cannot_be_filled_in_is_refused(text, tmp_path):
    (tmp_path / "i.md").write_text(text)
    flags = "--method", "aorchestra", "--option", f"instruction=@{tmp_path}/i.md"
    assert "--option instruction: " in line_of(called("?", *flags))
