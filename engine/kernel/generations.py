"""Generations: numbers that grow with each change, so that a cache sees by itself what of it is out of date.

What changes counts up; a cache remembers the generation that it was made in and compares. Nobody clears a cache of
somebody else. Nothing of it is stored.
"""

from __future__ import annotations

from collections.abc import Iterator

MAX_NAMES = 1_000_000
"""Changes that are remembered one by one; beyond that everything counts as changed."""


class Generations:
    """When each of many named things changed last."""

    def __init__(self) -> None:
        self.newest = 0
        """The generation of the newest change."""
        self._of_all = 0
        self._of: dict[str, int] = {}

    def change(self, name: str) -> None:
        """One of them is another now."""
        self.newest += 1
        self._of.pop(name, None)
        self._of[name] = self.newest
        if len(self._of) > MAX_NAMES:
            self.change_all()

    def change_all(self) -> None:
        """All of them are others now."""
        self.newest += 1
        self._of_all = self.newest
        self._of.clear()

    def of(self, name: str) -> int:
        """The generation in which it changed last."""
        return self._of.get(name, self._of_all)

    def since(self, generation: int) -> Iterator[str] | None:
        """Names of what has changed after a generation, each once; None: everything."""
        return None if self._of_all > generation else self._newer(generation)

    def _newer(self, generation: int) -> Iterator[str]:
        for name in reversed(self._of):
            if self._of[name] <= generation:
                return
            yield name
