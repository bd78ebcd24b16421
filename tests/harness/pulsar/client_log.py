"""Reader of the log of a load's client."""

from __future__ import annotations

from pathlib import Path


def dropped_receipts(log: Path) -> int:
    """Return the number of receipts that the client's log reports as dropped.

    The client of 5.0.0-M1 drops its connection with each; a single message in flight is then sent again and comes twice
    (docs/pulsar.md).
    """
    return log.read_text().count("ClientCnx.handleSendReceipt(")
