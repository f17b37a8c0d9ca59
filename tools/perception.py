"""Who analyses images and sound: a model of the pool, or a library on this machine.

A model that refuses images or sound is no dead end: the library does it, if it is installed. That
it was is on the tape, so that a replay does the same on a machine without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from orchestra.runtime.pool import Analysis, Engine
from orchestra.toolkit import Environment
from orchestra.tools.media import missing_engine
from orchestra.vocabulary import ConfigError, EndpointError, Failure, NotInstalled

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
    finds, here and in the rest of the sub-task. Raises EndpointError, NotInstalled.
    """
    engine = env.pool.engine(kind)
    refused = (engine.backend, kind)
    if engine.engine == "local" or refused in env.chat.refused:
        return _by_library(locally)
    try:
        return by_endpoint(engine)
    except EndpointError as error:
        if error.failure is None or error.failure.status not in REFUSALS:
            raise
        has_library = _has_library(env, kind)
        _tell(env, engine, kind, error.failure, has_library)
        if not has_library:
            raise
        env.chat.refused.add(refused)
        return _by_library(locally)


def _by_library(locally: Callable[[], T]) -> T:
    """What the local engine finds. Raises NotInstalled, which ends the run: the failed attempt is
    not recorded, so that a resume makes it again.
    """
    try:
        return locally()
    except ConfigError as error:
        raise NotInstalled(str(error)) from None


def _has_library(env: Environment, kind: Analysis) -> bool:
    """Whether the library is installed; in a replay, whether it was."""
    request = {"analysis": kind}
    recorded = env.tape.has("library", request)
    if not recorded and (env.tape.mode == "replay" or missing_engine(kind)):
        return False
    return bool(env.local("library", request, lambda: True, bool))


def _tell(
    env: Environment,
    engine: Engine,
    kind: Analysis,
    failure: Failure,
    has_library: bool,
) -> None:
    """Say once a run what is done, or what can be done, about the refusal."""
    media = {"image": "images", "audio": "sound"}[kind]
    refusal = f"{engine.backend} takes no {media} (status {failure.status})"
    if has_library:
        advice = "a library on this machine is used, as with --perception local"
    else:
        advice = "pip install '.[local]', then --resume the run with --perception local"
    env.chat.notify(f"{refusal}: {advice}", 0)
