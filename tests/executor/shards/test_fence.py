"""Who was overtaken records nothing more: by shard, and between this release and an older one."""

from __future__ import annotations

import pytest

from anabranch.executor.kernel.outcomes import OutcomeLedger, Shard, shut_out_older
from lake.lease import LeaseLost
from lake.tables import create_lake, open_table
from schemas.tables.rows import OUTCOMES
from tests.executor.orders import DECIDED_AT


@pytest.fixture
def lake(tmp_path):
    create_lake(tmp_path)
    return str(tmp_path)


def of_shard(lake: str, number: int, token: int) -> OutcomeLedger:
    return OutcomeLedger(lake, "act", Shard(number, token, lambda subject: subject.endswith(str(number))))


def record(ledger: OutcomeLedger, topic: str) -> None:
    ledger.append(
        [ledger.row(decision_id=topic, family="autoscale", subject=topic, status="intent", attempt=0, at=DECIDED_AT)]
    )


def test_shards_recorded_in_parallel_with_fencing(lake: str):
    """An executor overtaken on one shard is refused on that one."""
    first, other, second = of_shard(lake, 0, 1), of_shard(lake, 1, 1), of_shard(lake, 0, 5)
    record(other, "topic://a/b/1")
    record(second, "topic://a/b/0")
    record(other, "topic://a/b/11")
    with pytest.raises(LeaseLost, match="it holds lease token 5, this one had 1"):
        record(first, "topic://a/b/0")
    with pytest.raises(LeaseLost, match="it holds lease token 5, this one 4"):
        of_shard(lake, 0, 4)
    table = open_table(lake, OUTCOMES)
    assert table is not None
    assert len(table.to_pyarrow_table()) == 3
    assert set(of_shard(lake, 1, 2).recorded().begun) == {"topic://a/b/1", "topic://a/b/11"}


def test_older_executor_stops_when_newer_starts(lake: str):
    older = OutcomeLedger(lake, "act")
    shut_out_older(lake)
    with pytest.raises(LeaseLost):
        older.check_lease()
    shut_out_older(lake)
    of_shard(lake, 0, 1).check_lease()


def test_newer_executor_stops_when_older_starts(lake: str):
    shut_out_older(lake)
    one = of_shard(lake, 0, 1)
    one.check_lease()
    OutcomeLedger(lake, "act")
    with pytest.raises(LeaseLost, match="an executor of an older release was started on this lake"):
        one.check_lease()
