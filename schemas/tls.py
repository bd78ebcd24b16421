"""TLS contexts that follow their files: new connections use a certificate renewed on disk.

Stage: built from the settings, by the controller for its listener and by its clients and ZooKeeper's. Certificates
last for days or weeks, processes longer. Open connections keep their certificate; files that do not match (a
certificate written before its key) change nothing until they do.
"""

import logging
import os
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


class TlsError(ValueError):
    """The files cannot be used; the message says which and why."""


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of one end of a connection."""

    certificate: Path | None = None
    """Our certificate with its chain; None: we present none."""
    key: Path | None = None
    """Its key, without a password."""
    ca: Path | None = None
    """CAs for the other end's certificate. None: the system's, and clients need no certificate."""

    @property
    def all(self) -> list[Path]:
        """Those that there are."""
        return [file for file in (self.certificate, self.key, self.ca) if file is not None]


def listener_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a server context; with `ca` clients must present a certificate. Raises `TlsError`."""
    return _Following(ssl.PROTOCOL_TLS_SERVER, files)


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a client context that verifies the server's certificate and name. Raises `TlsError`."""
    return _Following(ssl.PROTOCOL_TLS_CLIENT, files)


class _Following(ssl.SSLContext):
    """Context that delegates to one of the current files; a subclass for asyncio and httpcore."""

    _current: ssl.SSLContext | None

    def __new__(cls, protocol: int, files: TlsFiles) -> "_Following":
        return super().__new__(cls, protocol)

    def __init__(self, protocol: int, files: TlsFiles) -> None:
        self._files, self._lock = files, threading.Lock()
        self._stamps = _stamps(files)
        # Bad files are told at once. The system's CAs take 25 ms, and many programs never make such a connection.
        self._current = _context(protocol, files) if files.all else None

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        return self._fresh().wrap_bio(*arguments, **options)

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        return self._fresh().wrap_socket(*arguments, **options)

    def _fresh(self) -> ssl.SSLContext:
        with self._lock:
            if self._current is None:
                self._current = _context(self.protocol, self._files)
            stamps = _stamps(self._files)
            if stamps != self._stamps:
                self._stamps = stamps
                named = ", ".join(map(str, self._files.all))
                try:
                    self._current = _context(self.protocol, self._files)
                except TlsError as error:
                    log.warning("the certificate is not renewed, new connections get the one before: %s", error)
                else:
                    log.info("new connections get the certificate that is now in %s", named)
            return self._current


def _context(protocol: int, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.certificate is not None:
        key = files.key
        pair = f"{files.certificate} with the key {key}"
        # Otherwise the terminal would prompt for a password.
        _load_file(pair, lambda: context.load_cert_chain(str(files.certificate), key, password=_no_password))
    if files.ca is not None:
        _load_file(str(files.ca), lambda: context.load_verify_locations(files.ca))
        context.verify_mode = ssl.CERT_REQUIRED
    elif protocol == ssl.PROTOCOL_TLS_CLIENT:
        context.load_default_certs()
    return context


def _load_file(subject: str, load: Callable[[], None]) -> None:
    try:
        load()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TlsError(f"cannot use {subject}: {reason}") from error


def _no_password() -> str:
    raise ValueError("the key has a password: give one without, that only this user can read")


def _stamps(files: TlsFiles) -> list[tuple[int, int, int] | None]:
    """Return values that change with the files; None for a missing one."""
    stamps: list[tuple[int, int, int] | None] = []
    for file in files.all:
        try:
            about = os.stat(file)
        except OSError:
            stamps.append(None)
        else:
            stamps.append((about.st_mtime_ns, about.st_size, about.st_ino))
    return stamps
