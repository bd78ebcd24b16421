"""Paths of the admin interface; every name is one part of a path, whatever its characters.

Pure. The server treats percent triplets in a topic's name as spelling (`a%20b` and `a b` are the same), so they stay
unchanged; it decodes a subscription's name once, so there a percent sign is an ordinary character.
"""

from urllib.parse import quote

from schemas.ids import topic_parts

_ROOT = "/admin/v2"


def topic_path(topic: str) -> str:
    """Return the path of `topic://tenant/namespace/name`. Raises `ValueError` for any other text."""
    return f"{_ROOT}/scalable/" + "/".join(map(path_part, topic_parts(topic)))


def namespace_path(namespace: str) -> str:
    """Return the path of the list of topics of `tenant/namespace`."""
    return f"{_ROOT}/scalable/{_namespace(namespace)}"


def tenant_path(tenant: str) -> str:
    """Return the path of the list of a tenant's namespaces."""
    return f"{_ROOT}/namespaces/{path_part(tenant)}"


def namespace_record_path(namespace: str) -> str:
    """Return the path of `tenant/namespace` itself."""
    return f"{_ROOT}/namespaces/{_namespace(namespace)}"


def subscription_path(topic: str, subscription: str) -> str:
    """Return the path of a subscription of a topic."""
    return f"{topic_path(topic)}/subscriptions/{_plain(subscription)}"


def consumer_path(topic: str, subscription: str, consumer: str) -> str:
    """Return the path of a consumer registered by REST (only in our controller)."""
    return f"{subscription_path(topic, subscription)}/consumers/{_plain(consumer)}"


def backlog_path(topic: str, descriptor: str, subscription: str) -> str:
    """Return the path of a subscription's backlog on one segment."""
    segment = "/".join(map(path_part, (*topic_parts(topic), descriptor)))
    return f"{_ROOT}/segments/{segment}/subscription/{_plain(subscription)}/backlog"


def policy_path(subject: str) -> str:
    """Return the path of the auto-scale override of a topic or of `tenant/namespace`."""
    if "://" in subject:
        return f"{topic_path(subject)}/autoScalePolicy"
    return f"{namespace_record_path(subject)}/scalableTopicAutoScalePolicy"


def _namespace(namespace: str) -> str:
    return "/".join(map(path_part, namespace.split("/")))


def _plain(name: str) -> str:
    return path_part(quote(name, safe=""))


def path_part(name: str) -> str:
    """Return one part of a path: percent triplets are kept, and neither `..` nor a slash leaves the part."""
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="%!$&'()*+,;=:@~")
