"""Section `[metrics]`: address of processes' Prometheus metrics and probes.

Stage: a part of `schemas.settings`. Each process has its port in its own section, `metrics_port`.
"""

from __future__ import annotations

from schemas.controller_settings import HostName
from schemas.section import Section


class MetricsSettings(Section):
    host: str
    """Address of `/metrics`, `/livez` and `/readyz`. Its clients can read topic names."""
    names: tuple[HostName, ...]
    """Further host names for scrapers, such as a service's; IP addresses need none."""
