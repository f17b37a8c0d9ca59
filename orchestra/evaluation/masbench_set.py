"""Problems of the public set of MASBENCH, https://huggingface.co/datasets/Salesforce/MASBench
(Apache 2.0, arXiv 2601.14652), as questions.

A folder for each axis (and `combine`, a mixture for training) has train-*.parquet and
test-*.parquet. Each row has these texts:

    prompt_json        the chat messages of the problem, a list of {"role", "content"}
    reward_model_json  {"ground_truth": ...}; several answers have <<horizon>> between them
    extra_info_json    what the problem was made from, such as its index
    axis, value        `combine` has no value
    data               what it was made from; not used here

The program downloads nothing: name files that you have. A problem is asked in its own words. Only
if it has several answers, a last sentence says how to write them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestra.evaluation.question_files import items
from orchestra.runtime.prompts import say
from orchestra.vocabulary import ConfigError

SEPARATOR = "<<horizon>>"
Row = dict[str, str]  # a question as a line of a file


def question(row: Mapping[str, Any], number: int) -> Row:
    """A row of the set as a question. Raises ValueError."""
    try:
        messages = json.loads(row["prompt_json"])
        truth = json.loads(row["reward_model_json"])["ground_truth"]
        texts = [str(message["content"]).strip() for message in messages]
        axis = str(row["axis"])
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"is not a row of Salesforce/MASBench ({reason})") from None
    text = "\n\n".join(part for part in texts if part)
    answers = [answer.strip() for answer in str(truth).split(SEPARATOR)]
    if not text or not all(answers):
        raise ValueError("has no problem or no answer")
    if len(answers) > 1:
        count = len(answers)
        text = say("evaluation/masbench", "public_several", problem=text, count=count)
    return {
        "id": f"{axis}-{row.get('value') or 'all'}-{number}",
        "category": axis,
        "level": str(row.get("value") or ""),
        "question": text,
        "answer": ", ".join(answers),
    }


def write(file: Path, sources: Sequence[Path], count: int, seed: int) -> None:
    """At most `count` problems for each axis and value, chosen by the seed, as JSON lines. Raises
    ConfigError.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    number = 0
    for source in sources:
        for row in _rows(source):
            number += 1
            try:
                found = question(row, number)
            except ValueError as error:
                raise ConfigError(f"{source}: row {number} {error}") from None
            groups.setdefault((found["category"], found["level"]), []).append(found)
    lines = [json.dumps(row) for row in _chosen(groups.values(), count, seed)]
    if not lines:
        raise ConfigError(f"{sources[0]}: has no problem in it")
    file.write_text("\n".join([*lines, ""]))


def _chosen(groups: Iterable[list[Row]], count: int, seed: int) -> Iterable[Row]:
    """A sample of each group, in the order of the files."""
    for rows in groups:
        rng = random.Random(f"{seed}/{rows[0]['category']}/{rows[0]['level']}")
        kept = sorted(rng.sample(range(len(rows)), min(count, len(rows))))
        yield from (rows[index] for index in kept)


def _rows(source: Path) -> Iterable[Mapping[str, Any]]:
    """The rows of a parquet file, or of a file of JSON. Raises ConfigError."""
    return [row if isinstance(row, dict) else {} for row in items(source)]
