r"""A text as it looks after its escapes are decoded, and where a part of it is in the original.

A key can be spelled with escapes: \u0073k- in JSON, %73k- in a URL, or with colour codes between
its letters. Whoever decodes the text, or shows it in a terminal, then has the key.

    >>> spelled = r"the key is \u0073k\u002d123, he said"
    >>> decoded(spelled)
    'the key is sk-123, he said'
    >>> [(start, end)] = located(spelled, [(11, 17)])
    >>> spelled[start:end]
    '\\u0073k\\u002d123'
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterable
from functools import lru_cache

# Backslashes may be doubled, and % be %25, as in JSON in JSON. Each alternative takes the whole run
# of backslashes, so the time is linear.
ESCAPE = re.compile(
    r"(?P<colour>(?:\x1b|\\++(?:u001[bB]|x1[bB]|033|e))\[[0-?]{0,40}[ -/]{0,8}[@-~])"
    r"|\\++(?:(?:u(?P<u>[0-9a-fA-F]{4})|x(?P<x>[0-9a-fA-F]{2}))"
    r"|(?P<space>[bfnrt])|(?P<same>[\"'/]))?"
    r"|%(?:25)*+(?P<percent>[0-9a-fA-F]{2})"
)
STARTS = "\\", "%", "\x1b"  # of an escape
Span = tuple[int, int]  # start, end


def decoded(text: str) -> str:
    if not any(start in text for start in STARTS):
        return text
    return ESCAPE.sub(lambda found: _character(found[0]), text)


@lru_cache(10_000)
def _character(escape: str) -> str:
    """What an escape stands for; an unknown one stays as it is."""
    found = ESCAPE.fullmatch(escape)
    kind = found.lastgroup if found else None
    if found is None or kind is None:
        return escape
    if kind == "colour":
        return ""
    if kind == "space":
        return "\n"
    return escape[-1] if kind == "same" else chr(int(found[kind], 16))


def located(text: str, spans: Iterable[Span]) -> list[Span]:
    """Where parts of decoded(text), none of them empty, are in the text."""
    starts = [0]
    ends = [0]  # of escapes
    decoded_ends = [0]
    shorter = 0
    for escape in ESCAPE.finditer(text):
        start, end = escape.span()
        shorter += end - start - len(_character(escape[0]))
        starts.append(start)
        ends.append(end)
        decoded_ends.append(end - shorter)
    starts.append(len(text))

    def of_character(position: int) -> Span:
        after = bisect(
            decoded_ends, position
        )  # the escapes that end before it, and one
        start = ends[after - 1] + position - decoded_ends[after - 1]
        if start < starts[after]:
            return start, start + 1
        return starts[after], ends[after]

    return [(of_character(start)[0], of_character(end - 1)[1]) for start, end in spans]


def replaced(text: str, instead: Iterable[tuple[Span, str]]) -> str:
    """A text with others in place of parts of it, which are in their order."""
    kept = []
    position = 0
    for (start, end), other in instead:
        kept += [text[position:start], other]
        position = end
    return "".join([*kept, text[position:]])
