"""The one bash block of a reply. What can be read in two ways is no command: half of one would run.

>>> read("I see.\\n```bash\\nls\\n```", cut=False)
Block(thought='I see.', command='ls', mistake='')
"""

from __future__ import annotations

import re
from typing import NamedTuple

from orchestra.prompts import say

THINKING = re.compile(r"<think(ing)?>.*?(</think(ing)?>|\Z)", re.S)
ONLY_CLOSED = re.compile(r"</think(ing)?>")  # some templates print no opening tag
OPENING = re.compile(r"(?<!`)(`{3,})(?:bash|sh|shell)[ \t]*\n", re.I)
CLOSING = re.compile(r"^[ \t]*`{3,}[ \t]*$", re.M)
HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*\\?(['\"]?)([\w.-]+)\1")


class Block(NamedTuple):
    """The thought before a command and the command, or what is wrong with the reply."""

    thought: str
    command: str
    mistake: str


def read(reply: str, cut: bool) -> Block:
    """`cut`: the reply hit its length limit."""
    text = _without_thinking(reply.replace("\r\n", "\n"))
    thought = text.split("```")[0].strip()
    if cut:
        return Block(thought, "", say("mistakes", "cut"))
    openings = list(OPENING.finditer(text))
    if openings:  # a block in more backticks may hold one in fewer
        openings = [o for o in openings if len(o[1]) >= len(openings[0][1])]
    behind = text[openings[0].end() :] if openings else ""
    fence = openings[0][1] if openings else "```"
    ends = [found.start() for found in re.finditer(rf"(?m)^[ \t]*{fence}[ \t]*$", behind)]
    if len(openings) != 1 or not ends:
        count = len(openings) if ends else 0
        return Block(thought, "", say("mini_swe/messages", "one_command", count=count))
    if len(ends) > 1 and not _is_open(behind[: ends[0]]):
        return Block(thought, "", say("mini_swe/messages", "text_behind"))
    return Block(thought, behind[: ends[-1]].removesuffix("\n"), "")


def _without_thinking(text: str) -> str:
    """A thought may hold blocks that are no command; a command may hold the tags of a thought."""
    while (thought := THINKING.search(text)) and not OPENING.search(text, 0, thought.start()):
        text = text[: thought.start()] + text[thought.end() :]
    closed = ONLY_CLOSED.search(text)
    if closed and not _in_a_block(text[: closed.start()]):
        return text[closed.end() :]
    return text


def _in_a_block(before: str) -> bool:
    *_, inside = OPENING.split(before)
    return inside != before and not CLOSING.search(inside)


def _is_open(command: str) -> bool:
    """Whether a here-document or a quotation goes on behind this part of a command."""
    for found in HEREDOC.finditer(command):
        if not re.search(rf"(?m)^\t*{re.escape(found[2])}$", command[found.end() :]):
            return True
    return any(command.count(quote) % 2 for quote in "'\"")
