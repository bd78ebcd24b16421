"""The proof of the clients, for a minute; and its checker notices what is wrong."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from anabranch.local.setup import Jars
from tests.client.proof import brokers, prove, running
from tests.client.proof_check import KINDS, Checker, Coverage, Verdict
from tests.client.proof_record import POSITION, PRODUCED, ROW, RUN, Record, Recorder, rows_of, runs_of


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.broker
def test_nothing_lost_whoever_is_killed(jars: Jars, tmp_path: Path) -> None:
    parties = ["producer", "stream", "controller", "queue", "checkpoint", "broker", "stall"]
    with (
        brokers(tmp_path, jars.kafka, three=False, seed=35) as broker,
        running(tmp_path, broker, rate=500, consumers=2, seed=35) as proof,
    ):
        verdict = prove(proof, 25, parties)
        assert verdict.is_right, str(verdict)
        assert verdict.produced > 3_000
        assert verdict.consumed.keys() == set(KINDS)
        assert proof.done["split"] > 1
        assert proof.done["merge"] > 1


KEY = 7


class Rows:
    """Record of one process."""

    def __init__(self, *rows: Any, faults: tuple[str, ...] = ()) -> None:
        self._rows, self._faults = list(rows), faults

    def read(self) -> Any:
        rows, self._rows = self._rows, []
        return np.concatenate([np.empty(0, ROW), *rows])

    def faults(self) -> list[str]:
        return list(self._faults)


def check(records: dict[str, list[Rows]]) -> Verdict:
    checker = Checker(cast(dict[str, list[Record]], records))
    checker.read()
    return checker.verdict()


def produced(count: int, acknowledged: int | None = None) -> dict[str, list[Rows]]:
    stored = count if acknowledged is None else acknowledged
    return {"producer": [Rows(received(1, 0, stored - 1), rows_of(PRODUCED, 2, [KEY], 0, count - 1))]}


def received(at: int, first: int, last: int) -> Any:
    return rows_of(RUN, at, [KEY], first, last)


def position(at: int, segment: int, offset: int) -> Any:
    return rows_of(POSITION, at, [segment], offset, offset)


@pytest.mark.parametrize("kind", KINDS)
def test_complete_records_are_right(kind: str) -> None:
    verdict = check({**produced(5), kind: [Rows(received(3, 0, 2), received(4, 2, 4))]})
    assert verdict.is_right
    assert (verdict.produced, verdict.consumed[kind], verdict.duplicates[kind]) == (5, 5, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_missing_messages_are_noticed(kind: str) -> None:
    verdict = check({**produced(5), kind: [Rows(received(3, 0, 1), received(4, 3, 4))]})
    assert verdict.lost[kind] == 1
    assert not verdict.is_right


@pytest.mark.parametrize(("kind", "wrong"), [("stream", 1), ("queue", 0), ("checkpoint", 1)])
def test_messages_out_of_order_are_noticed(kind: str, wrong: int) -> None:
    verdict = check({**produced(5), kind: [Rows(received(3, 3, 4), received(4, 0, 2))]})
    assert verdict.out_of_order[kind] == wrong
    assert verdict.is_right is not bool(wrong)


def test_order_counts_across_consumers_of_a_group() -> None:
    verdict = check({**produced(4), "stream": [Rows(received(5, 2, 3)), Rows(received(3, 0, 1))]})
    assert verdict.is_right
    verdict = check({**produced(4), "checkpoint": [Rows(received(5, 2, 3)), Rows(received(3, 0, 1))]})
    assert verdict.lost["checkpoint"] == 4


def test_order_counts_across_readings() -> None:
    """A stopped process may add what is older than that of others: nothing young is counted before the end."""
    early, late = Rows(received(5, 2, 3)), Rows()
    checker = Checker(cast(dict[str, list[Record]], {**produced(4), "stream": [early, late]}))
    checker.read(5)
    assert (checker.recorded("producer"), checker.recorded("stream")) == (4, 0)
    late._rows.append(received(4, 0, 1))
    checker.read()
    assert checker.verdict().is_right


def test_unreported_messages_are_faults() -> None:
    assert check(produced(2, acknowledged=1)).faults == ["p0.0-7: 2 produced, 1 acknowledged"]


def test_reports_are_checked() -> None:
    reports = Rows(received(1, 1, 1), received(2, 0, 0), received(3, 1, 1))
    assert check({"producer": [reports]}).faults == [
        "producer: 1 reports out of order",
        "producer: 1 reports of messages reported before",
    ]


def test_intervals_are_those_of_single_messages() -> None:
    """Against sets of numbers, for random runs that come in pieces."""
    chance = np.random.default_rng(35)
    coverage, seen, wrong = Coverage(), defaultdict[int, set[int]](set), 0
    for at in range(200):
        keys = chance.integers(0, 5, 4) << 48
        firsts = chance.integers(0, 60, 4)
        rows = rows_of(RUN, at, keys, firsts, firsts + chance.integers(0, 4, 4))
        coverage.add(rows)
        for row in rows:
            numbers = seen[int(row["key"])]
            wrong += row["first"] > max(numbers, default=-1) + 1
            numbers.update(range(row["first"], row["last"] + 1))
        assert coverage.out_of_order == wrong
        tops, counts = coverage.counts()
        assert tops == {key: max(numbers) + 1 for key, numbers in seen.items()}
        assert counts == {key: len(numbers) for key, numbers in seen.items()}


class Received:
    """Message of a client."""

    def __init__(self, key: int, number: int, other_key: int | None = None) -> None:
        self._key = (key if other_key is None else other_key).to_bytes(8, "little")
        self._value = key.to_bytes(8, "little") + number.to_bytes(8, "little")

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes:
        return self._value


def test_messages_are_recorded_as_runs() -> None:
    messages = [Received(1, 5), Received(2, 0), Received(1, 6), Received(1, 8), Received(1, 7)]
    runs = [(row["key"], row["first"], row["last"]) for row in runs_of(messages, 3)]
    assert runs == [(1, 5, 6), (1, 8, 8), (1, 7, 7), (2, 0, 0)]
    with pytest.raises(ValueError, match="another key"):
        runs_of([Received(1, 5, other_key=2)], 3)


def test_record_of_a_killed_process_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "stream.rows"
    record = Record(file)
    assert not len(record.read())
    Recorder(file).write(received(1, 0, 1), {})
    with file.open("ab") as cut:
        cut.write(b"half")
    assert len(record.read()) == 1
    Recorder(file).write(received(2, 2, 3), {9: 4})
    assert [(row["kind"], row["last"]) for row in record.read()] == [(RUN, 3), (POSITION, 4)]
    Recorder(file).fault("line\nbreak")
    assert record.faults() == ["line break"]


def with_offsets(last: int, *runs: Any) -> dict[str, list[Rows]]:
    """Records of five messages in one segment, of which a stream consumer has read up to an offset."""
    records = produced(5)
    records["producer"].append(Rows(position(1, 7, 4)))
    return {**records, "stream": [Rows(*runs, position(9, 7, last))]}


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
    def records(*stream: Rows) -> dict[str, list[Rows]]:
        left = Rows(received(3, 0, 1), faults=("unreadable",))
        return {**produced(5), "checkpoint": [left], **({"stream": list(stream)} if stream else {})}

    assert not check(records()).is_unread
    verdict = check(records(Rows(received(3, 0, 2))))
    assert (verdict.is_unread, verdict.is_right) == (True, False)
    verdict = check(records(Rows(received(3, 0, 4))))
    assert (verdict.is_unread, verdict.is_right) == (False, False)
