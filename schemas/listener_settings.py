"""Sections `[controller.limits]` and `[web.limits]`: what anonymous clients can take of a process that listens.

Stage: a part of `settings`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from schemas.section import Seconds, Section


class ListenerLimits(Section):
    """Bounds of connections, and of heads and bodies of requests."""

    connections: Annotated[int, Field(ge=1)]
    """Connections at the same time; for one more the oldest that carried no known token is closed."""
    connections_per_address: Annotated[int, Field(ge=1)]
    """Of these from one address (of IPv6 from one /64) that carried no known token; one more closes the oldest."""
    head_seconds: Seconds
    """Longest time for a TLS handshake, and for the head of a request, seconds."""
    body_seconds: Seconds
    """Longest time for the body of a request, and for a client to take what is sent to it, seconds."""
    head_bytes: Annotated[int, Field(ge=1024, le=65_536)]
    """Largest head of a request: its first line and its headers."""
