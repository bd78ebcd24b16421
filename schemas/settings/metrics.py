"""Section `[metrics]`: address of processes' Prometheus metrics and probes.

Stage: a part of `schemas.settings.root`. Each process has its port in its own section, `metrics_port`.
"""

from schemas.settings.controller import HostName
from schemas.settings.section import Section


class MetricsSettings(Section):
    """Where every process with a metrics_port serves metrics and probes (docs/metrics.md)."""

    host: str
    """Address of all metrics ports (/metrics, /livez, /readyz); 0.0.0.0 shows topic names to other machines."""
    names: tuple[HostName, ...]
    """Further host names that scrapers use, such as a service's; IP addresses need no entry."""
