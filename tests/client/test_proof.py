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


def with_offsets(last: int, *runs: dict[str, Any]) -> dict[str, list[list[dict[str, Any]]]]:
    """Records of five messages in one segment, of which a stream consumer has read up to an offset."""
    records = produced(5)
    records["producer"][0][0]["stored"] = {"7": 4}
    return {**records, "stream": [[{**run, "read": {"7": last}} for run in runs]]}


def test_verdict_says_which_segments_are_unread() -> None:
    verdict = check(with_offsets(2, received(3, 0, 2)))
    assert verdict.is_unread
    assert verdict.losses == [
        "stream: lost at the ends of 1 keys, before later ones of 0 keys",
        "stream: segment 7 read up to 2, written up to 4",
    ]


def test_verdict_tells_passed_over_from_unread_messages() -> None:
    verdict = check(with_offsets(4, received(3, 0, 1), received(4, 3, 4)))
    assert verdict.losses == [
        "stream: lost at the ends of 0 keys, before later ones of 1 keys",
        "stream: every segment was read to its end, so messages were passed over",
    ]


def test_kinds_without_faults_are_read_to_the_end() -> None:
    records = {**produced(5), "checkpoint": [[received(3, 0, 1), {"at": 4, "fault": "unreadable"}]]}
    assert not check(records).is_unread
    verdict = check({**records, "stream": [[received(3, 0, 2)]]})
    assert (verdict.is_unread, verdict.is_right) == (True, False)
    verdict = check({**records, "stream": [[received(3, 0, 4)]]})
    assert (verdict.is_unread, verdict.is_right) == (False, False)
