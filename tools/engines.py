"""Who analyses pictures and sound: a model of the pool looks or listens, or a library on this
machine reads the text in a picture or writes down the speech.

The pool's `engines` choose. Without an entry for a kind, it is the first backend with the skill,
else the library. An endpoint that refuses a picture is an EndpointError, which says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestra.kernel.vocabulary import SKILL_OF, Pool

Analysis = Literal["image", "audio"]


@dataclass(frozen=True)
class Engine:
    """An entry of `engines`. With a `transcription_model`, sound goes to the transcription endpoint
    of the backend, not to a chat.
    """

    engine: Literal["endpoint", "local"]
    backend: str = ""
    transcription_model: str = ""
    usd_per_minute: float | None = None


def engine_of(pool: Pool, kind: Analysis) -> Engine:
    if kind in pool.engines:
        return Engine(**pool.engines[kind])
    able = (b for b in pool.backends if b.skills.get(SKILL_OF[kind], 0.0) > 0)
    first = next(able, None)
    return Engine("endpoint", first.name) if first else Engine("local")
