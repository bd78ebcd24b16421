"""Generations: change counters by which a cache detects that it is stale.

Every change increments a counter; a cache compares it with the generation from which it was built. Nobody clears
another's cache, and nothing of this is stored.
"""

from collections.abc import Iterator

MAX_NAMES = 1_000_000
"""Limit on changes remembered by name; beyond it everything counts as changed."""


class Generations:
    """Generation of the last change of each name."""

    def __init__(self) -> None:
        self.newest = 0
        """Generation of the newest change."""
        self._of_all = 0
        self._of: dict[str, int] = {}

    def change(self, name: str) -> None:
        """Record a change of one name."""
        self.newest += 1
        self._of.pop(name, None)
        self._of[name] = self.newest
        if len(self._of) > MAX_NAMES:
            self.change_all()

    def change_all(self) -> None:
        """Record a change of all names."""
        self.newest += 1
        self._of_all = self.newest
        self._of.clear()

    def of(self, name: str) -> int:
        """Return the generation of the last change of a name."""
        return self._of.get(name, self._of_all)

    def since(self, generation: int) -> Iterator[str] | None:
        """Yield the names changed after a generation, each once; None: everything."""
        return None if self._of_all > generation else self._newer(generation)

    def _newer(self, generation: int) -> Iterator[str]:
        for name in reversed(self._of):
            if self._of[name] <= generation:
                return
            yield name
