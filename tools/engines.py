"""What the local engines need on this machine, looked at before anything is paid."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from orchestra.pool import Pool
from orchestra.vocabulary import ConfigError, Task

LIBRARIES = {"image": ("rapidocr", "onnxruntime"), "audio": ("faster_whisper",)}
NEEDED = {"image": ("image",), "audio": ("audio",), "video": ("image", "audio")}  # by modality
WHISPER = "WHISPER_MODEL"  # a name, downloaded once, or a folder


def check(task: Task, pool: Pool) -> None:
    """Raises ConfigError where a file of the task needs a local engine that is not installed."""
    for kind in {kind for m in task.media for kind in NEEDED[m.modality]}:
        if pool.engines[kind].engine != "local":
            continue
        for library in LIBRARIES[kind]:
            if find_spec(library) is None:
                raise ConfigError(
                    f"{kind} is analysed by the local engine, which needs {library}: "
                    "pip install -r requirements-local.txt, or --perception endpoint"
                )
    model = os.environ.get(WHISPER, "")
    if os.sep in model and not (Path(model) / "model.bin").is_file():
        raise ConfigError(f"{WHISPER}: {model} holds no model.bin; name a faster-whisper folder")
