"""TLS to ZooKeeper; kazoo's own accepts any host certified by any authority of the system.

Stage: under `zookeeper`. This context verifies the server's name, trusts only the configured authorities, requires TLS
1.2 or newer, and uses a renewed certificate at the next connection.
"""

import socket
import ssl
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Kazoo's thread handler with our TLS connections."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._context = context
        self.refused = ""
        """Reason why the last connection failed TLS; empty if it succeeded."""

    def create_connection(
        self, address: tuple[str, int], hostname: str, timeout: float | None = None, **_: Any
    ) -> ssl.SSLSocket:
        """Connect to `address`, which must prove that it is `hostname`. Raises `OSError`."""
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
        """Select ready sockets, including those with bytes that TLS has already decrypted."""
        readers = arguments[0] if arguments else ()
        decrypted = [reader for reader in readers if isinstance(reader, ssl.SSLSocket) and reader.pending()]
        return (decrypted, [], []) if decrypted else super().select(*arguments, **options)
