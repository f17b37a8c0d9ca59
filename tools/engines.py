"""What the local engines need on this machine, looked at before anything is paid."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from orchestra.vocabulary import ConfigError, Modality
from runtime.pool import Pool

KINDS: tuple[Literal["image", "audio"], ...] = ("image", "audio")
LIBRARIES = {"image": ("rapidocr", "onnxruntime"), "audio": ("faster_whisper",)}
NEEDED = {"image": ("image",), "audio": ("audio",), "video": ("image", "audio")}  # by modality
WHISPER = "WHISPER_MODEL"  # a name, downloaded once, or a folder


def check(modalities: Iterable[Modality], pool: Pool) -> None:
    """Raises ConfigError where a file of such a kind needs a local engine that is not installed."""
    needed = {kind for m in modalities for kind in NEEDED.get(m, ())}
    for kind in KINDS:
        if kind not in needed or pool.engine(kind).engine != "local":
            continue
        for library in LIBRARIES[kind]:
            if find_spec(library) is None:
                raise ConfigError(
                    f"{kind} is analysed by the local engine, which needs {library}: "
                    "pip install 'orchestra-min[local]', or --perception endpoint"
                )
    model = os.environ.get(WHISPER, "")
    if os.sep in model and not (Path(model) / "model.bin").is_file():
        raise ConfigError(f"{WHISPER}: {model} holds no model.bin; name a faster-whisper folder")
