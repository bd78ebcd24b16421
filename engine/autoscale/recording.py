"""Counting and recording of samples, as counters and rows of `segment_load`.

Stage: the last two of a sample (parse, filter, store, count, record). `engine.kernel.recording` does the same for
events; `engine.autoscale.evaluation` makes the rows of `decisions` and `holds`.
"""

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
    """Count messages and samples.

    `messages` is the message of each kept sample, `codes` its result. A message is accepted when one of its samples
    is; a message in columns always, because no bucket sees all of it. Dropped samples (of sealed segments) count as
    stale.
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


def load_records(samples: Samples, messages: Ints, indexes: Ints | None, codes: Codes) -> pa.RecordBatch | None:
    """Return the accepted samples as rows of `LOAD_SCHEMA`, or None.

    `indexes` are the positions of the kept samples among all (None: all were kept), `messages` their messages.
    """
    accepted = np.flatnonzero(codes > 0)
    if not len(accepted):
        return None
    messages, indexes = messages[accepted], accepted if indexes is None else indexes[accepted]
    rates = samples.rates[indexes]
    return pa.RecordBatch.from_arrays(
        [
            samples.topics.take(pa.array(samples.topic[indexes])),
            pa.array(samples.segment[indexes]),
            *(pa.array(rates[:, column]) for column in range(4)),
            samples.reporters.take(pa.array(samples.reporter[messages])),
            pa.array(samples.sampled_at[messages]),
            _CAUSES.take(pa.array(codes[accepted] - 1)),
            pa.array(samples.partition[messages]),
            pa.array(samples.offset[messages]),
            pa.array((timestamps := samples.timestamp[messages]), mask=timestamps == NEVER),
        ],
        schema=LOAD_SCHEMA,
    )
