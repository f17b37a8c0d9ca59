"""A folder of texts while it is filled.

>>> print(as_toml("a\\nb"), as_toml(["a"]))
"a\\nb" ["a"]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestra.runtime.texts import TOML
from orchestra.vocabulary import ConfigError

Messages = tuple[tuple[str, str], ...]  # role and text of each


def as_toml(value: Any) -> str:
    """A text, number or list as TOML. A JSON string is one of TOML, but for the character DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


@dataclass
class Folder:
    """What becomes texts.toml, and the texts that it names. `method` and `dom`: the options that
    they are for.
    """

    method: str = ""
    dom: str = ""
    calls: dict[str, Messages] = field(default_factory=dict)
    pieces: dict[str, str] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    tools: str = ""  # the text of tools.json

    def files(self) -> dict[str, str]:
        """The texts of the files, by name."""
        options = {"method": self.method, "dom": self.dom}
        lines = [f"{key} = {as_toml(value)}" for key, value in options.items() if value]
        if self.tools:
            lines.append('tools = "tools.json"')
        lines.append("")
        files = {"tools.json": self.tools} if self.tools else {}
        for call, messages in self.calls.items():
            lines += [f"[calls.{call}]", 'response_format = "none"', "messages = ["]
            for number, (role, text) in enumerate(messages, 1):
                name = f"{call}_{number}_{role}.md"
                files[name] = text
                lines.append(f'  {{ role = "{role}", file = "{name}" }},')
            lines += ["]", ""]
        lines += _table("pieces", self.pieces)
        if self.limits:
            lines += _table("limits", self.limits)
        files[TOML] = "\n".join(lines)
        return files


def write(files: Mapping[str, bytes], target: Path) -> None:
    """Raises ConfigError."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (target / name).write_bytes(content)
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
        raise ConfigError(f"{target}: {problem}") from None


def _table(name: str, values: Mapping[str, Any]) -> list[str]:
    rows = [f"{key} = {as_toml(value)}" for key, value in values.items()]
    return [f"[{name}]", *rows, ""]
