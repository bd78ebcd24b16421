"""What a part of the system would say or hear in clear text outside of this machine, a sentence each.

Stage: logged as warnings when a part starts. Each sentence says what, where, and which setting mends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from schemas.addresses import is_loopback, read_authority
from schemas.settings import Settings


def exposures(settings: Settings, part: str) -> list[str]:
    """For `part`, which is named as its command is; empty when all is encrypted or on loopback."""
    return [said for look in _LOOKS.get(part, ()) for said in look(settings)]


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
    found = settings.controller.zookeeper
    if _are_here(found.address):
        return
    if not found.is_encrypted:
        yield (
            f"ZooKeeper at {found.address} is spoken to without TLS, so that the password and all metadata can be read "
            "and changed on the way: begin [controller] metadata with zks://"
        )
    if settings.controller.metadata_auth is None:
        yield (
            f"nobody logs in to ZooKeeper at {found.address}, so that whoever reaches it can change what the "
            "controllers keep there: set ANABRANCH_CONTROLLER_METADATA_AUTH"
        )


def _kafka(settings: Settings) -> Iterator[str]:
    found = settings.kafka
    if not found.security_protocol.endswith("SSL") and not _are_here(found.bootstrap):
        yield (
            f"Kafka at {found.bootstrap} is spoken to without TLS, so that loads, layouts and outcomes can be read and "
            "changed on the way: set [kafka] security_protocol to SASL_SSL or SSL"
        )


def _url(settings: Settings) -> Iterator[str]:
    yield from url_exposures(settings.controller.url, settings.controller.nodes)


def url_exposures(url: str, nodes: Sequence[str] = ()) -> list[str]:
    """The same for a call of the controller at `url`, which may be sent on to one of `nodes`."""
    # From https nothing is sent on to http.
    also = () if url.lower().startswith("https://") else nodes
    plain = [one for one in dict.fromkeys((url, *also)) if not _is_safe(one)]
    if not plain:
        return []
    return [
        f"the controller at {', '.join(plain)} is called without TLS, so that the token and every call can be read and "
        f"changed on the way: set [controller] {'url' if url in plain else 'nodes'} to its https address"
    ]


def _is_safe(url: str) -> bool:
    scheme, _, rest = url.partition("://")
    return scheme.lower() == "https" or _are_here(rest.partition("/")[0])


_LOOKS: dict[str, tuple[Callable[[Settings], Iterator[str]], ...]] = {
    "controller": (_listener, _metadata, _kafka),
    "stream": (_kafka,),
    "executor": (_kafka, _url),
    "traffic": (_kafka, _url),
    "collect": (_kafka, _url),
    "web": (_page,),
}
PARTS = tuple(_LOOKS)


def _are_here(addresses: str) -> bool:
    """Whether all of `host[:port],host[:port]` are this machine's; none at all are."""
    found = [read_authority(one.strip()) for one in addresses.split(",") if one.strip()]
    return all(one is not None and is_loopback(one.host) for one in found)
