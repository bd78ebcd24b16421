"""What is on record when an executor takes over, against a count row by row, of real tables."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from deltalake import DeltaTable

from anabranch.executor.kernel.outcomes import BegunDecision, OutcomeLedger, Shard
from lake.files import table_path
from schemas.tables.rows import OUTCOMES

NOW = datetime(2026, 11, 24, tzinfo=timezone.utc)


@pytest.mark.parametrize("seed", range(5))
def test_take_over_knows_ends_and_open_intents(tmp_path: Path, seed: int):
    rng = random.Random(seed)
    ledger = OutcomeLedger(str(tmp_path), "act")
    for _ in range(4):
        ledger.append(
            [
                ledger.row(
                    decision_id=f"d{rng.randrange(25)}",
                    family="autoscale",
                    subject=f"topic://a/b/{rng.randrange(4)}",
                    status=rng.choice(["intent", "intent", "intent", "applied", "failed"]),
                    attempt=rng.randrange(4),
                    at=NOW - timedelta(hours=rng.randrange(100)),
                )
                for _ in range(rng.randrange(12))
            ]
        )
    rows = DeltaTable(table_path(str(tmp_path), OUTCOMES)).to_pyarrow_table().to_pylist()
    for token, covers in enumerate((lambda _: True, lambda subject: subject.endswith(("1", "2"))), 1):
        shard = OutcomeLedger(str(tmp_path), "act", Shard(0, token, covers))
        mine = [row for row in rows if covers(row["subject"])]
        ended = {row["decision_id"] for row in mine if row["status"] != "intent"}
        steps: dict[str, list[dict]] = {}
        for row in mine:
            if row["decision_id"] not in ended:
                steps.setdefault(row["decision_id"], []).append(row)
        found = shard.recorded()
        assert found.ended == ended
        assert found.begun == {
            one: BegunDecision(min(row["at"] for row in of_one), max(row["attempt"] for row in of_one))
            for one, of_one in steps.items()
        }
