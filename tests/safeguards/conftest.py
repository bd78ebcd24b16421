"""The executor's fixtures: safeguards are tested through a running executor."""

from tests.executor.conftest import controller, house

__all__ = ["controller", "house"]
