"""Metrics for Prometheus: how those of a process are answered. What they are is told by each part itself.

- `serving`  one port on loopback, closed to pages in browsers
"""
