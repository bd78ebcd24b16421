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
from engine.autoscale.samples import AS_A_WHOLE, ELSEWHERE, Samples
from engine.kernel.records import LOAD_SCHEMA, Counts

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int8]
_CAUSES = pa.array([CAUSES[code] for code in sorted(CAUSES)])


def count_samples(counts: Counts, samples: Samples, messages: Ints, codes: Codes) -> None:
    """Counts messages and samples; `messages` has the message of each kept sample and `codes` what became of it.

    A message is accepted when one of its samples was; one in columns always, for no bucket sees all of it. Samples that
    were not kept (of sealed segments) count as stale.
    """
    accepted_by = np.bincount(messages[codes > 0], minlength=len(samples.counted)) > 0
    accepted_by |= samples.counted == AS_A_WHOLE
    is_here = samples.counted != ELSEWHERE
    here, accepted = int(is_here.sum()), int((accepted_by & is_here).sum())
    counts.messages += here
    counts.messages_accepted += accepted
    counts.messages_suppressed += here - accepted
    counts.samples += len(samples)
    counts.samples_accepted += (significant := int((codes > 0).sum()))
    counts.samples_insignificant += (insignificant := int((codes == 0).sum()))
    counts.samples_stale += len(samples) - significant - insignificant


def load_records(samples: Samples, messages: Ints, places: Ints | None, codes: Codes) -> pa.RecordBatch | None:
    """The accepted ones of the kept samples as rows of `LOAD_SCHEMA`; `places` are theirs among all samples (None: all
    were kept), `messages` those that they came in."""
    accepted = np.flatnonzero(codes > 0)
    if not len(accepted):
        return None
    messages, places = messages[accepted], accepted if places is None else places[accepted]
    rates = samples.rates[places]
    return pa.RecordBatch.from_arrays(
        [
            samples.topics.take(pa.array(samples.topic[places])),
            pa.array(samples.segment[places]),
            *(pa.array(rates[:, column]) for column in range(4)),
            samples.reporters.take(pa.array(samples.reporter[messages])),
            pa.array(samples.sampled_at[messages]),
            _CAUSES.take(pa.array(codes[accepted] - 1)),
            pa.array(samples.partition[messages]),
            pa.array(samples.offset[messages]),
            pa.array((at := samples.timestamp[messages]), mask=at == NEVER),
        ],
        schema=LOAD_SCHEMA,
    )
