"""The executor's fixtures: safeguards are tested through a running executor."""

from tests.executor.conftest import controller, empty_lake, house

__all__ = ["controller", "empty_lake", "house"]
