"""Where the questions of a sweep are answered: in threads of this process, or on a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from orchestra import install
from orchestra.kernel.vocabulary import ConfigError

MOST = 256  # questions in flight
CONNECT_S = 10  # how long a scheduler of Dask may take to answer
Cluster = contextlib.AbstractContextManager[Any]  # the connection, which its end closes


class RayExecutor(Executor):
    """Ray's tasks as futures."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        import ray

        return ray.remote(fn).remote(*args, **kwargs).future()


@contextlib.contextmanager
def executor_at(url: str) -> Iterator[Executor]:
    """Threads of this process, or the cluster of --executor. Raises ConfigError."""
    kind, _, address = url.partition("://")
    if kind not in ("", "dask", "ray"):
        raise ConfigError(
            f"--executor {url}: needs dask://HOST:PORT or ray://HOST:PORT"
        )
    try:
        if kind == "dask":
            cluster, executor = _dask(address)
        elif kind == "ray":
            cluster, executor = _ray(url)
        else:
            cluster, executor = _threads()
    except ImportError as error:
        how = install("eval") if kind == "dask" else "pip install 'ray[client]'"
        raise ConfigError(f"--executor {url}: {error}: {how}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"--executor {url}: {error}; is it running?") from None
    with cluster:
        yield executor


def _threads() -> tuple[Cluster, Executor]:
    threads = ThreadPoolExecutor(MOST, thread_name_prefix="question")
    return contextlib.nullcontext(), threads


def _dask(address: str) -> tuple[Cluster, Executor]:
    import distributed

    client: Any = distributed.Client(address, timeout=CONNECT_S)  # type: ignore[no-untyped-call]
    return client, client.get_executor(pure=False)


def _ray(url: str) -> tuple[Cluster, Executor]:
    import ray

    return ray.init(url), RayExecutor()
