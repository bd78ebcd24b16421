"""Real load of a local run: producers and consumers on topics whose segments are in Kafka.

Stage: the beginning of the local loop, in place of generated samples, where `[traffic] load` is `clients`. Needs the
package `anabranch-client`. Each module may import only those above it:

- `ledger`   every message of a topic: produced, consumed, and in which order
- `keys`     keys over the hash space, and how many messages each gets in a moment of the demand
- `topic`    producer and consumers of one topic
- `traffic`  all topics, for as long as the run lasts
"""
