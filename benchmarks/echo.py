"""A tool that does nothing."""

from __future__ import annotations

from orchestra.kernel.tool import Environment, tool


@tool("EchoAction", "txt")
def echo(env: Environment, text: str) -> str:
    """Repeat a text.

    text: what
    """
    return text
