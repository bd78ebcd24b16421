"""The recorded lake, made once."""

from __future__ import annotations

import pytest

from tests.ledger.views.recorded import Story


@pytest.fixture(scope="session")
def story():
    """What happened, with its rows."""
    return Story().run()


@pytest.fixture(scope="session")
def lake(story, tmp_path_factory):
    """The lake that it left."""
    return story.write(tmp_path_factory.mktemp("recorded") / "lake")
