"""The collector of a Pulsar 5 cluster, through nothing but its admin REST interface (docs/pulsar.md).

Stage: under `anabranch serve collector pulsar`. Each module may import only those above it:

- `segment_stats` the subscriptions of a segment; pure
- `broker_stats`  a broker's own load report as rates and subscriptions of segments; pure
- `refresh`       timing of a broker's rate computations, learned from its answers; pure
- `sweep`         the next topic to read, and the budget of calls to a broker; pure
- `topic_stats`   consumers of a topic as the cluster counts them; pure
- `reader`        the calls
- `brokers`       known brokers, and the one to ask about a topic
- `calls`         calls in flight, in worker threads, and the schedule of lists, policies and settings
- `attached`      consumers counted by what brokers' loads show
- `delivery`      slow segments, reported while they are slow
- `namespaces`    the lists of namespaces and of their topics
- `loads`         handling of a broker's load
- `topics`        handling of a topic's layout and consumers
- `coverage`      share of the cluster that is seen
- `collector`     the loop: make calls that are due, announce what has changed
- `process`       assembly of the parts from the settings, and signals
"""
