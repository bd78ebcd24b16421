"""Eight segments at twice their threshold, through the real processes: how long until all eight are split.

Run as `python -m tests.harness.eight_hot [--at-ticks]`. Kafka, job, executor and controller run
under the supervisor with the delivered policy and a tick of 60 s. One topic has eight segments; from one instant on
each of them gets twice the messages that a segment may have. With `--at-ticks` samples above a threshold lead to no
evaluation of their own, so only ticks decide. The exit code is 1 if a segment is not split within one tick and 15 s.
"""

from __future__ import annotations

import json
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import numpy as np
from deltalake import DeltaTable
from numpy.typing import ArrayLike, NDArray

from anabranch.local.demand import KEYS, DemandedSubscription
from tests.harness.shapes_live import ShapeDemand, run_shapes

SEGMENTS, LIMIT = 8, 10_000.0
"""Segments of the topic; the delivered threshold of messages in per second and segment."""
TICK_SECONDS, GRACE_SECONDS = 60, 15


class EightHot(ShapeDemand):
    """One topic with even demand over its eight segments, each at twice its threshold."""

    def __init__(self) -> None:
        self.topic, self.initial_segments = "topic://acme/hot/orders", SEGMENTS
        self.subscriptions = (DemandedSubscription("orders", "STREAM"),)
        self.origin, self.sessions = 0.0, np.ones(1, np.int64)

    def rates(self, t: float, starts: ArrayLike, ends: ArrayLike) -> NDArray[np.float64]:
        """Return messages in per second of each inclusive range, 0 before the start; the other three rates are 0."""
        widths = np.asarray(ends) + 1 - np.asarray(starts)
        figures = np.zeros((len(widths), 4))
        figures[:, 0] = (t >= self.origin) * 2 * LIMIT * SEGMENTS * widths / KEYS
        return figures

    def consumers(self, t: float) -> dict[str, int]:
        """Return the one session of the one subscription."""
        return {"orders": 1}


def splits_of(lake: str, began_at: int) -> list[tuple[float, float]]:
    """Return, for each applied split of a first segment, the seconds from the demand's start to decision and end."""
    applied = {row["decision_id"]: row["at"] for row in _rows(lake, "outcomes") if row["status"] == "applied"}
    splits = [row for row in _rows(lake, "decisions") if row["action"] == "split"]
    first = [row for row in splits if json.loads(row["arguments"])["segments"][0] < SEGMENTS]
    return sorted(
        (_seconds(row["decided_at"], began_at), _seconds(applied[row["decision_id"]], began_at))
        for row in first
        if row["decision_id"] in applied
    )


def _seconds(instant: datetime, began_at: int) -> float:
    return instant.timestamp() - began_at / 1000


def _rows(lake: str, table: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(f"{lake}/{table}").to_pyarrow_table().to_pylist()
    return rows


@click.command()
@click.option("--at-ticks", is_flag=True, help="Decide at ticks only.")
@click.option("--minutes", type=click.FloatRange(1.5, 60), default=2.0, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Keep the run here.")
def main(at_ticks: bool, minutes: float, folder: Path | None) -> None:
    """Make eight segments hot at once, and say when each was split."""
    policy = "promptSplits = false\n" if at_ticks else ""
    with tempfile.TemporaryDirectory(prefix="anabranch-hot-") as scratch:
        run = (folder or Path(scratch) / "run").resolve()
        settings, began_at = run_shapes(run, [EightHot()], minutes, policy, TICK_SECONDS)
        splits = splits_of(settings.lake_path, began_at)
    for decided, applied in splits:
        click.echo(f"decided after {decided:.1f} s, applied after {applied:.1f} s")
    in_time = sum(applied <= TICK_SECONDS + GRACE_SECONDS for _, applied in splits)
    click.echo(f"{in_time} of {SEGMENTS} segments split within {TICK_SECONDS + GRACE_SECONDS} s")
    sys.exit(0 if in_time == SEGMENTS else 1)


if __name__ == "__main__":
    main()
