"""What an outcome depends on besides its request, as the digest `depends_on` of a tape."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4


def anew() -> str:
    """A digest that never repeats: that of what no other run may reuse."""
    return uuid4().hex


@cache
def source_of(function: Callable[..., Any]) -> str:
    """A digest of the file of a function and of the Python files beside it, which it may import. It
    never repeats if the function has no file.
    """
    try:
        folder = Path(inspect.getsourcefile(inspect.unwrap(function)) or "").parent
        source = b"\0".join(file.read_bytes() for file in sorted(folder.glob("*.py")))
    except (OSError, TypeError):
        return anew()
    return hashlib.sha256(function.__qualname__.encode() + source).hexdigest()
