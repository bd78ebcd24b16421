"""Benchmarks: each module is run on its own (`python -m benchmarks.NAME`), or all of them by `make bench`."""

import anabranch  # noqa: F401  (what a process of its own commands has, before delta-rs is loaded)
