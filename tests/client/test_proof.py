"""The proof of the clients, for a minute; and its checker notices what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anabranch.local.setup import Jars
from tests.client.proof import brokers, prove, running
from tests.client.proof_check import KINDS, check


@pytest.mark.process
@pytest.mark.broker
def test_nothing_lost_whoever_is_killed(jars: Jars, tmp_path: Path) -> None:
    parties = ["producer", "stream", "controller", "queue", "checkpoint", "broker", "stall"]
    with (
        brokers(tmp_path, jars.kafka, three=False, seed=35) as broker,
        running(tmp_path, broker, rate=500, consumers=2, seed=35) as proof,
    ):
        verdict = prove(proof, 40, parties)
        assert verdict.is_right, str(verdict)
        assert verdict.produced > 3_000
        assert verdict.consumed.keys() == set(KINDS)
        assert proof.done["split"] > 1
        assert proof.done["merge"] > 1


def produced(count: int) -> dict[str, Any]:
    return {"producer": [[{"at": 1, "acknowledged": {"k": count}}, {"at": 2, "produced": {"k": count}}]]}


def received(at: int, first: int, last: int) -> dict[str, Any]:
    return {"at": at, "runs": [["k", first, last]]}


@pytest.mark.parametrize("kind", KINDS)
def test_complete_records_are_right(kind: str) -> None:
    verdict = check({**produced(5), kind: [[received(3, 0, 2), received(4, 2, 4)]]})
    assert verdict.is_right
    assert (verdict.produced, verdict.consumed[kind], verdict.duplicates[kind]) == (5, 5, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_missing_messages_are_noticed(kind: str) -> None:
    verdict = check({**produced(5), kind: [[received(3, 0, 1), received(4, 3, 4)]]})
    assert verdict.lost[kind] == 1
    assert not verdict.is_right


@pytest.mark.parametrize(("kind", "wrong"), [("stream", 1), ("queue", 0), ("checkpoint", 1)])
def test_messages_out_of_order_are_noticed(kind: str, wrong: int) -> None:
    verdict = check({**produced(5), kind: [[received(3, 3, 4), received(4, 0, 2)]]})
    assert verdict.out_of_order[kind] == wrong
    assert verdict.is_right is not bool(wrong)


def test_order_counts_across_consumers_of_a_group() -> None:
    verdict = check({**produced(4), "stream": [[received(5, 2, 3)], [received(3, 0, 1)]]})
    assert verdict.is_right
    verdict = check({**produced(4), "checkpoint": [[received(5, 2, 3)], [received(3, 0, 1)]]})
    assert verdict.lost["checkpoint"] == 4


def test_unreported_messages_are_faults() -> None:
    records = {"producer": [[{"at": 1, "acknowledged": {"k": 1}}, {"at": 2, "produced": {"k": 2}}]]}
    assert check(records).faults == ["k: 2 produced, 1 acknowledged"]
