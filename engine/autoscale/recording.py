"""Counting and recording of samples: what became of each, and the rows of `segment_load`.

Stage: the last two of a sample's way (parse, filter, store, count, record). Events are counted and recorded by
`engine.kernel.recording`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from decisions.autoscale.clocks import NEVER
from decisions.autoscale.significance import CAUSES
from engine.autoscale.loads import STALE
from engine.autoscale.samples import Samples
from engine.kernel.records import LOAD_SCHEMA, Counts

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int8]
_CAUSES = np.array([None, *(CAUSES[code] for code in sorted(CAUSES))], np.object_)


def count_samples(counts: Counts, samples: Samples, owners: Ints, codes: Codes) -> None:
    """Counts messages and samples; `owners` is the message of each kept sample and `codes` what became of it.

    A message is accepted when one of its samples was. Samples that were not kept (of sealed segments) count as stale.
    """
    accepted_by = np.bincount(owners[codes > 0], minlength=len(samples)) > 0
    accepted = int(accepted_by.sum())
    counts.messages_accepted += accepted
    counts.messages_suppressed += len(samples) - accepted
    counts.samples += len(samples.segments)
    counts.samples_accepted += int((codes > 0).sum())
    counts.samples_stale += int((codes == STALE).sum()) + len(samples.segments) - len(codes)
    counts.samples_insignificant += int((codes == 0).sum())


def load_records(samples: Samples, owners: Ints, places: Ints, codes: Codes) -> pa.RecordBatch | None:
    """The accepted ones of the kept samples as rows of `LOAD_SCHEMA`; `places` are theirs among all samples."""
    accepted = np.flatnonzero(codes > 0)
    if not len(accepted):
        return None
    owners, places = owners[accepted], places[accepted]
    rates = samples.rates[places]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(samples.topics, pa.string()).take(owners),
            pa.array(samples.segments[places]),
            *(pa.array(rates[:, column]) for column in range(4)),
            pa.array(samples.reporters, pa.string()).take(owners),
            pa.array(samples.sampled_at[owners]),
            pa.array(_CAUSES[codes[accepted]], pa.string()),
            pa.array(samples.partitions[owners].astype(np.int64)),
            pa.array(samples.offsets[owners]),
            pa.array((at := samples.timestamps[owners]), mask=at == NEVER),
        ],
        schema=LOAD_SCHEMA,
    )
