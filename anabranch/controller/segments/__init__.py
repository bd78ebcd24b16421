"""Segment topics behind scalable topics (PIP-468 "Segment Topic Management via Admin API").

`base` is the interface, `kafka` implements it with one Kafka topic per segment, `no_segments` does nothing.
"""
