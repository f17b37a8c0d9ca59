"""ReadFileAction: a file of the task that is no picture, sound or video, as text.

tools/file_text.py reads the file in the sandbox, because a file may take over its parser. A short
text is shown as it is. Of a long one, a model answers the query, part by part. ExecuteCodeAction
finds the same file in the folder media.
"""

from __future__ import annotations

from pathlib import Path

from orchestra.kernel.prompts import fenced, named, say
from orchestra.kernel.tool import DataFile, Environment, tool
from orchestra.kernel.vocabulary import Media, ToolError
from orchestra.tools import file_text, reading, sandbox

READER = Path(file_text.__file__).read_text(encoding="utf-8")
READ_S = 60.0
MAX_TEXT_BYTES = 2_000_000
SHOWN_CHARS = 6_000  # a text of at most this length is shown as it is
ENDED = {  # exit status of the reader: the section that tells the model
    file_text.LOCKED: "file_locked",
    file_text.NO_TEXT: "file_no_text",
    file_text.TOO_LARGE: "file_too_large",
    file_text.NO_READER: "file_no_reader",
}


@tool("ReadFileAction", "file")
def read_file(env: Environment, query: str, file_path: DataFile) -> str:
    """Read one file of the task as text: a table, a document, slides, code, data, or the files of
    an archive. To compute with it, use ExecuteCodeAction, which finds it as media/<file name>.

    query: what your task wants to know from the file, in the words of the task
    file_path: the file name, exactly as the task lists it
    """
    file = env.media(file_path, "file")
    arguments = {"sha256": file.sha256, "name": file.name}
    unsafe = env.options.more.get("unsafe_code", False)
    text = env.local("file", arguments, lambda: text_of(file, unsafe))
    if len(text) <= SHOWN_CHARS:
        return fenced(text, SHOWN_CHARS)
    return reading.answer_from(env, query, text, named(file.name))


def text_of(file: Media, unsafe: bool = False) -> str:
    """The text of a file. Raises ToolError if there is none, or if it cannot be read.

    Where there is no sandbox, the reader is a process with limits.
    """
    cut_note = say("tools/notes", "part_cut")
    ran = sandbox.confined(
        command=sandbox.python(READER, f"media/{file.name}", cut_note),
        stdin=b"",
        timeout_s=READ_S,
        mounts=sandbox.Mounts(media=file.path.parent),
        max_output_bytes=MAX_TEXT_BYTES,
        unsafe=unsafe or sandbox.trouble() != "",
    )
    text = ran.output.decode("utf-8", "replace")
    if ran.ended == "end" and ran.status == 0 and text.strip():
        return text
    if ran.ended in ("memory", "timeout"):
        section = "file_too_large"
    elif ran.ended == "end" and ran.status == 0:
        section = "file_no_text"
    else:
        section = ENDED.get(ran.status, "file_damaged")
    raise ToolError(say("tools/notes", section, name=named(file.name)))
