"""The seeds D_0 of a curation, Eq. 26 of Orchestra-o1 (arXiv 2606.13707): read from a file, and
solved by a run.

A file of seeds has the keys of seed.json, or those of OmniGAIA's test_metadata.json. A seed may
lack its solution r and level l. They are then made from a run of Orchestra-o1 that answered it:

    solution   a step for each sub-task that found something, and one for the answer
    level      by the rounds that delegated and the sub-tasks that failed

The paper makes r and l from such runs, and does not say how. The rule is ours.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from orchestra.evaluation import question_files
from orchestra.kernel import prompts
from orchestra.kernel.folder import read_events
from orchestra.kernel.vocabulary import ConfigError

SEED = json.loads(Path(__file__).with_name("seed.json").read_text("utf-8"))
STEP_CHARS = 600  # of a step of a solution
EASY = 1  # at most so many delegations and failures
MEDIUM = 2
FOUND = ("done", "partial")

# Tools as OmniGAIA names them. The files of a question say which perception tools it needs.
TOOL_OF = {
    "web_search": "GoogleSearchAction",
    "google_search": "GoogleSearchAction",
    "page_browser": "ExtractUrlContentAction",
    "code_executor": "ExecuteCodeAction",
    "read_image": "ImageAnalysisAction",
    "read_audio": "ParseAudioAction",
    "read_video": "VideoAnalysisAction",
}


# x = (q, M, a, T) of Eq. 26: question, media, answer, tools; with solution r, level l, and the
# anchors A once they are found
Seed = dict[str, Any]


# ---- from a file ---------------------------------------------------------------------------------


def read(file: Path) -> list[Seed]:
    """D_0, as seed.json describes it. Raises ConfigError."""
    seeds: list[Seed] = []
    for item in question_files.items(file):
        is_omnigaia = isinstance(item, dict) and "omni_modal_input" in item
        seeds.append(of_omnigaia(item) if is_omnigaia else item)
    wrong = best_match(Draft202012Validator({"items": SEED}).iter_errors(seeds))
    if wrong is not None:
        number = int(wrong.absolute_path[0]) + 1
        problem = f"seed {number}: {wrong.message}; see docs/curate.md"
        raise ConfigError(f"{file}: {problem}")
    return seeds


def of_omnigaia(item: Mapping[str, Any]) -> Any:
    """A question of OmniGAIA as a seed; seed.json checks it afterwards. An unknown tool stays as it
    is, and is refused there.
    """
    media: Any = item["omni_modal_input"]
    if not isinstance(media, list) or not all(isinstance(m, dict) for m in media):
        return item
    perception = [f"read_{m.get('type')}" for m in media]
    others = item.get("required_external_tools")
    named = [*perception, *map(str, others if isinstance(others, list) else [])]
    tools = dict.fromkeys(TOOL_OF.get(name, name) for name in named)
    seed = {
        "question": item.get("question"),
        "media": [{"modality": m.get("type"), "path": m.get("path")} for m in media],
        "answer": item.get("answer"),
        "tools": list(tools),
    }
    solution = item.get("annotated_solution")
    level = item.get("Level")
    if solution and level:
        seed["solution"] = _steps(solution)
        seed["level"] = str(level).lower()
    return seed


def _steps(solution: Any) -> list[str]:
    """A solution as a list of steps: it is a list of texts or of objects, or one text with a step a
    line.
    """
    steps = solution.splitlines() if isinstance(solution, str) else list(solution)
    texts = [
        _step_text(step) if isinstance(step, dict) else str(step) for step in steps
    ]
    return [text.strip() for text in texts if text.strip()]


def _step_text(step: Mapping[str, Any]) -> str:
    return " ".join(str(value) for key, value in step.items() if key != "step")


# ---- from a run ----------------------------------------------------------------------------------


def solved(folder: Path) -> tuple[list[str], str]:
    """r and l of the run in `folder`, which has given the right answer."""
    events = read_events(folder)
    results = [event for event in events if event["event"] == "result"]
    instructions = {}  # by round and sub-task
    for event in events:
        if event["event"] == "subtask":
            instructions[tuple(event["at"][:2])] = event["subtask"]["instruction"]
    steps = []
    for z in results:
        if z["status"] in FOUND:
            did = instructions[tuple(z["at"][:2])]
            steps.append(_step("step", did=did, found=z["answer"] or z["summary"]))
    reasoning = _reasoning(events)
    steps.append(_step("answer", reasoning=reasoning, answer=events[-1]["answer"]))
    delegations = len({z["at"][0] for z in results})
    failures = sum(z["status"] not in FOUND for z in results)
    return steps, level_of(delegations, failures)


def level_of(delegations: int, failures: int) -> str:
    """l: the more rounds delegated and the more sub-tasks failed, the harder.

    >>> level_of(1, failures=0), level_of(2, failures=0), level_of(2, failures=1)
    ('easy', 'medium', 'hard')
    """
    trouble = delegations + failures
    if trouble <= EASY:
        return "easy"
    return "medium" if trouble <= MEDIUM else "hard"


def _step(section: str, **values: str) -> str:
    """A step in one line, as data: it may quote a file."""
    text = prompts.say("curation/solution", section, **values)
    return prompts.quoted(" ".join(text.split()), STEP_CHARS)


def _reasoning(events: Iterable[Mapping[str, Any]]) -> str:
    """Why the main agent completed; "" if a sub-task gave the answer."""
    reasoning = ""
    for event in events:
        decision = event.get("decision") or {}
        if decision.get("action") == "complete":
            reasoning = str(decision.get("reasoning", ""))
    return reasoning
