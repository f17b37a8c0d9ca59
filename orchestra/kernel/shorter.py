"""A prompt that does not fit the context of a model, with its oldest observations as digests."""

from __future__ import annotations

import json
import re

from orchestra.kernel.prompts import cut_in_the_middle, fenced
from orchestra.kernel.vocabulary import Messages

DATA = re.compile(r"<data ([0-9a-f]{8,64})>\n?(.*?)\n?</data \1>", re.S)
DIGEST_CHARS = 300  # of an observation
CUT = " [...]"  # the end of a line that is cut
NOTE_CHARS = 100  # that a cut adds: it must win more
LINE_CHARS = 100  # at least, where each line of a text is cut


def chars_of(messages: Messages) -> int:
    return sum(len(text) for text in _texts(messages))


def shortened(messages: Messages, most_chars: int) -> Messages:
    """The messages, of at most so many characters if that can be: of what is quoted in them, the
    oldest texts are cut to digests, as many as needed, and the newest only as far as needed.
    """
    over = chars_of(messages) - most_chars
    quoted = [found[2] for text in _texts(messages) for found in DATA.finditer(text)]

    def cut(found: re.Match[str]) -> str:
        nonlocal over
        text = found[2]
        least = len(text) - over - NOTE_CHARS if text == quoted[-1] else 0
        keep = max(DIGEST_CHARS, least)
        if over <= 0 or len(text) <= keep + NOTE_CHARS:
            return found[0]
        short = fenced(digest(text, keep), len(text) + keep)
        over -= len(found[0]) - len(short)
        return short

    made: Messages = json.loads(json.dumps(messages))
    for message in made:
        if isinstance(message["content"], str):
            message["content"] = DATA.sub(cut, message["content"])
            continue
        for part in message["content"]:
            if "text" in part:
                part["text"] = DATA.sub(cut, part["text"])
    return made


def digest(text: str, chars: int) -> str:
    """About so many characters of a text: the beginnings of its lines if these are long, as in a
    report of several sub-tasks; else its beginning and its end.
    """
    lines = text.split("\n")
    most = chars // len(lines)
    if len(lines) == 1 or most < LINE_CHARS:
        return cut_in_the_middle(text, chars)
    is_kept = [len(line) <= most + len(CUT) for line in lines]
    rows = zip(lines, is_kept, strict=True)
    return "\n".join(line if kept else f"{line[:most]}{CUT}" for line, kept in rows)


def _texts(messages: Messages) -> list[str]:
    found = []
    for message in messages:
        content = message["content"]
        parts = [{"text": content}] if isinstance(content, str) else content
        found += [part["text"] for part in parts if "text" in part]
    return found
