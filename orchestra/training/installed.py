"""Whether the packages are installed that training needs. Only the standard library is used here,
so that the answer does not depend on them.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

INSTALL = "pip install -e '.[train]'"


def exit_unless_installed(program: str, *packages: str) -> None:
    """End the program with one line and exit code 2 if a package is missing.

    Nothing is imported. So a package that is installed but broken still fails with its own error.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        why = f"packages are missing ({', '.join(missing)}); install them"
        print(f"{program}: {why}: {INSTALL}", file=sys.stderr)
        sys.exit(2)
