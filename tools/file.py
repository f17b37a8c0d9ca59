"""ReadFileAction: a file of the task that is no picture, sound or video, as text.

tools/reader.py reads the file in the sandbox, because a file may take over its parser. A short
text is shown as it is. Of a long one, a model answers the query, part by part. ExecuteCodeAction
finds the same file in the folder media.
"""

from __future__ import annotations

from orchestra.kernel.prompts import fenced, named, say
from orchestra.kernel.tool import DataFile, Environment, tool
from orchestra.kernel.vocabulary import Media, ToolError

SHOWN_CHARS = 6_000  # a text of at most this length is shown as it is


@tool("ReadFileAction", "file")
def read_file(env: Environment, query: str, file_path: DataFile) -> str:
    """Read one file of the task as text: a table, a document, slides, code, data, or the files of
    an archive. ExecuteCodeAction, if you have it, finds it as media/<file name>.

    query: what your task wants to know from the file, in the words of the task
    file_path: the file name, exactly as the task lists it
    """
    file = env.media(file_path, "file")
    arguments = {"sha256": file.sha256, "name": file.name}
    unsafe = env.options.more.get("unsafe_code", False)
    text = env.local("file", arguments, lambda: text_of(file, unsafe))
    if len(text) <= SHOWN_CHARS:
        return fenced(text, SHOWN_CHARS)
    from orchestra.tools import reading

    return reading.answer_from(env, query, text, named(file.name))


def text_of(file: Media, unsafe: bool = False) -> str:
    """The text of a file. Raises ToolError if there is none, or if it cannot be read."""
    from orchestra.tools import readers

    folder = file.path.parent
    text, problem = readers.read(f"media/{file.name}", media=folder, unsafe=unsafe)
    if not problem and not text.strip():
        problem = "no_text"
    if problem:
        raise ToolError(say("tools/notes", f"file_{problem}", name=named(file.name)))
    return text
