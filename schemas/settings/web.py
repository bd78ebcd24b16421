"""Section `[web]`: the page that operators keep open.

Stage: a part of `settings`.
"""

from __future__ import annotations

from schemas.settings.controller import HostName
from schemas.settings.section import Port, Section


class WebSettings(Section):
    host: str
    """Address of the page; one that is not loopback requires tokens."""
    port: Port
    """0 = a free one. A local run uses a free one when this one is taken."""
    certificate: str
    """PEM file of the certificate with its chain, for https only. Empty: no TLS."""
    key: str
    """PEM file of that certificate's key, without a password."""
    names: tuple[HostName, ...]
    """Further host names of the page, of a proxy or a service; other names are refused."""
    metrics_port: Port
    """Port of the page's metrics and probes, at [metrics] host; 0 = none."""
    reports: str
    """Folder of the HTML reports that the page opens.

    Written by `shadow`, `backtest`, `suggest` and `simulate`.
    """
    tokens_file: str
    """Token file of the page (`anabranch config token`): `read` sees, `operate` acts. Empty: the controller's.

    Without any, loopback needs no token.
    """
    open: bool
    """Require no token on loopback even if the controller has some: every account of the machine may act."""
