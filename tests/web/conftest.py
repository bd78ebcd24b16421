"""A small lake that several pages are shown over."""

from __future__ import annotations

from pathlib import Path

import pytest

from lake.tables import create_lake
from tests.local.lake import batch, layout_event, layout_json, write


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """A lake with one topic of one segment, and one batch."""
    lake = str(tmp_path / "lake")
    create_lake(lake)
    write(lake, layout_event(layout_json((0, 0, 0xFFFF)), 0), batch(0, 1))
    return lake
