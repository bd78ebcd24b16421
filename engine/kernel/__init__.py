"""What every family of decisions shares in a bucket: records in, stages, ticks, counts, stored parts, output.

- `packing`                  before the shuffle: raw rows in, a few packed rows per bucket out
- `family`                   what a family brings: its messages, its stored parts, its evaluation
- `parsing`, `recording`     the first and the last stage of a record's way; those between are the family's
- `bucket`                   one batch of one bucket, through all families
- `packed`, `arrays`         what is stored, and the fingerprint by which it is known again
- `records`, `settings`      what goes in and what comes out
- `generations`              how a cache sees that it is out of date
"""
