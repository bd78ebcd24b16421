"""Benchmarks: run one with `python -m benchmarks.NAME`, or all of them with `make bench`."""

import anabranch  # noqa: F401  (what a process of its own commands has, before delta-rs is loaded)
