"""Recorded clusters with bundles: every cycle run again by this release.

Stage: beside `report`, under `anabranch decisions replay`. A cycle depends on nothing outside the tables, so all of it
is compared: decisions and holds, and the absence of others.
"""

import time
from collections.abc import Collection
from datetime import datetime, timezone

from anabranch.history.recorded import RecordedHistory
from anabranch.history.replay.report import Progress, Replayed
from engine.cluster_replay import ClustersReplay


def replay_clusters(
    replayed: Replayed,
    recorded: RecordedHistory,
    since: int | None = None,
    clusters: Collection[str] | None = None,
    progress: Progress = lambda *_: None,
) -> None:
    """Add differences of clusters since `since` (milliseconds; None: all). Raises as reading the record."""
    names = [name for name in recorded.topics if clusters is None or name in clusters]
    replay = ClustersReplay(**recorded.begun_clusters(names), every_version=True)
    next_told = 0.0
    for chunk in recorded.chunks():
        for batch in chunk.of_bucket(names):
            before = replay.decisions, replay.holds, replay.evaluations
            different = replay.take(batch)
            if since is not None and batch.now < since:
                continue
            replayed.since = batch.now if replayed.since is None else min(replayed.since, batch.now)
            replayed.until = batch.now if replayed.until is None else max(replayed.until, batch.now)
            replayed.decisions += replay.decisions - before[0]
            replayed.holds += replay.holds - before[1]
            replayed.evaluations += replay.evaluations - before[2]
            for difference in different:
                instant = datetime.fromtimestamp(difference.at / 1000, timezone.utc)
                replayed.add(f"cluster {difference.cluster} at {instant:%F %T} UTC: {difference.text}")
            if (now := time.monotonic()) >= next_told:
                next_told = now + 1.0
                progress(replayed.decisions + replayed.holds, batch.now)
