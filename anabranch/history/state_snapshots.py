"""Build a horizon: the state after all batches before a midnight, by the code of a rebuild.

Stage: under `anabranch lake retain`, beside the job and all others: it only reads, and only data that does not
change.
"""

import zlib
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryDirectory

from anabranch.history.recorded import Choice, RecordedHistory, newest_before
from engine.autoscale.family import LOADS, TOPICS
from engine.autoscale.topics import ConfiguredPolicy
from engine.bundles.family import PART as BUNDLES
from engine.cluster_replay import ClustersReplay, Different
from engine.history import Batches, columns_of
from engine.kernel.settings import EngineSettings
from engine.replay import BucketReplay, RebuildError
from lake.batches import read_outline
from lake.forgotten import Retained
from lake.state_snapshots import Horizon, SnapshotPiece, newest_horizon
from schemas.tables.rows import BATCHES

PIECES = 16
"""Number of pieces in which topics are stored."""


class TooEarly(RebuildError):
    """Rows have to stay until the job has run on; nothing is wrong with the record."""


def make_horizon(
    lake: str, midnight: datetime, settings: EngineSettings, configured: ConfiguredPolicy, scratch: Path | None = None
) -> Horizon:
    """Build the horizon at a midnight (aware), starting from the previous one if any. Does not store it.

    Topics whose later rows are removed too are left out: a later horizon covers them. Memory: the state of the whole
    fleet, and a chunk of the lake. Raises `TooEarly`, `RebuildError`, and what Delta and the file system raise.
    """
    before = midnight - timedelta(microseconds=1)
    batches = Batches(read_outline(lake, columns_of(BATCHES)))
    if not batches.is_parted(midnight):
        raise RebuildError(f"the job's clock was set back over {midnight:%F}: choose another number of days")
    if not batches.goes_on_after(midnight):
        # Its first batch may be a repetition, which is compared with the rows of the last one.
        raise TooEarly(f"the job has not run since {midnight:%F}: its last rows have to stay until it has")
    with TemporaryDirectory(prefix="anabranch-horizon-", dir=scratch) as folder:
        history = RecordedHistory(lake, Path(folder), until=before, horizon=_begin(lake, before))
        if history.generation is None:
            raise RebuildError(f"no batch before {midnight:%F} is on record")
        names: list[list[str]] = [[] for _ in range(PIECES)]
        retained = Retained(lake)
        for name in history.topics:
            if (kept_from := retained.of(name)) is not None and kept_from > midnight:
                continue
            names[zlib.crc32(name.encode()) % PIECES].append(name)
        replays = [BucketReplay(settings, configured, **history.begun(some)) for some in names]
        for chunk in history.chunks():
            for replay, some in zip(replays, names, strict=True):
                for batch in chunk.of_bucket(some):
                    replay.take(batch)
    clusters = _clusters(lake, before, scratch) if history.has_clusters else ClustersReplay()
    pieces, of_older = [], set(clusters.of_older)
    for replay in replays:
        pieces.append(SnapshotPiece(replay.parts[TOPICS].pack(), replay.parts[LOADS].pack()))
        of_older |= replay.of_older
    return Horizon(
        midnight, history.generation, history.next_offsets, frozenset(of_older), pieces, clusters.parts[BUNDLES].pack()
    )


def _begin(lake: str, until: datetime) -> Choice:
    """Return a chooser of the newest horizon, whatever was removed of single namespaces."""
    needed, is_cut = newest_before(lake, until, ()), Retained(lake).anywhere is not None

    def choose(batches: Batches) -> Horizon | None:
        if (horizon := needed(batches)) is not None or not is_cut:
            return horizon
        newest = newest_horizon(lake, batches.generations, until)
        return newest if newest is not None and batches.is_parted(newest.at) else None

    return choose


def _clusters(lake: str, until: datetime, scratch: Path | None) -> ClustersReplay:
    """Return all clusters with bundles, as of that instant."""
    with TemporaryDirectory(prefix="anabranch-horizon-", dir=scratch) as folder:
        history = RecordedHistory(lake, Path(folder), until=until, horizon=_begin(lake, until), of_clusters=True)
        names = history.topics
        replay = ClustersReplay(**history.begun_clusters(names))
        for chunk in history.chunks():
            for batch in chunk.of_bucket(names):
                refuse(replay.take(batch))
    return replay


def refuse(different: Sequence[Different]) -> None:
    """Raise `RebuildError` if clusters differ from the record."""
    for difference in different[:1]:
        instant = datetime.fromtimestamp(difference.at / 1000, timezone.utc)
        raise RebuildError(f"the cluster {difference.cluster} at {instant:%F %T} UTC: {difference.text}")
