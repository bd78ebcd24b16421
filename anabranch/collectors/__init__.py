"""Collectors: read a cluster through its REST interface and report it to Kafka (design "Kafka messages").

Stage: before the job. A collector decides nothing and changes nothing in the cluster; it knows only `schemas` and the
admin client. Each module may import only those above it:

- `announcements`  the records for Kafka: samples in columns, layouts, consumers, policies
- `announced`           what was said so far, and what has to be said now; pure
- `resync`        what was said, once more, now and then
- `checkpoint`         which topics a collector knew that was killed
- `publisher`      towards Kafka
- `status`         how a collector is doing, for people, for the doctor and for Prometheus
- `metrics`        the same for Prometheus
- `pulsar`         the collector of a Pulsar cluster; one folder for each kind of cluster
"""
