"""An executor on a lake in an object store: few looks while idle, and the lease before each decision all the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from anabranch.executor.kernel import loop
from lake.lease import LeaseLost
from lake.tables import create_lake
from tests.executor.conftest import House
from tests.lake.object_store import ObjectStore, serving
from tests.waiting import wait_until

pytestmark = pytest.mark.process


@pytest.fixture
def store(monkeypatch):
    # So that a slow machine sees as few looks as a fast one.
    monkeypatch.setattr(loop, "IDLE_LOOK_SECONDS", float("inf"))
    yield from serving(monkeypatch)


@pytest.fixture
def remote(house: House, store: ObjectStore) -> House:
    """The house with its lake in the store."""
    create_lake("s3://bucket/lake")
    return replace(house, lake="s3://bucket/lake")


def wait_for_looks(store: ObjectStore) -> Counter[str]:
    """Wait for twenty looks at decisions; return the number of looks at each table."""
    looks = Counter[str]()

    def has_looked() -> bool:
        looks.update(request.key.split("/")[1] for request in store.requests() if request.method == "HEAD")
        return looks["decisions"] >= 20

    wait_until(has_looked, 60)
    return looks


def test_idle_executor_looks_at_decisions_only(remote, store):
    with remote.running():
        looks = wait_for_looks(store)
    assert looks["outcomes"] < 10
    assert looks["brakes"] < 10


def test_decision_after_idleness_waits_for_lease(remote, store):
    split = remote.decide(remote.create("orders"), 0)

    def overtaken() -> None:
        with remote.running() as older:
            wait_for_looks(store)
            remote.open_ledger()
            assert not older._stopping.is_set()
            remote.commit(split)
            wait_until(older._stopping.is_set, 60)

    with pytest.raises(LeaseLost, match=r"lease token 2, this one had 1"):
        overtaken()
    assert remote.outcomes() == []
