"""Section `[web]`: the page that operators keep open."""

from schemas.settings.controller import HostName
from schemas.settings.section import Port, Section


class WebSettings(Section):
    """The operators' page, `anabranch serve web` (docs/web.md)."""

    host: str
    """Address that the page listens on; one that other machines reach requires tokens."""
    port: Port
    """Port of the page; 0: a free one. A local run takes a free one if this one is in use."""
    certificate: str
    """PEM file of the page's certificate and its chain, for https; empty: no TLS."""
    key: str
    """PEM file of the certificate's key, without a password."""
    names: tuple[HostName, ...]
    """Further host names of the page, such as a proxy's or service's; other names are refused."""
    metrics_port: Port
    """Port of the page's metrics and probes, at [metrics] host; 0: none."""
    reports: str
    """Folder of reports that the page lists: write them there with `anabranch whatif … --output html --file`."""
    tokens_file: str
    """File of tokens for the page (role `read` sees, `operate` acts); empty: the controller's tokens."""
    open: bool
    """true: the page needs no token on loopback, so every account of the machine may act."""
