"""HTTP clients that load no CAs: httpx loads them for each of its clients, 25 ms of a processor."""

from __future__ import annotations

from schemas.tls import TlsFiles, client_context

PLAIN = client_context(TlsFiles())
"""For `verify`, of any number of clients."""
