"""JSON that is slightly broken, by json-repair. A value that it would change is read as text:

    >>> objects("{'version': 1.10, 'code': 00501, 'share': 5%, 'n': 3,}")
    [{'version': '1.10', 'code': '00501', 'share': '5%', 'n': 3}]

JSON that ends within a string or an object is not repaired: half an answer must not be guessed.
"""

from __future__ import annotations

import json
import re
from typing import Any

import json_repair

from orchestra.kernel.vocabulary import ModelMistake

DECODER = json.JSONDecoder(strict=False)
REPAIR_CHARS = 10_000  # json-repair takes quadratic time for some texts
DOUBLE = r'"[^"\\]*(?:\\.[^"\\]*)*"'
SINGLE = r"'[^'\\]*(?:\\.[^'\\]*)*'"
STRING = re.compile(f"{DOUBLE}|{SINGLE}", re.S)
ENDED = re.compile(r"(?:```|</(?!think)\w+>)\s*$")
REST = r"[^,\]}\n\"'{\[]*"
# A string, or what stands in the place of a number; a comma within is one of thousands
NUMBER = rf"[-+.]?\d{REST}(?:(?<=\d),(?=\d{{3}}\b){REST})*"
TOKEN = re.compile(rf"{STRING.pattern}|(?<=[:\[,])(\s*)({NUMBER})(?=[,\]}}\n])", re.S)


def objects(text: str) -> list[Any]:
    """The objects of a text that begins with one. Raises ModelMistake if it ends within it."""
    if is_open(text):
        raise ModelMistake("open")
    if len(text) > REPAIR_CHARS:
        return []
    try:
        value = json_repair.loads(TOKEN.sub(_kept, text))
    except Exception:  # none is documented; seen: AssertionError, RecursionError
        return []
    return value if isinstance(value, list) else [value]


def is_open(text: str) -> bool:
    """Whether a text that begins with an object ends within it. A stray quotation mark in JSON that
    has all its braces does not count, nor a missing brace before the end of a fence or a tag.

    >>> is_open('{"a": "It was built in 18'), is_open('{"a": {}'), is_open('{"a": "5" disk"}')
    (True, True, False)
    """
    try:
        DECODER.raw_decode(text)
        return False
    except (ValueError, RecursionError) as error:
        rest = text[getattr(error, "pos", 0) :]
        if "Unterminated" in str(error):
            return True
    outside = STRING.sub("", text)
    is_in_object = outside.count("{") > outside.count("}")
    is_in_string = '"' in outside or (text[1:2] == "'" and "'" in outside)
    is_unbalanced = text.count("{") > text.count("}")
    if is_in_string and is_unbalanced:
        return True
    has_no_end = "}" not in rest or (is_in_object and is_unbalanced)
    return has_no_end and not ENDED.search(text)


def _kept(token: re.Match[str]) -> str:
    """A token, in quotation marks if it is no number or another spelling of one."""
    space, number = token.groups(default="")
    written = number.strip()
    try:
        is_kept = json.dumps(json.loads(written)) == written
    except ValueError:
        is_kept = written == ""
    return token[0] if is_kept else f"{space}{json.dumps(written)}"
