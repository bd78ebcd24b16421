"""Metrics and probes of a process; each part defines its own metrics.

- `serving`  `/metrics`, `/livez` and `/readyz` on one port, closed to web pages
- `health`   progress of a process' loops, and its readiness
"""
