"""Starts tools/reader.py in the sandbox, because a file or a page may take over its parser."""

from __future__ import annotations

import json
from pathlib import Path

from orchestra.kernel.prompts import say
from orchestra.tools import reader, sandbox

READER = Path(reader.__file__).read_text(encoding="utf-8")
NOTES = {
    "cut": say("tools/notes", "part_cut"),
    "guessed": say("tools/notes", "encoding_guessed", encoding="${encoding}"),
    "unread": say("tools/notes", "not_read", what="${what}"),
    **{name: say("tools/notes", name) for name in ("form", "member", *reader.KINDS)},
}
READ_S = 60.0
MAX_TEXT_BYTES = 2_000_000
PROBLEMS = {  # by the exit status of the reader
    0: "",
    reader.LOCKED: "locked",
    reader.NO_TEXT: "no_text",
    reader.TOO_LARGE: "too_large",
    reader.NO_READER: "no_reader",
    reader.UNKNOWN_KIND: "unknown_kind",
}


def read(
    name: str,
    *page: str,
    body: bytes = b"",
    media: Path | None = None,
    unsafe: bool = False,
) -> tuple[str, str]:
    """(text, problem) of a file in `media`, or of a `page`, its content type and URL, with this
    `body`. The problem is "", a word of PROBLEMS or "damaged". Where there is no sandbox, it is
    read in a process with limits.
    """
    ran = sandbox.confined(
        sandbox.python(READER, name, json.dumps(NOTES), *page),
        body,
        READ_S,
        sandbox.Mounts(media=media),
        MAX_TEXT_BYTES,
        unsafe=unsafe or sandbox.trouble() != "",
    )
    text = ran.output.decode("utf-8", "replace")
    if ran.ended in ("memory", "timeout"):
        return text, "too_large"
    problem = PROBLEMS.get(ran.status, "damaged") if ran.ended == "end" else "damaged"
    return text, problem
