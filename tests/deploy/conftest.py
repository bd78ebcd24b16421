"""What tests of the chart share."""

from __future__ import annotations

import pytest

from tests.deploy.programs import installed_program


@pytest.fixture(scope="session")
def helm() -> str:
    """The program."""
    return installed_program("helm") or pytest.skip("helm is not installed, and is fetched for x86-64 Linux only")
