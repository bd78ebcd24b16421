"""The kernel that all families share in a bucket.

- `packing`                  before the shuffle: raw rows in, a few packed rows per bucket out
- `family`                   the interface of a family: its messages, stored parts and evaluation
- `parsing`, `recording`     the first and last stage of a record; those between belong to the families
- `bucket`                   one batch of one bucket, through all families
- `packed`, `arrays`         stored state and its fingerprint
- `records`, `settings`      input and output
- `generations`              change numbers by which a cache detects that it is stale
"""
