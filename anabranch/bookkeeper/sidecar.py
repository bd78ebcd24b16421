"""Client of the BookKeeper sidecar: opens, lists, seals, copies, verifies, deletes ledgers.

BookKeeper's own client does it in a Java program (`java/anabranch/bookies`), which is started again when it dies.

Stage: under the steps of a switch. Every call is idempotent: an existing copy is compared, half a copy is deleted and
made again, a deleted ledger stays deleted. So a call whose program died is repeated, and a whole switch may be. A
deletion has a deadline, given by the caller, which holds for all repetitions together.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from anabranch.bookkeeper.process import SidecarLost, SidecarProcess

DELETES_WITHIN_S = 15.0
"""Seconds from the instant before the term is checked to the deadline of the deletion that rests on it: a program that
was frozen meanwhile, and whose switch another carries out since, deletes nothing when it wakes up."""
_TRIES = 3
_PAGE = 20_000
"""Ids of a page; the program goes on where the page before ended."""


class LedgerRefused(RuntimeError):
    """BookKeeper, or the program, said no. `name` is one of those below, or what else BookKeeper calls it."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


NO_SUCH_LEDGER = "NoSuchLedgerExistsOnMetadataServer"
FENCED = "LedgerFenced"
"""Bookies of the target keep the id as fenced: until they have been restarted after they collected what was deleted, or
for 7 days after the last attempt. A copy that happens to go to other bookies goes through."""
CONFLICT = "Conflict"
"""The target has another ledger of that id."""
SOURCE_OPEN = "SourceOpen"
"""The source has not been closed by its writer."""
NOT_ENOUGH_BOOKIES = "NotEnoughBookies"
TOO_LATE = "TooLate"
"""The deadline of a deletion had passed; nothing was deleted."""


@dataclass(frozen=True)
class BookKeeperAddress:
    """Address of a BookKeeper cluster."""

    uri: str
    """`zk+hierarchical://HOST:PORT/ROOT`."""
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Of BookKeeper's client, such as credentials; given to the program by its standard input only."""


@dataclass(frozen=True)
class SeenLedger:
    """A ledger as it is now. Of an open one `last` lags behind what has been written, and `length` is 0."""

    closed: bool
    last: int
    """Number of the last entry; -1: empty."""
    length: int
    """Bytes of all entries."""
    custom: Mapping[str, str]
    quorums: tuple[int, ...] = ()
    """Ensemble, write and ack quorum."""
    made: int | None = field(default=None, compare=False)
    """When, ms since 1970, by the clock of who made it; None: BookKeeper does not say."""
    unreadable: str | None = None
    """Why its entries cannot be reached now; the rest is what its metadata say."""


@dataclass(frozen=True)
class CopyResult:
    """Result of a copy: made now, made again after half a copy, or already there and equal."""

    how: Literal["copied", "again", "same"]
    last: int
    length: int


@dataclass(frozen=True)
class Verified:
    """Comparison of two closed ledgers: metadata, last entry, length, and the digest of all contents."""

    same: bool
    differences: tuple[str, ...]
    last: int
    length: int
    sha256: str
    """Of ids, lengths and contents of all entries; empty when they differ without looking."""


class BookKeeperSidecar:
    """The ledgers of named clusters. Any thread may call; `concurrency` calls are at work at a time."""

    def __init__(
        self,
        command: Sequence[str],
        clusters: Mapping[str, BookKeeperAddress],
        log: Path,
        concurrency: int = 16,
        deadline_s: float = 60,
    ) -> None:
        """`command` runs the program; `deadline_s`: of a request, ten times as long if it reads contents.

        Nothing is started before the first call.
        """
        self._command, self._clusters, self._log = list(command), dict(clusters), log
        self._deadline_s = deadline_s
        self._places, self._starting = threading.BoundedSemaphore(concurrency), threading.Lock()
        self._process: SidecarProcess | None = None
        self._connected: set[str] = set()
        self.starts = 0
        """How often the program has been started."""

    def __enter__(self) -> "BookKeeperSidecar":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the program; its work in progress is left as it is."""
        if self._process is not None:
            self._process.kill()

    @property
    def pid(self) -> int | None:
        """Process id of the program, or None before the first call."""
        return self._process.pid if self._process else None

    def ledgers(self, cluster: str) -> Iterator[int]:
        """The ids of all ledgers of a cluster in ascending order, read in pages."""
        after, page = -1, [0] * _PAGE
        while len(page) == _PAGE:
            page = self._ask("list", cluster=cluster, after=after, limit=_PAGE)["ledgers"]
            yield from page
            after = page[-1] if page else after

    def open(self, cluster: str, ledger: int) -> SeenLedger:
        """The ledger as it is, without a change. Raises `LedgerRefused`, `SidecarLost`, as all below do."""
        return _read_ledger(self._ask("open", cluster=cluster, ledger=ledger))

    def seal(self, cluster: str, ledger: int) -> SeenLedger:
        """The ledger, recovered and closed: whoever writes it is fenced. Never for the target of a copy."""
        return _read_ledger(self._ask("seal", cluster=cluster, ledger=ledger))

    def copy(self, source: str, target: str, ledger: int, until: float) -> CopyResult:
        """Copy a closed ledger under the same ids; do nothing when an equal one is there.

        Half a copy is deleted and made again before `until` (seconds since 1970), and refused as `TOO_LATE` after it.
        """
        answer = self._ask("copy", 10, until=_millis(until), **{"from": source, "to": target, "ledger": ledger})
        return CopyResult(answer["how"], answer["last"], answer["length"])

    def verify(self, source: str, target: str, ledger: int) -> Verified:
        """Compare the ledger in both clusters, all contents included."""
        answer = self._ask("verify", 10, **{"from": source, "to": target, "ledger": ledger})
        return Verified(
            answer["same"], tuple(answer["differences"]), answer["last"], answer["length"], answer.get("sha256", "")
        )

    def delete(self, cluster: str, ledger: int, until: float) -> None:
        """Delete a ledger, if any, before `until` (Unix seconds); later `LedgerRefused` with `TOO_LATE`."""
        self._ask("delete", until=_millis(until), cluster=cluster, ledger=ledger)

    def _ask(self, operation: str, deadlines: float = 1, **request: object) -> dict[str, Any]:
        """Ask the program; one that dies is started and asked again, a deletion only before its deadline."""
        clusters = [str(request[role]) for role in ("cluster", "from", "to") if role in request]
        with self._places:
            for left in reversed(range(_TRIES)):
                try:
                    process = self._running(clusters)
                    deadline_s = deadlines * self._deadline_s
                    if operation == "delete" and _millis(time.time()) > int(str(request["until"])):
                        raise LedgerRefused(TOO_LATE, f"ledger {request['ledger']} is not deleted: the deadline passed")
                    return _read_answer(process.ask({"op": operation, **request}, deadline_s))
                except SidecarLost:
                    if not left:
                        raise
        raise AssertionError("unreachable")

    def _running(self, clusters: Sequence[str]) -> SidecarProcess:
        """The program, connected to these clusters. One that cannot be reached is in the way of nobody else."""
        with self._starting:
            if self._process is None or not self._process.lives:
                self._process = SidecarProcess(self._command, self._log)
                self._connected.clear()
                self.starts += 1
            for name in clusters:
                if name not in self._connected:
                    address = self._clusters[name]
                    request = {
                        "op": "connect",
                        "cluster": name,
                        "uri": address.uri,
                        "properties": dict(address.properties),
                    }
                    _read_answer(self._process.ask(request, self._deadline_s))
                    self._connected.add(name)
            return self._process


def _millis(instant: float) -> int:
    return int(instant * 1000)


def _read_answer(answer: dict[str, Any]) -> dict[str, Any]:
    if not answer["ok"]:
        raise LedgerRefused(answer["error"], answer["message"])
    return answer


def _read_ledger(answer: dict[str, Any]) -> SeenLedger:
    return SeenLedger(
        answer["closed"],
        answer["last"],
        answer["length"],
        answer["custom"],
        tuple(answer["quorums"]),
        answer["made"] if answer["made"] > 0 else None,
        answer.get("unreadable"),
    )
