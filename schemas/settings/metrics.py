"""Section `[metrics]`: address of processes' Prometheus metrics and probes.

Stage: a part of `schemas.settings.root`. Each process has its port in its own section, `metrics_port`.
"""

from __future__ import annotations

from schemas.settings.controller import HostName
from schemas.settings.section import Section


class MetricsSettings(Section):
    host: str
    """Address of `/metrics`, `/livez` and `/readyz`. Its clients can read topic names."""
    names: tuple[HostName, ...]
    """Further host names for scrapers, such as a service's; IP addresses need none."""
