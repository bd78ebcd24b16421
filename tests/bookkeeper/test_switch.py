"""A whole switch by its commands, on real BookKeeper clusters and a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bookkeeper.conftest import BookKeepers, soon
from tests.bookkeeper.pulsar_like import CLEANUP, ROLLBACK, SWITCH, PulsarLike, pulsar_like
from tests.harness.ledger_writer import LedgerWriter
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def pulsar(bookkeepers: BookKeepers, tmp_path: Path) -> Iterator[PulsarLike]:
    """A Pulsar whose clusters are registered."""
    with pulsar_like(bookkeepers, tmp_path) as one:
        one.register()
        yield one


def test_switch_rollback_cleanup_lose_nothing(pulsar: PulsarLike) -> None:
    pulsar.populate(schemas=6, cursors=5)
    before = pulsar.dump()
    rehearsed = pulsar.ok("switch", "--target", "new")
    assert "12 copy (schema)" in rehearsed
    assert "5 copy (cursor)" in rehearsed
    assert pulsar.dump() == before

    done = pulsar.ok(*SWITCH)
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
    # The ids of old are beyond those of new now: both would give the same ones.
    refused = pulsar.run("switch", "--target", "new", "--no-dry-run")
    assert (refused.returncode, "ids-beyond-source" in refused.stderr) == (1, True)
    pulsar.ok("precheck", "--name", "new", "--advance")
    assert "17 of 17 on new" in pulsar.ok(*SWITCH)

    pulsar.ok("cleanup", "--force", "--no-dry-run")
    there = set(pulsar.bookkeepers.sidecar.ledgers("old"))
    assert not there & set(pulsar.attributions())
    assert "all in order" in pulsar.ok("check", "--contents")
    assert pulsar.answer("status")["phase"] == "DONE"


@pytest.mark.soak
def test_commands_on_real_clusters_fail_closed(pulsar: PulsarLike) -> None:
    """A source that is away; brokers that run where "stopped" is claimed."""
    pulsar.populate(schemas=2, cursors=1)
    before, uri = pulsar.contents(), pulsar.bookkeepers.clusters["old"].uri

    def refused(*arguments: str) -> str:
        stamps, done = pulsar.attributions(), pulsar.run(*arguments)
        assert (done.returncode, pulsar.attributions(), pulsar.contents()) == (1, stamps, before)
        return done.stderr

    path = "/admin/bookie-clusters/old"
    registered, _ = pulsar.client.get(path)
    pulsar.client.set(path, registered.replace(uri.partition("//")[2].encode(), b"127.0.0.1:1/ledgers"))
    assert "nothing is known of the ids of old" in refused(*SWITCH)
    pulsar.client.set(path, registered)

    broker = "/loadbalance/brokers/broker-1:8080"
    pulsar.client.create(broker, ephemeral=True, makepath=True)
    assert "registered now, such as broker-1:8080" in refused(*SWITCH)
    pulsar.client.delete(broker)
    pulsar.ok(*SWITCH)
    pulsar.client.create(broker, ephemeral=True)
    for command in (ROLLBACK, CLEANUP):
        assert "registered now, such as broker-1:8080" in refused(*command)
    pulsar.client.delete(broker)
    pulsar.ok(*CLEANUP)
    assert pulsar.contents() == before


def test_failed_ledgers_explained_and_retried(pulsar: PulsarLike) -> None:
    """Status says why three ledgers failed and what to do; the retry takes them."""
    bookkeepers = pulsar.bookkeepers
    pulsar.populate(schemas=2, cursors=2)
    [taken], [lost], [open_one] = pulsar.ledgers(), pulsar.ledgers(), pulsar.ledgers(leave_open=True)
    pulsar.schema("taken", [taken])
    pulsar.cursor("lost", "sub", lost)
    pulsar.schema("open", [open_one])
    bookkeepers.write("new", ledger=taken, seed=99)
    bookkeepers.sidecar.delete("old", lost, soon())

    rehearsed = pulsar.ok("switch", "--target", "new")
    assert "would fail: ledger" in rehearsed
    done = pulsar.run("switch", "--target", "new", "--no-dry-run")
    assert done.returncode == 1
    assert "6 of 8 on new" in done.stdout
    assert "3 were not moved" in done.stderr
    shown = pulsar.ok("status")
    for ledger, what, advice in (
        (taken, "/schemas/t/n/taken", "delete them there"),
        (lost, "/managed-ledgers/t/n/persistent/lost/sub", "Reset a subscription"),
        (open_one, "/schemas/t/n/open", "read this schema once"),
    ):
        at = shown.index(f": ledger {ledger} of {what}")
        assert advice in shown[at : at + 400]
    assert "next: anabranch bookies switch --target new --no-dry-run" in shown
    assert pulsar.attributions()[taken] is None
    kept = pulsar.answer("cleanup", "--force")
    assert taken not in [one["ledger"] for one in kept["steps"] if one["action"] == "delete"]

    # As it says: what nobody needs is deleted there, the subscription is reset, the schema is read.
    bookkeepers.sidecar.delete("new", taken, soon())
    pulsar.client.delete("/managed-ledgers/t/n/persistent/lost/sub")
    bookkeepers.sidecar.seal("old", open_one)
    done = pulsar.run("switch", "--target", "new", "--no-dry-run")
    if done.returncode:
        # Bookies remember an id that was deleted; those of another place in the ring may not.
        assert "LedgerFenced" in done.stdout
    else:
        assert "8 of 8 on new" in done.stdout
        assert "all in order" in pulsar.ok("check", "--contents")


def test_what_others_change_meanwhile_is_kept(pulsar: PulsarLike) -> None:
    """A version that is put, a subscription that rolls over, one that is folded into its znode, one that is deleted."""
    pulsar.populate(schemas=1, cursors=0)
    first, rolled, folded, gone = pulsar.ledgers(4)
    path = pulsar.schema("growing", [first])
    cursors = [pulsar.cursor("t", name, ledger) for name, ledger in (("r", rolled), ("f", folded), ("g", gone))]
    pulsar.ok(*SWITCH)
    before = pulsar.attributions()
    assert set(before.values()) == {f"new:{ledger}" for ledger in before}

    # As brokers with PIP-477 write them: new ledgers on the target, stamped.
    [second] = bookkeepers_write_on_new(pulsar)
    pulsar.client.set(path, pulsar.locator([first, second], {first: f"new:{first}", second: f"new:{second}"}))
    pulsar.client.set(cursors[0], pulsar.cursor_record(second, f"new:{second}"))
    pulsar.client.set(cursors[1], pulsar.cursor_record(-1, f"new:{folded}"))
    pulsar.client.delete(cursors[2])
    assert "all in order" in pulsar.ok("check", "--contents")
    deleted = pulsar.answer("cleanup", "--force", "--no-dry-run")
    assert {rolled, folded, gone, first} <= {one["ledger"] for one in deleted["steps"] if one["action"] == "delete"}
    assert "all in order" in pulsar.ok("check", "--contents")


def bookkeepers_write_on_new(pulsar: PulsarLike) -> list[int]:
    """A ledger that a broker makes on the target; a client from before its ids were advanced would give short ones."""
    broker = LedgerWriter(pulsar.bookkeepers.programs, pulsar.folder)
    try:
        return broker.write(pulsar.bookkeepers.clusters["new"].uri, custom={"component": "schema"}, seed=5)
    finally:
        broker.close()


@pytest.mark.soak
def test_missing_bookies_fail_then_retry_succeeds(pulsar: PulsarLike) -> None:
    old, new = (pulsar.bookkeepers.clusters[name] for name in ("old", "new"))
    ids = pulsar.ledgers(12)
    [wide] = pulsar.ledgers(quorum=2)
    pulsar.schema("narrow", ids)
    pulsar.schema("wide", [wide])
    old.bookies[1].kill()
    new.bookies[1].kill()
    try:
        # BookKeeper finds out when the bookies' sessions end.
        gone = {old: old.bookies[1].id, new: new.bookies[1].id}
        for cluster, bookie in gone.items():
            wait_until(lambda cluster=cluster, bookie=bookie: bookie not in cluster.available(), 30)
        done = pulsar.run("switch", "--target", "new", "--no-dry-run")
        assert done.returncode == 1
        failed = {one["ledger"]: one["reason"] for one in pulsar.answer("status")["failedLedgers"]}
        assert wide in failed
        assert 0 < len(set(failed) & set(ids)) < len(ids)
        shown = pulsar.ok("status")
        assert "start more, then try again" in shown
        assert "bring back what cannot be read" in shown
    finally:
        old.start()
        new.start()
    assert "13 of 13 on new" in pulsar.ok(*SWITCH)
    assert "all in order" in pulsar.ok("check", "--contents")


@pytest.mark.soak
def test_switch_within_one_zookeeper_cleans_up(bookkeepers: BookKeepers, tmp_path: Path) -> None:
    """The clusters share a ZooKeeper; cleanup touches the source's side only."""
    with pulsar_like(bookkeepers, tmp_path) as pulsar:
        pulsar.register("colo")
        pulsar.populate(schemas=6, cursors=5)
        same = pulsar.run(
            "register", "--name", "twin", "--metadata-service-uri", bookkeepers.clusters["colo"].uri + "/"
        )
        assert same.returncode == 1
        alias = bookkeepers.clusters["old"].uri.replace("127.0.0.1", "127.1")
        twin = pulsar.run("register", "--name", "twin", "--metadata-service-uri", alias)
        assert (twin.returncode, "are one BookKeeper cluster" in twin.stderr) == (1, True)
        assert "17 of 17 on colo" in pulsar.ok("switch", "--target", "colo", "--no-dry-run")
        assert "all in order" in pulsar.ok("check", "--contents")
        pulsar.ok("cleanup", "--force", "--no-dry-run")
        assert not set(bookkeepers.sidecar.ledgers("old")) & set(pulsar.attributions())
        assert "all in order" in pulsar.ok("check", "--contents")
        assert pulsar.answer("status")["phase"] == "DONE"
