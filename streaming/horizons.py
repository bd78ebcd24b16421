"""Makes a horizon: the state that all batches before a midnight lead to, by the code of a rebuild.

Stage: under `anabranch lake retain`, beside the job and all others: it only reads, and what it reads does not change.
"""

from __future__ import annotations

import zlib
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from engine.autoscale.family import LOADS, TOPICS
from engine.autoscale.topics import ConfiguredPolicy
from engine.history import Batches, columns_of
from engine.kernel.settings import EngineSettings
from engine.replay import BucketReplay, RebuildError
from lake.horizons import Horizon, Piece
from lake.tables import read_columns
from schemas.tables import BATCHES
from streaming.recorded import RecordedHistory, newest_before

PIECES = 16
"""In which the topics are kept."""


def make_horizon(
    lake: str, at: datetime, settings: EngineSettings, configured: ConfiguredPolicy, scratch: Path | None = None
) -> Horizon:
    """The horizon at a midnight (aware), from the one before it on if there is one. It is not written.

    Memory: the state of the whole fleet, and a chunk of the lake. Raises `RebuildError`, and what Delta and the file
    system raise.
    """
    before = at - timedelta(microseconds=1)
    batches = Batches(read_columns(lake, BATCHES, columns_of(BATCHES)))
    if not batches.is_parted(at):
        raise RebuildError(f"the job's clock was set back over {at:%F}: choose another number of days")
    if not batches.goes_on_after(at):
        # Its first batch may be a repetition, which is compared with the rows of the last one.
        raise RebuildError(f"the job has not run since {at:%F}: its last rows have to stay until it has")
    with TemporaryDirectory(prefix="anabranch-horizon-", dir=scratch) as folder:
        history = RecordedHistory(lake, Path(folder), until=before, horizon=newest_before(lake, before))
        if history.generation is None:
            raise RebuildError(f"no batch before {at:%F} is on record")
        names: list[list[str]] = [[] for _ in range(PIECES)]
        for name in history.topics:
            names[zlib.crc32(name.encode()) % PIECES].append(name)
        replays = [BucketReplay(settings, configured, **history.begun(some)) for some in names]
        for chunk in history.chunks():
            for replay, some in zip(replays, names, strict=True):
                for batch in chunk.of_bucket(some):
                    replay.take(batch)
    pieces, of_older = [], set[str]()
    for replay in replays:
        parts = replay.packed().parts
        pieces.append(Piece(parts[TOPICS].base, parts[LOADS].base))
        of_older |= replay.of_older
    return Horizon(at, history.generation, history.next_offsets, frozenset(of_older), pieces)
