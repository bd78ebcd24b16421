"""Members on a register in an object store: they ask it only with their heartbeats."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from anabranch.executor.shards.register import MemberRegister
from tests.executor.shards.test_holding import CALL_SECONDS, SECONDS, House
from tests.lake.object_store import serving

LAKE = "s3://bucket/lake"
BEAT = (SECONDS - CALL_SECONDS) / 2
MOST_REQUESTS = 7
"""Of a heartbeat: a look, two objects, and what delta-rs reads behind its commit."""

pytestmark = pytest.mark.process


@pytest.fixture
def store(monkeypatch):
    yield from serving(monkeypatch)


def test_remote_member_asks_with_heartbeats_only(store):
    house = House(LAKE)
    only = house.start()
    store.requests()
    for house.now in (0.5, 1.0, BEAT - 0.1):
        only.beat()
    assert store.requests() == []
    house.now = BEAT
    only.beat()
    assert 0 < len(store.requests()) <= MOST_REQUESTS
    house.now = BEAT + SECONDS - CALL_SECONDS
    assert only.works[0][0].may_call()


def test_remote_member_tries_again_at_once(store, monkeypatch):
    house = House(LAKE)
    only = house.start()
    house.now = BEAT
    with monkeypatch.context() as broken:
        broken.setattr(MemberRegister, "replace", Mock(side_effect=OSError("503")))
        only.beat()
    house.now = BEAT + 0.1
    only.beat()
    house.now = BEAT + SECONDS - CALL_SECONDS
    assert only.works[0][0].may_call()


def test_remote_shards_change_hands(store):
    house = House(LAKE)
    first, second = house.start(), house.start()
    first.beat()
    assert first.at_work() == [0, 1, 2, 3]
    house.now = BEAT
    first.beat()
    first.beat()
    second.beat()
    assert (first.at_work(), second.at_work()) == ([0, 1], [2, 3])


def test_silent_remote_member_is_replaced(store):
    house = House(LAKE)
    house.start()
    second = house.start()
    for house.now in (BEAT, 2 * BEAT, SECONDS - 0.1):
        second.beat()
        assert second.at_work() == []
    house.now = SECONDS + BEAT
    second.beat()
    assert second.at_work() == [0, 1, 2, 3]
