"""TLS towards ZooKeeper: kazoo's own connects to any host that some authority of the system has vouched for.

Stage: under `zookeeper`. Here the context is ours: the server's name is checked, only the chosen authorities are
believed, TLS is 1.2 or newer, and a renewed certificate is used at the next connection.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, with connections of ours."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._context = context
        self.refused = ""
        """Why the last attempt to connect did not get through TLS; empty when it did."""

    def create_connection(
        self, address: tuple[str, int], hostname: str, timeout: float | None = None, **_: Any
    ) -> ssl.SSLSocket:
        """A connection to `address`, which has to prove that it is `hostname`; raises `OSError`."""
        plain = socket.create_connection(address, timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            secured = self._context.wrap_socket(plain, server_hostname=hostname)
        except OSError as error:
            plain.close()
            self.refused = f"{hostname}:{address[1]} was not believed, or does not speak TLS: {error}"
            raise
        self.refused = ""
        return secured

    def select(self, *arguments: Any, **options: Any) -> Any:
        """What can be read or written; bytes that TLS has decrypted already are nothing that the system knows of."""
        readers = arguments[0] if arguments else ()
        decrypted = [one for one in readers if isinstance(one, ssl.SSLSocket) and one.pending()]
        return (decrypted, [], []) if decrypted else super().select(*arguments, **options)
