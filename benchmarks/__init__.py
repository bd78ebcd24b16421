"""Benchmarks: each module is run on its own (`python -m benchmarks.NAME`), or all of them by `make bench`."""
