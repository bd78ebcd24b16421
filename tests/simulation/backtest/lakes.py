"""Lakes as jobs write them, with a file of each batch, for the tests of what reads them."""

from __future__ import annotations

import numpy as np

from lake.files import write_file
from lake.tables import OpenTable, create_table
from schemas.tables.rows import BATCHES, DECISIONS, EVENTS, HOLDS, SEGMENT_LOAD

TABLES = (EVENTS, SEGMENT_LOAD, DECISIONS, HOLDS, BATCHES)


def written_by_batch(bucket, lake, batches=1):
    """The lake of a bucket's batches, with a file of each, or of a few, in every table; one commit has them all."""
    for table in TABLES:
        delta, rows = create_table(lake, table), bucket.table(table).combine_chunks()
        number, day = rows["batch_id"].to_numpy() // batches, rows["day"].cast("string").to_numpy(zero_copy_only=False)
        files = []
        for batch in np.unique(number).tolist():
            for of_day in np.unique(day[number == batch]).tolist():
                chosen = rows.take(np.flatnonzero((number == batch) & (day == of_day)))
                files.append(write_file(str(lake), table, chosen))
        if files:
            OpenTable(delta).add(files, "test", 1)
    return str(lake)
