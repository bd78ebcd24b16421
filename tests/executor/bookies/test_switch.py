"""A whole switch by its commands, on real BookKeeper clusters and a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.executor.bookies.conftest import BookKeepers
from tests.executor.bookies.pulsar_like import PulsarLike, pulsar_like

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def pulsar(bookkeepers: BookKeepers, tmp_path: Path) -> Iterator[PulsarLike]:
    """A Pulsar whose clusters are registered."""
    with pulsar_like(bookkeepers, tmp_path) as one:
        one.register()
        yield one


def test_a_switch_moves_everything_and_a_rollback_brings_it_back_and_cleanup_loses_nothing(pulsar: PulsarLike) -> None:
    pulsar.populate(schemas=6, cursors=5)
    before = pulsar.dump()
    rehearsed = pulsar.ok("switch", "--target", "new")
    assert "12 copy (schema)" in rehearsed
    assert "5 copy (cursor)" in rehearsed
    assert pulsar.dump() == before

    done = pulsar.ok("switch", "--target", "new", "--no-dry-run")
    assert "17 of 17 on new" in done
    assert set(pulsar.attributions().values()) == {f"new:{ledger}" for ledger in pulsar.attributions()}
    assert "all in order" in pulsar.ok("check", "--contents")
    assert pulsar.answer("status")["phase"] == "CLEANUP"

    early = pulsar.run("cleanup", "--no-dry-run")
    assert early.returncode == 1
    assert "window" in early.stderr

    pulsar.ok("precheck", "--name", "old", "--advance")
    assert "17 of 17 on old" in pulsar.ok("rollback", "--no-dry-run")
    assert set(pulsar.attributions().values()) == {f"old:{ledger}" for ledger in pulsar.attributions()}
    assert "17 of 17 on new" in pulsar.ok("switch", "--target", "new", "--no-dry-run")

    pulsar.ok("cleanup", "--force", "--no-dry-run")
    there = set(pulsar.bookkeepers.hands.ledgers("old"))
    assert not there & set(pulsar.attributions())
    assert "all in order" in pulsar.ok("check", "--contents")
    assert pulsar.answer("status")["phase"] == "DONE"
