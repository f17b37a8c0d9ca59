"""orchestra-min: its version, and how the parts are installed that not everyone needs."""

from importlib import metadata
from pathlib import Path

__version__ = "0.4.0"


def install(extra: str) -> str:
    """The command for an extra, as in pip install 'orchestra-min[files]'; in a checkout that was
    not installed it names the folder.
    """
    try:
        metadata.distribution("orchestra-min")
    except metadata.PackageNotFoundError:
        return f"pip install -e '{Path(__file__).parents[1]}[{extra}]'"
    return f"pip install 'orchestra-min[{extra}]'"
