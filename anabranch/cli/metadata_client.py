"""ZooKeeper client of the commands.

Stage: under `anabranch.cli.bookies.clusters` and `published_loads`.
"""

import logging
import ssl
from contextlib import ExitStack
from typing import Any

from pydantic import SecretStr

from anabranch.cli.exits import Unreachable
from schemas.printable import printable

_CONNECT_SECONDS = 15.0
_SUMMARY = "Failed connecting"
"""Start of kazoo's last warning, which names no reason."""


class _Warnings(logging.Filter):
    """Collect kazoo's warnings, one per attempt and host, as distinct reasons instead of logging them."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: dict[str, None] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno == logging.WARNING and not record.getMessage().startswith(_SUMMARY):
            self.reasons[record.getMessage()] = None
        return record.levelno != logging.WARNING


def connect_metadata(
    address: str, log_in: SecretStr | None, tls: ssl.SSLContext | None, session_seconds: float, stack: ExitStack
) -> Any:
    """Connect to `HOST:PORT,HOST:PORT/CHROOT`; `stack` closes it. Raises `Unreachable`."""
    from kazoo.client import KazooClient
    from kazoo.exceptions import KazooException
    from kazoo.handlers.threading import KazooTimeoutError
    from kazoo.security import READ_ACL_UNSAFE, make_digest_acl

    secured: dict[str, Any] = {}
    if log_in is not None:
        user, _, password = log_in.get_secret_value().partition(":")
        secured["auth_data"] = [("digest", log_in.get_secret_value())]
        # Brokers read the registry, and only we write it.
        secured["default_acl"] = [make_digest_acl(user, password, all=True), *READ_ACL_UNSAFE]
    if tls is not None:
        from runtime.zookeeper_tls import TlsHandler

        secured["handler"] = TlsHandler(tls)
    client = KazooClient(address, timeout=session_seconds, **secured)
    warnings = _Warnings()
    client.logger.addFilter(warnings)
    try:
        client.start(_CONNECT_SECONDS)
    except (KazooException, KazooTimeoutError) as error:
        reason = "; ".join(warnings.reasons) or str(error) or type(error).__name__
        raise Unreachable(printable(f"no ZooKeeper answers at {address}: {reason}; see [bookies] metadata")) from None
    finally:
        client.logger.removeFilter(warnings)
    stack.callback(client.close)
    stack.callback(client.stop)
    return client
