"""Ledger of a topic: every message produced and consumed, and whether each key's order held.

Stage: under `topic`. Messages of a key are numbered 0, 1, 2, …; the value names the life of the process that wrote it,
as topics outlive a run. Delivery is at least once: a message that comes again is counted, and is no fault.
"""

import threading
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

VALUE_BYTES = 100


class LedgerTotals(NamedTuple):
    """Counts of one or several topics."""

    produced: int = 0
    """Messages that Kafka has acknowledged."""
    consumed: int = 0
    """Of these, those that were received, each once."""
    lost: int = 0
    """Of these, the others."""
    out_of_order: int = 0
    """Messages that came after a later one of their key."""
    repeated: int = 0
    """Messages that came again."""
    failed: int = 0
    """Messages that were not acknowledged."""

    def counts(self) -> dict[str, int]:
        """Return the counts by their names in files and reports."""
        return {("outOfOrder" if name == "out_of_order" else name): count for name, count in self._asdict().items()}

    def plus(self, other: "LedgerTotals") -> "LedgerTotals":
        """Return the sum."""
        return LedgerTotals(*(mine + its for mine, its in zip(self, other, strict=True)))


class MessageLedger:
    """Messages of one topic in one life of the process. Thread-safe."""

    def __init__(self, life: str) -> None:
        self._life = life.encode()
        self._lock = threading.Lock()
        self._handed: dict[bytes, int] = defaultdict(int)
        self._unacknowledged: dict[bytes, set[int]] = defaultdict(set)
        self._failed: set[tuple[bytes, int]] = set()
        self._newest: dict[bytes, int] = defaultdict(lambda: -1)
        self._gaps: dict[bytes, set[int]] = defaultdict(set)
        """Numbers below the newest that have not come."""
        self._consumed = self._out_of_order = self._repeated = 0

    def write_value(self, key: bytes) -> bytes:
        """Return the next message of a key, which counts as handed over."""
        with self._lock:
            number = self._handed[key]
            self._handed[key] += 1
            self._unacknowledged[key].add(number)
        return b"%b %d " % (self._life, number) + b"." * (VALUE_BYTES - 2 - len(self._life) - len(str(number)))

    def take_back(self, key: bytes) -> None:
        """Take back the newest message of a key, which the producer has refused."""
        with self._lock:
            self._handed[key] -= 1
            self._unacknowledged[key].discard(self._handed[key])

    def settle(self, key: bytes, value: bytes, is_stored: bool) -> None:
        """Record the report of a message."""
        number = int(value.split(b" ", 2)[1])
        with self._lock:
            self._unacknowledged[key].discard(number)
            # A message can be stored, and read, before its report says that it is not.
            if not is_stored and not self._has_arrived(key, number):
                self._failed.add((key, number))

    def receive(self, messages: Iterable[tuple[bytes, bytes]]) -> None:
        """Record received messages, each key and value; those of earlier lives and of others do not count."""
        with self._lock:
            for key, value in messages:
                if value.startswith(self._life + b" "):
                    self._receive(key, int(value.split(b" ", 2)[1]))

    def _has_arrived(self, key: bytes, number: int) -> bool:
        return number <= self._newest[key] and number not in self._gaps[key]

    def _receive(self, key: bytes, number: int) -> None:
        newest = self._newest[key]
        if number > newest:
            self._gaps[key].update(range(newest + 1, number))
            self._newest[key] = number
        elif number in self._gaps[key]:
            self._gaps[key].discard(number)
            self._out_of_order += 1
        else:
            self._repeated += 1
            return
        self._consumed += 1
        # Reported as failed, and stored all the same.
        self._failed.discard((key, number))

    def totals(self) -> LedgerTotals:
        """Return the counts; what is on its way counts as lost only if it never comes."""
        with self._lock:
            handed = sum(self._handed.values())
            waiting = sum(map(len, self._unacknowledged.values()))
            arrived = sum(
                self._has_arrived(key, number) for key, numbers in self._unacknowledged.items() for number in numbers
            )
            produced = handed - waiting + arrived - len(self._failed)
            return LedgerTotals(
                produced,
                self._consumed,
                produced - self._consumed,
                self._out_of_order,
                self._repeated,
                len(self._failed),
            )
