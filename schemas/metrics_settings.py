"""Section `[metrics]`: where processes answer scrapes of Prometheus and probes.

Stage: a part of `schemas.settings`. Each process has its port in its own section, `metrics_port`.
"""

from __future__ import annotations

from schemas.controller_settings import HostName
from schemas.section import Section


class MetricsSettings(Section):
    host: str
    """Address that `/metrics`, `/livez` and `/readyz` are served at. Whoever reaches it reads topics' names."""
    names: tuple[HostName, ...]
    """Further names by which scrapers reach it, of a service for example; addresses need none."""
