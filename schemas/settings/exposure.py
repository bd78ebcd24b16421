"""Warnings about unencrypted traffic to other machines, and about secrets that others can read.

Stage: logged when a part starts. Each sentence says what, where, and which setting fixes it.
"""

import stat
from collections.abc import Callable, Iterator, Sequence

from schemas.addresses import are_here, is_loopback, way_from_outside
from schemas.settings.controller import ZooKeeperAddress
from schemas.settings.root import Settings


def exposures(settings: Settings, part: str) -> list[str]:
    """Return the warnings for `part`, named like its command; none if all is encrypted or on loopback."""
    return [warning for look in (*_LOOKS[part], _secret_files) for warning in look(settings)]


def _listener(settings: Settings) -> Iterator[str]:
    chosen = settings.controller
    if not chosen.certificate and not is_loopback(chosen.host):
        yield (
            f"the controller listens on {chosen.host} without TLS, so that tokens and layouts can be read and changed "
            "on the way: give [controller] certificate and key"
        )


def _page(settings: Settings) -> Iterator[str]:
    chosen = settings.web
    if not chosen.certificate and not is_loopback(chosen.host):
        yield (
            f"the page is served at {chosen.host} without TLS, so that tokens can be read on the way: give [web] "
            "certificate and key"
        )


def _metadata(settings: Settings) -> Iterator[str]:
    chosen = settings.controller
    yield from _zookeeper(
        chosen.zookeeper, chosen.metadata_auth is not None, "controller", "the controllers keep there"
    )


def _bookies(settings: Settings) -> Iterator[str]:
    chosen = settings.bookies
    yield from _zookeeper(chosen.zookeeper, chosen.metadata_auth is not None, "bookies", "decides which ledgers go")
    if chosen.brokers == "attribution":
        yield from _url(settings)


def _published_loads(settings: Settings) -> Iterator[str]:
    chosen = settings.bookies
    if settings.bundles.load_reports == "published" and chosen.metadata:
        yield from _zookeeper(chosen.zookeeper, True, "bookies", "decides what is moved")


def _zookeeper(server: ZooKeeperAddress, logs_in: bool, section: str, changeable: str) -> Iterator[str]:
    if are_here(server.address):
        return
    if not server.is_encrypted:
        yield (
            f"ZooKeeper at {server.address} is spoken to without TLS, so that the password and all metadata can be "
            f"read and changed on the way: begin [{section}] metadata with zks://"
        )
    if not logs_in:
        yield (
            f"nobody logs in to ZooKeeper at {server.address}, so that whoever reaches it can change what "
            f"{changeable}: set ANABRANCH_{section.upper()}_METADATA_AUTH"
        )


def _kafka(settings: Settings) -> Iterator[str]:
    kafka = settings.kafka
    if not kafka.security_protocol.endswith("SSL") and not are_here(kafka.bootstrap):
        yield (
            f"Kafka at {kafka.bootstrap} is spoken to without TLS, so that loads, layouts and outcomes can be read and "
            "changed on the way: set [kafka] security_protocol to SASL_SSL or SSL"
        )


def _url(settings: Settings) -> Iterator[str]:
    yield from url_exposures(settings.controller.url, settings.controller.nodes)


def url_exposures(url: str, nodes: Sequence[str] = ()) -> list[str]:
    """Return the warnings for calls of the controller at `url`, which may redirect to one of `nodes`."""
    # From https nothing is redirected to http.
    also = () if url.lower().startswith("https://") else nodes
    plain = [address for address in dict.fromkeys((url, *also)) if not is_encrypted_or_here(address)]
    if not plain:
        return []
    return [
        f"the controller at {', '.join(plain)} is called without TLS, so that the token and every call can be read and "
        f"changed on the way: set [controller] {'url' if url in plain else 'nodes'} to its https address"
    ]


def _secret_files(settings: Settings) -> Iterator[str]:
    """Yield a warning for each secret file that other accounts of this machine may read or write."""
    for section, key in _SECRET_FILES:
        value = getattr(getattr(settings, section), key)
        try:
            mode = settings.path(value).stat().st_mode if value else 0
        except OSError:
            continue
        if mode & (stat.S_IRWXO | stat.S_IWGRP):
            file = settings.path(value)
            yield f"[{section}] {key}: {file} is open to others (mode {stat.S_IMODE(mode):o}): chmod 600 {file}"


def _short_token(settings: Settings) -> Iterator[str]:
    """Yield a warning for a token short enough to guess."""
    chosen = settings.controller
    way = way_from_outside(chosen.host, chosen.names, (chosen.node_url, chosen.url))
    if not chosen.tokens_file:
        yield from _guessable(settings, way)


def _short_page_token(settings: Settings) -> Iterator[str]:
    """Yield the same warning for the page, which takes the controller's token."""
    chosen = settings.web
    if not chosen.tokens_file and not settings.controller.tokens_file:
        yield from _guessable(settings, way_from_outside(chosen.host, chosen.names))


def _guessable(settings: Settings, way: str | None) -> Iterator[str]:
    """`way`: how other machines reach the process; None: they do not."""
    chosen = settings.controller
    if chosen.token is not None and way is not None:
        size = len(chosen.token.get_secret_value())
        if size < MIN_TOKEN_CHARACTERS:
            yield (
                f"ANABRANCH_CONTROLLER_TOKEN has {size} characters, which somebody finds by trying: take one of "
                f"{MIN_TOKEN_CHARACTERS} or more, as anabranch config token new makes"
            )


def is_encrypted_or_here(url: str) -> bool:
    """Return whether traffic to a URL cannot be read on a network."""
    scheme, _, location = url.partition("://")
    return scheme.lower() == "https" or are_here(location.partition("/")[0])


_LOOKS: dict[str, tuple[Callable[[Settings], Iterator[str]], ...]] = {
    "alerts": (),
    "bookies": (_bookies,),
    "controller": (_listener, _metadata, _kafka, _short_token),
    "controller copy": (_metadata,),
    "stream": (_kafka,),
    "executor": (_kafka, _url),
    "traffic": (_kafka, _url),
    "collect": (_kafka, _url, _published_loads),
    "web": (_page, _url, _short_page_token),
}
PARTS = tuple(_LOOKS)
MIN_TOKEN_CHARACTERS = 16
_SECRET_FILES = (
    ("kafka", "password_file"),
    ("kafka", "key"),
    ("controller", "key"),
    ("controller", "url_key"),
    ("controller", "metadata_key"),
    ("controller", "oauth2_key"),
    ("web", "key"),
    ("bookies", "metadata_key"),
    ("bookies", "client_properties"),
)
"""Sections and keys of settings with a secret file; the token file is refused when it is open."""
