"""Sections `[controller.limits]` and `[web.limits]`: limits on anonymous clients of a listener.

Stage: a part of `settings`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from schemas.settings.section import Seconds, Section


class ListenerLimits(Section):
    """Limits on connections, and on heads and bodies of requests."""

    connections: Annotated[int, Field(ge=1)]
    """Concurrent connections; a further one closes the oldest without a known token."""
    connections_per_address: Annotated[int, Field(ge=1)]
    """Connections without a known token per address (IPv6: per /64); a further one closes the oldest."""
    head_seconds: Seconds
    """Timeout of a TLS handshake, and of a request's head, seconds."""
    body_seconds: Seconds
    """Timeout of a request's body, and of a client's reading, seconds."""
    head_bytes: Annotated[int, Field(ge=1024, le=65_536)]
    """Largest head of a request: its first line and its headers."""
