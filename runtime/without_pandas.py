"""Pandas hidden from Arrow, which looks for it at the first array of Python objects.

Importing it takes 0.3 s to 2 s and 60 MB per process, and nothing of ours uses it.
"""

import sys
from collections.abc import Sequence


class WithoutPandas:
    """An import finder that hides pandas until the module `unless` is loaded."""

    def __init__(self, unless: str = "") -> None:
        self._unless = unless

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        """Raise `ModuleNotFoundError` for pandas; leave the rest to other finders."""
        if name == "pandas" and self._unless not in sys.modules:
            raise ModuleNotFoundError(name)
