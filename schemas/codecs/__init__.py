"""Fast decoders of messages, equal to the models in their answers; layouts repeated by digest.

- `bulk`, `bulk_arrays`    samples of form 1: a message, and a whole batch at once
- `bulk_columns`           samples in columns; `columns`, those that are not plain, one by one
- `plain_events`           layouts and consumer counts of our controller, and the digest of a layout
- `known_layouts`          producers' side of layouts repeated by digest; `known_entries`, the job's side
"""
