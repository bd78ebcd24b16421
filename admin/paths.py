"""Paths of the admin interface; every name is one part of a path, whatever its characters.

Stage: between `topics` and `transport`; pure. The server takes percent triplets in the name of a topic as spelling
(`a%20b` and `a b` are the same), so they stay as they are; a subscription's name it decodes once, so there a percent
sign is a character like others.
"""

from __future__ import annotations

from urllib.parse import quote

from schemas.ids import topic_parts

_ROOT = "/admin/v2"


def topic_path(topic: str) -> str:
    """Of `topic://tenant/namespace/name`; `ValueError` for any other text."""
    return f"{_ROOT}/scalable/" + "/".join(map(path_part, topic_parts(topic)))


def namespace_path(namespace: str) -> str:
    """Of `tenant/namespace`: the list of its topics."""
    return f"{_ROOT}/scalable/{_namespace(namespace)}"


def tenant_path(tenant: str) -> str:
    """Of the list of a tenant's namespaces."""
    return f"{_ROOT}/namespaces/{path_part(tenant)}"


def namespace_record_path(namespace: str) -> str:
    """Of `tenant/namespace` itself."""
    return f"{_ROOT}/namespaces/{_namespace(namespace)}"


def subscription_path(topic: str, subscription: str) -> str:
    """Of a subscription of a topic."""
    return f"{topic_path(topic)}/subscriptions/{_plain(subscription)}"


def consumer_path(topic: str, subscription: str, consumer: str) -> str:
    """Of a consumer that is registered by REST (our controller's alone)."""
    return f"{subscription_path(topic, subscription)}/consumers/{_plain(consumer)}"


def policy_path(subject: str) -> str:
    """Of the auto-scale override of a topic or of `tenant/namespace`."""
    if "://" in subject:
        return f"{topic_path(subject)}/autoScalePolicy"
    return f"{namespace_record_path(subject)}/scalableTopicAutoScalePolicy"


def _namespace(namespace: str) -> str:
    return "/".join(map(path_part, namespace.split("/")))


def _plain(name: str) -> str:
    return path_part(quote(name, safe=""))


def path_part(name: str) -> str:
    """One part of a path: percent triplets stay as they are, and neither `..` nor a slash climbs."""
    if name in (".", ".."):
        return name.replace(".", "%2E")
    return quote(name, safe="%!$&'()*+,;=:@~")
