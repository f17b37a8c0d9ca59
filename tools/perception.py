"""Who analyses images and sound: a model of the pool, or a library on this machine.

A model that refuses images or sound is no dead end: the library does it, if it is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from orchestra.runtime.pool import Analysis, Engine
from orchestra.toolkit import Environment
from orchestra.tools.media import missing_engine
from orchestra.vocabulary import EndpointError

T = TypeVar("T")
# HTTP statuses of servers that take no images or no sound; 500 is llama.cpp's
REFUSALS = (400, 404, 413, 415, 422, 500, 501)


def analysed(
    env: Environment,
    kind: Analysis,
    by_endpoint: Callable[[Engine], T],
    locally: Callable[[], T],
) -> T:
    """What the engine of this kind finds. If the endpoint refuses the media, what the local one
    finds, here and in the rest of the sub-task. Raises EndpointError.
    """
    engine = env.pool.engine(kind)
    refused = (engine.backend, kind)
    if engine.engine == "local" or refused in env.chat.refused:
        return locally()
    try:
        return by_endpoint(engine)
    except EndpointError as error:
        status = error.failure.status if error.failure else 0
        if status not in REFUSALS:
            raise
        missing = missing_engine(kind)
        problem = f"{engine.backend} takes no {kind} (status {status})"
        if missing:
            advice = f"pip install '.[local]' for {missing}, then --resume the run"
            env.chat.notify(f"{problem}: {advice} with --perception local", 0)
            raise
        env.chat.notify(f"{problem}: the library on this machine analyses it", 0)
        env.chat.refused.add(refused)
        return locally()
