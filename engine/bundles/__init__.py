"""The family of Pulsar's bundles in a bucket: what is known of clusters, what changes it, and a cycle at each tick.

Each module imports only those before it:

- `moves`      unloads that reports do not show yet, and brokers as they will be
- `clusters`   what is known of a cluster, and what a message changes in it
- `parsing`    what of a message is refused; reports whose numbers mean nothing
- `codec`      the stored bytes of it
- `cycle`      a cluster's cycle: reports since the last one, shedding with placement, splits; pure
- `recording`  the rows of decisions and holds
- `family`     the stages put together for the kernel
"""
