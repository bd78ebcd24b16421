"""The collector of a Pulsar 5 cluster, through nothing but its admin REST interface (docs/pulsar.md).

Stage: under `anabranch serve collector pulsar`. Each module may import only those above it:

- `segment_stats` the subscriptions of a segment; pure
- `broker_stats`  a broker's own load report as rates and subscriptions of segments; pure
- `refresh`       when a broker computes its rates, learned from what it answers; pure
- `sweep`         which topic is looked at next, and how many calls a broker may get; pure
- `topic_stats`   the consumers that the cluster counts of a topic; pure
- `reader`        the calls
- `brokers`       the brokers as they are known, and which one is asked about a topic
- `calls`         calls under way, in worker threads, and the schedule of lists, policies and settings
- `attached`      consumers counted by what brokers' loads show
- `delivery`      slow segments, reported while they are slow
- `namespaces`    the lists of namespaces and of their topics
- `loads`         what becomes of a broker's load
- `topics`        what becomes of a topic's layout and of its consumers
- `coverage`      what is seen of the cluster, and what is not
- `collector`     the loop: what is due is asked, what has changed is said
- `process`       its parts, assembled from the settings, and the signals that stop it
"""
