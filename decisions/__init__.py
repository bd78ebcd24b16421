"""Decisions: pure functions over frozen values, without Spark, Kafka, Delta, clock, log or random.

- `kernel`      what every family of decisions shares: gates and readings, waits, bounds, quantities
- `topic`       the scalable topic of PIP-468: names, hashing, the layout of its segments
- `autoscale`   the family of PIP-483: policy, significance, the two passes, the same over a fleet
- `bundles`     the family of a Pulsar cluster's brokers and bundles
- `bookkeeper`  the family of a switch to another BookKeeper cluster (PIP-477)
"""
