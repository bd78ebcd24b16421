"""Metrics and probes: how those of a process are answered. What they are is told by each part itself.

- `serving`  `/metrics`, `/livez` and `/readyz` on one port, closed to pages in browsers
- `health`   progress of a process' loops, and whether it does its work
"""
