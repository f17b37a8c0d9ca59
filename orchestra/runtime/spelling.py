"""A hint at a misspelled name, and what a loosely spelled tool means.

>>> did_you_mean("--metod", ["--method", "--model"])
'; did you mean --method?'
>>> did_you_mean("xyz", ["--method"])
''
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches

# The tools that the program ships, and the functions behind them: models write both names.
SHIPPED = {
    "ImageAnalysisAction": "image_analysis",
    "ParseAudioAction": "audio_analysis",
    "VideoAnalysisAction": "video_analysis",
    "GoogleSearchAction": "google_search",
    "ExtractUrlContentAction": "extract_url_content",
    "ExecuteCodeAction": "execute_code",
    "ReadFileAction": "read_file",
}


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name; "" if no known name is like it."""
    found = get_close_matches(word, list(known), n=1)
    return f"; did you mean {found[0]}?" if found else ""


def tool_meant(name: str, known: Collection[str]) -> str | None:
    """The tool of `known` that a model means: the one with this name, or else the shipped one whose
    name it is but for capitals, separators and an ending such as "Action". None if that is no tool,
    or if a tool of the user's could be meant as well.

    >>> known = ["GoogleSearchAction", "ExecuteCodeAction", "executeCode"]
    >>> tool_meant("google_search", known), tool_meant("executeCode", known)
    ('GoogleSearchAction', 'executeCode')
    >>> tool_meant("execute_code", known), tool_meant("image_analysis", known)
    (None, None)
    """
    if name in known:
        return name
    key = _key(name)
    meant = [tool for tool in known if key in _keys(tool)]
    if len(meant) == 1 and meant[0] in SHIPPED:
        return meant[0]
    return None


def _keys(tool: str) -> set[str]:
    names = [tool, SHIPPED.get(tool, tool)]
    return {_key(name) for name in names}


def _key(name: str) -> str:
    """A name without capitals, separators and its ending.

    >>> _key("GoogleSearchAction"), _key("google-search tool")
    ('googlesearch', 'googlesearch')
    """
    letters = re.sub(r"[\W_]+", "", name).casefold()
    return re.sub(r"(?<=.)(action|tool)$", "", letters)
