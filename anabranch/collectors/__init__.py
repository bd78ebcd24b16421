"""Collectors: read a cluster through its interfaces and report it to Kafka (design "Kafka messages").

Stage: before the job. A collector decides nothing and changes nothing in the cluster; it knows only `schemas` and the
admin client. Each module may import only those above it:

- `announcements`  the records for Kafka: samples in columns, layouts, consumers, policies
- `announced`      what was announced so far, and what has to be announced now; pure
- `resync`         repetition of announcements, and lost deletions
- `checkpoint`     the topics that a killed collector knew
- `publisher`      towards Kafka
- `status`         how a collector is doing, for people, for the doctor and for Prometheus
- `metrics`        the same for Prometheus
- `pulsar`         the collector of a Pulsar 5 cluster's topics
- `kafka`          the collector of topics whose segments are in Kafka
- `load_reports`   load reports as brokers publish them
- `bundles`        a round over a cluster's bundles; `bundle_process`, the collector of bundles
"""
