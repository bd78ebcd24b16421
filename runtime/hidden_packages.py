"""Modules that libraries import if they are installed and that we do not need, hidden from them.

Arrow loads pandas at the first array of Python objects: 0.3 s to 2 s and 60 MB per process. `httpx` loads its own
command line with Rich and Pygments, and Trio if it is installed: 0.13 s (two cores, busy).
"""

import sys
from collections.abc import Collection, Sequence


class HiddenPackages:
    """An import finder that hides modules until the module `unless` is loaded."""

    def __init__(self, names: Collection[str], unless: str = "") -> None:
        self._names, self._unless = names, unless

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        """Raise `ModuleNotFoundError` for a hidden module; leave the rest to other finders."""
        if name in self._names and self._unless not in sys.modules:
            raise ModuleNotFoundError(name)
