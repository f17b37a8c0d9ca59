"""The trained agent in the program: its parser, its decisions, its sub-agents and the recorded sweeps."""

import json
import re
import threading
from collections import Counter
from http.server import HTTPServer
from pathlib import Path

import pytest
import requests

from benchmarks.minigaia.operations import OPERATIONS, computed
from benchmarks.minigaia.tasks import TOOL, WORDS
from fixtures.minigaia_tasks import tasks
from fixtures.trained import agent, questions, reader, serve
from fixtures.trained.finding import value_in
from orchestra.evaluation.questions import load
from orchestra.evaluation.scores import exact
from orchestra.kernel.folder import Options
from orchestra.kernel.prompts import say
from orchestra.kernel.vocabulary import (
    Complete,
    ConfigError,
    Evidence,
    Media,
    ModelMistake,
    Reply,
    State,
    Task,
)
from orchestra.methods import AGENTS
from orchestra_min import replay
from tests.conftest import ROOT
from tests.training.conftest import MISSING

SWEEPS = ROOT / "fixtures" / "trained" / "sweeps"
WEIGHTS = ROOT / "fixtures" / "trained" / "model"
BALLOONS = "2-10"  # 3 euros each: the language has no word for a number of the question
CONCERT = "At what time does the concert end?"


def task_of(row):
    media = [Media(m["type"], Path(m["path"]).name, Path(), sha256="") for m in row["media"]]
    return Task(row["question"], tuple(media))


ROWS = json.loads((ROOT / "fixtures/minigaia/questions.json").read_text())
TASKS = {row["question"]: task_of(row) for row in ROWS}


def evidence(id, status="done", answer="", t=1):
    return Evidence(t, id, "", "lab", (), status, answer, "", steps=1)


def state(*history, question=CONCERT, t=2):
    tools = tuple(TOOL.values())
    return State(TASKS[question], "", history, ("lab",), tools, round=t, rounds=8)


def decided(text, *history, kind=agent.Trained, last_chance=False, **more):
    """What an agent decides when its model replies this, and the prompt that the model got."""
    asked = []

    def ask(messages):
        asked.extend(messages)
        return Reply(text)

    y_t = kind(None, {}, Options()).decide(state(*history, **more), ask, "", last_chance)
    return y_t, asked[0]["content"] if asked else ""


# ---- the parser ----------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [t for t in tasks() if t.id != BALLOONS], ids=lambda task: task.id)
def test_a_question_is_parsed_into_the_facts_that_it_was_made_of_without_their_values(task):
    facts, true = questions.facts_of(TASKS[task.question]), task.facts()
    assert [(f.tool, f.operation) for f in facts] == [(f.tool, f.operation) for f in true]
    place = {f.id: n for n, f in enumerate(facts)} | {f.id: n for n, f in enumerate(true)}
    assert [[place.get(id) for id in f.needs] for f in true] == [
        [place[id] for id in f.needs if not id.isdigit()] for f in facts
    ]
    assert not any(f.value or f.report or f.evidence for f in facts)
    unread = " ".join(f.instruction for f in facts).replace(task.question, "")
    for fact in true:
        assert fact.value in task.question or fact.value not in unread.split()


def test_a_question_of_another_form_is_refused_in_one_line_before_the_first_call():
    task = Task("How many roads must a man walk down?", ())
    with pytest.raises(ConfigError, match="cannot parse this question"):
        agent.game_of(State(task, "", (), (), (), round=1, rounds=8))


def test_a_question_without_its_files_is_refused():
    with pytest.raises(ConfigError, match="needs 1 files; it has 0"):
        questions.facts_of(Task(CONCERT, ()))


def test_the_same_question_about_other_names_is_parsed():
    task = TASKS["How many days after the fair of Orlanda was Luca Eriksen born?"]
    other = Task("How many days after the fair of Rostow was Anna Grau born?", task.media)
    fair, born, _ = questions.facts_of(other)
    assert fair.instruction == "Find the date of the fair of Rostow in fair.png."
    assert born.instruction == "Find the birthday of Anna Grau in luca.png."


# ---- decisions -----------------------------------------------------------------------------------


def test_the_model_reads_slots_and_how_their_sub_tasks_ended():
    _, prompt = decided("k3: mp4", evidence("start", answer="20:15"), evidence("minutes", "failed"))
    assert prompt == "Q k1: later k2 k3 k2: img k3: mp4 F k2 ok k3 failed r 2"


def test_a_reply_becomes_sub_tasks_for_the_reader_with_the_values_that_were_found():
    y_t, _ = decided("k2: img ; k3: mp4", t=1)
    assert [(u.id, u.tools, u.agent) for u in y_t.subtasks] == [
        ("start", ("ImageAnalysisAction",), agent.READER),
        ("minutes", ("VideoAnalysisAction",), agent.READER),
    ]
    assert y_t.subtasks[1].instruction == "Find the minutes that the concert lasts in hall.mp4."
    found = evidence("start", answer="20:15"), evidence("minutes", answer="110")
    y_t, _ = decided("k1: later k2 k3", *found)
    assert y_t.subtasks[0].instruction == "Compute the time 110 minutes after 20:15."
    y_t, _ = decided("done k1", *found, evidence("answer", answer="22:05"), t=3)
    assert y_t == Complete("22:05")


def test_what_is_searched_for_has_the_name_that_was_found():
    question = "How old was the sculptor when the fountain was finished?"
    y_t, _ = decided("k3: search k4", evidence("sculptor", answer="Ada Fox"), question=question)
    (u,) = y_t.subtasks
    assert (u.id, u.instruction) == ("born", "Search for the year in which Ada Fox was born.")


def test_a_sub_task_that_is_delegated_twice_gets_two_ids():
    y_t, _ = decided("k2: img ; k2: img", t=1)
    assert [u.id for u in y_t.subtasks] == ["start", "start-2"]
    _, prompt = decided("k3: mp4", evidence("start", "failed"), evidence("start-2", answer="20:15"))
    assert "F k2 failed k2 ok r 2" in prompt


@pytest.mark.parametrize("text", ["", "k2", "img", "done k1", "done k3"])
def test_a_reply_that_stands_for_no_decision_is_a_mistake_of_the_model(text):
    with pytest.raises(ModelMistake):
        decided(text, evidence("start", answer="20:15"))


def test_the_expert_and_the_demonstrator_decide_without_a_model():
    failed = evidence("start", answer="20:15"), evidence("minutes", "failed")
    y_t, prompt = decided("never", *failed, kind=agent.Expert)
    assert [u.id for u in y_t.subtasks] == ["minutes"] and prompt == ""
    assert decided("never", *failed, kind=agent.Demonstrator)[0] == Complete("20:15")


def test_with_trouble_the_first_sub_task_for_one_fact_breaks_off_and_the_second_works():
    unlucky = agent.unlucky_fact(agent.game_of(state(t=1)))
    found = [evidence(id, answer="20:15") for id in ("start", "minutes") if id != unlucky]
    slot = {"start": "k2: img", "minutes": "k3: mp4", "answer": "k1: later k2 k3"}[unlucky]
    first, _ = decided(slot, *found, kind=agent.Disturbed)
    again, _ = decided(slot, *found, evidence(unlucky, "failed"), kind=agent.Disturbed)
    assert [first.subtasks[0].agent, again.subtasks[0].agent] == [agent.BREAKS_OFF, agent.READER]


# ---- the reader ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("phrase", "text", "value"), [
    ("the time at which the evening ferry to Korsund leaves", "Morning ferry to Korsund 08:15\nEvening ferry to Korsund 19:40", "19:40"),
    ("the visitors on Friday", "Visitors of the castle\nThursday\n130\nFriday\n185\nSaturday\n240", "185"),
    ("the platform to which the train to Thornway was moved", "[0:00] Departures / Thornway 10:20 / Platform 3\n[0:03] Departures / Thornway 10:20 / Platform 7 / Platform changed", "7"),
    ("the date on which the exhibition opens", "The exhibition opens on\n19 March 2027", "2027-03-19"),
    ("the date of the River Run", "It takes place on May 3rd, 2026 in Jelling.", "2026-05-03"),
    ("the dozens of eggs that the baker needs", "For the fair we need seven dozen eggs.", "7"),
    ("the sculptor of the fountain", "Fountain of the Swans\nSculptor Greta Jansky\nFinished in 1958", "Greta Jansky"),
    ("the town in which Katya Jansky was born", "Katya Jansky rows for Rostow.\nShe was born in Quayle in 1996.", "Quayle"),
    ("the second of the prices", "The atlas costs 32 euros and the novel costs 19 euros.", "19"),
    ("the year in which the bridge was built", "Stone Bridge of Mossford", ""),
    ("the date of the fair", "31 June 2026", ""),
])  # fmt: skip
def test_the_value_that_a_phrase_asks_for_is_found_in_a_text(phrase, text, value):
    assert value_in(phrase, text) == value


OPERANDS = {"time": ["09:30"], "date": ["2001-02-03", "2001-03-05"], "person": ["Ada Fox"]}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_the_program_of_an_operation_prints_what_the_world_computes(operation, capsys):
    numbers = iter(["40", "12"])
    given = []
    for n, kind in enumerate(operation.takes):
        given.append(OPERANDS[kind][n] if kind in OPERANDS else next(numbers))
    what = say(WORDS, operation.name, **dict(zip("ab", given, strict=False)))
    exec(reader.program_for(say(WORDS, "compute", what=what)), {})
    assert capsys.readouterr().out.strip() == computed(operation, given)


@pytest.mark.parametrize("instruction", [
    "Compute the sum of 16.", "Compute 16.", "Find the price in a.png.", "Compute.", "",
])  # fmt: skip
def test_an_instruction_without_a_computation_gets_no_program(instruction):
    assert reader.program_for(instruction) == ""


def test_an_operand_cannot_become_code():
    program = reader.program_for("Compute the sum of 1) + __import__('os').getpid( and 2.")
    with pytest.raises(ValueError, match="invalid literal"):
        exec(program, {})


# ---- the server ----------------------------------------------------------------------------------


@pytest.fixture
def served():
    """The URL of a server whose policy knows one state."""

    def decide(text):
        return {"r 1": "k2: img"}[text]

    server = HTTPServer(("127.0.0.1", 0), serve.handler(decide, "da-1"))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def test_the_server_answers_as_a_chat_endpoint(served):
    assert requests.get(f"{served}/models").json()["data"] == [{"id": "da-1"}]
    body = {"model": "da-1", "messages": [{"role": "user", "content": "r 1"}]}
    row = requests.post(f"{served}/chat/completions", json=body).json()
    assert row["choices"][0]["message"] == {"role": "assistant", "content": "k2: img"}
    assert row["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}


@pytest.mark.parametrize("body", [
    "no JSON", "[]", "{}", '{"messages": []}', '{"messages": [{"content": "What time is it?"}]}',
])  # fmt: skip
def test_the_server_refuses_what_is_no_state(served, body):
    response = requests.post(f"{served}/chat/completions", data=body)
    assert response.status_code == 400
    assert "not a state in the compact language" in response.json()["error"]["message"]


def test_the_server_says_which_folder_has_no_weights(tmp_path):
    if MISSING:
        pytest.skip(f"needs {', '.join(MISSING)} (make .venv/train)")
    with pytest.raises(ConfigError, match="has no config.json"):
        serve.decider(tmp_path)


@pytest.mark.filterwarnings("default")
def test_the_committed_weights_decide_as_recorded():
    if MISSING:
        pytest.skip(f"needs {', '.join(MISSING)} (make .venv/train)")
    decide = serve.decider(WEIGHTS)
    tapes = [*SWEEPS.glob("da/runs/*/tape.jsonl"), ROOT / "fixtures/runs/trained/tape.jsonl"]
    rows = [json.loads(line) for tape in tapes for line in tape.read_text().splitlines()]
    calls = [row for row in rows if row["request"]["kind"] == "chat"]
    assert len(calls) > 200
    for row in calls:
        recorded = row["answer"]["data"]["choices"][0]["message"]["content"]
        assert decide(row["request"]["messages"][0]["content"]) == recorded


# ---- the recorded sweeps -------------------------------------------------------------------------


def test_the_reader_is_no_agent_that_other_methods_can_name():
    assert agent.READER not in AGENTS


def rows_of(sweep):
    return [json.loads(line) for line in (SWEEPS / sweep / "rows.jsonl").read_text().splitlines()]


def test_every_recorded_run_replays_as_it_is_shipped():
    rows = {row["id"]: row for row in rows_of("da")}
    assert rows.pop(BALLOONS)["status"] == "failed" and len(rows) == 59
    for id, row in rows.items():
        again = replay(SWEEPS / "da" / "runs" / id, method=agent.Trained)
        assert (again.answer, again.paid_usd) == (row["answer"], 0.0)


def test_the_recorded_answers_are_scored_as_the_questions_say():
    asked = {q.id: q for q in load(ROOT / "fixtures/minigaia/questions.json")}
    for sweep in SWEEPS.iterdir():
        for row in rows_of(sweep.name):
            right = row.get("answer") is not None and exact(
                row["answer"], asked[row["id"]].accepted
            )
            assert bool(row.get("exact")) == right


@pytest.mark.parametrize(("sweep", "by_level"), [
    ("da", {"2": 8, "3": 8, "5": 8, "6": 6}),
    ("start", {"2": 8, "3": 8, "5": 8, "6": 5}),
    ("expert", {"1": 6, "2": 8, "3": 8, "4": 9, "5": 8, "6": 6}),
])  # fmt: skip
def test_what_the_policies_and_the_expert_solve_by_level(sweep, by_level):
    assert Counter(row["level"] for row in rows_of(sweep) if row.get("exact")) == by_level


@pytest.mark.parametrize(("sweep", "rounds"), [("da", 3.5), ("start", 4.6), ("expert", 3.6)])
def test_how_many_rounds_a_computed_answer_takes_as_the_page_says(sweep, rounds):
    computed = [r for r in rows_of(sweep) if r["level"] in "2356" and r["category"] == "reading"]
    assert len(computed) == 32
    assert round(sum(r["rounds"] for r in computed) / 32, 1) == rounds


@pytest.mark.parametrize(("name", "sweep"), [
    ("DA-GRPO", "da"),
    ("imitation", "start"),
    ("Demonstrator", "demonstrator"),
    ("Expert", "expert"),
])  # fmt: skip
def test_the_page_has_what_every_recorded_sweep_solved(name, sweep):
    right = [sum(bool(row.get("exact")) for row in rows_of(s)) for s in (sweep, f"{sweep}-trouble")]
    page = (ROOT / "docs/training.md").read_text()
    assert re.search(rf"\| .*\b{name}\b.* \| {right[0]} \| {right[1]} \|", page)
