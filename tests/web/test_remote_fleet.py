"""The fleet of a lake in an object store: tables are read seldom while no page is open."""

from __future__ import annotations

import asyncio
import threading

import pytest

from anabranch.web import fleet
from tests.lake.object_store import serving
from tests.local.lake import layout_event, layout_json, write
from tests.waiting import wait_until

LAKE = "s3://bucket/lake"
WHOLE = layout_json((0, 0x0000, 0xFFFF))

pytestmark = pytest.mark.process


@pytest.fixture
def store(monkeypatch):
    yield from serving(monkeypatch)


def test_opened_page_ends_wait_for_remote_lake(store, monkeypatch):
    monkeypatch.setattr(fleet, "REMOTE_LOOK_SECONDS", (0.01, 100_000.0))
    watched = fleet.WatchedFleet(LAKE)
    follower = threading.Thread(target=watched.run, daemon=True)
    follower.start()
    try:
        wait_until(lambda: watched.version == 1, 120)
        write(LAKE, layout_event(WHOLE, 0))
        assert asyncio.run(watched.after(1, seconds=120)) > 1
    finally:
        watched.stop()
        follower.join(120)
    assert not follower.is_alive()
