"""Checksums of rows of `batches`, which later releases must compute alike."""

from __future__ import annotations

from schemas.tables.arrow import to_arrow
from schemas.tables.digests import checksums_of_batches
from schemas.tables.rows import BATCHES
from tests.local.lake import batch


def checksum(**changed):
    """That of a row whose columns of later releases are null, unless they are given."""
    return checksums_of_batches(to_arrow(BATCHES, [batch(1, 5, **changed)]))[0].as_py()


def test_checksum_stays_what_it_was():
    assert checksum() == 8489493607401437653


def test_checksum_tells_zero_from_null():
    assert len({checksum(), checksum(samples_refused=0), checksum(layouts_unknown=0)}) == 3
