"""orchestra-min: its version, and how the parts are installed that not everyone needs."""

import shlex
from pathlib import Path

__version__ = "0.4.0"


def install(extra: str) -> str:
    """The command for an extra: of this checkout, or of the package that is installed."""
    checkout = Path(__file__).parents[1]
    if (checkout / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{checkout}[{extra}]')}"
    return f"pip install 'orchestra-min[{extra}]'"
