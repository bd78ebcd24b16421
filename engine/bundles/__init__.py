"""The family of Pulsar's bundles within a bucket: cluster state, its messages, one cycle per tick.

Each module imports only those before it:

- `moves`      unloads that reports do not show yet, and the resulting state of brokers
- `clusters`   state of a cluster, and how messages change it
- `parsing`    rejection of messages dated ahead or with meaningless numbers
- `codec`      byte format of the state
- `cycle`      one cycle of a cluster: new reports, shedding with placement, splits; pure
- `recording`  rows of decisions and holds
- `family`     composes the stages for the kernel
"""
