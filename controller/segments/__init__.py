"""The segment topics behind scalable topics (PIP-468 "Segment Topic Management via Admin API").

`base` is the interface, `kafka` keeps it with one Kafka topic a segment, `no_segments` does nothing.
"""
