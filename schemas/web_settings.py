"""Section `[web]`: the page that operators keep open.

Stage: a part of `settings`.
"""

from __future__ import annotations

from schemas.controller_settings import HostName
from schemas.listener_settings import ListenerLimits
from schemas.section import Port, Section


class WebSettings(Section):
    host: str
    """Address that the page is served at; one that is not loopback needs tokens."""
    port: Port
    """0 = a free one. A local run takes a free one when this one is taken."""
    certificate: str
    """PEM file of the certificate with its chain: the page is served by https only. Empty: no TLS."""
    key: str
    """PEM file of that certificate's key, without a password."""
    names: tuple[HostName, ...]
    """Further names by which browsers reach the page, of a proxy or a service; others are refused."""
    metrics_port: Port
    """Port of the page's metrics and probes, at [metrics] host; 0 = none."""
    reports: str
    """Folder of the reports that the page opens: HTML files of `shadow`, `backtest`, `suggest` and `simulate`."""
    tokens_file: str
    """File of the tokens that open it (`anabranch token`): `read` sees, `operate` acts. Empty: those of the controller;
    without any, nobody needs one on loopback."""
    open: bool
    """On loopback nobody needs a token, also where the controller has some: every account of the machine may act."""
    limits: ListenerLimits
