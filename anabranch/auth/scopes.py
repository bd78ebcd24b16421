"""Scope of a token: everywhere, or some tenants and namespaces (PIP-468 "Security Considerations").

A scope is a set of `tenant` and `tenant/namespace`; the empty one means everywhere. Names are compared in canonical
form, whatever their spelling in a URL (`anabranch.auth.spelling`).
"""

from collections.abc import Iterable
from typing import Final

from anabranch.auth.spelling import SpellingError, canonical
from schemas.base import MAX_NAME_BYTES

Scope = frozenset[str]
EVERYWHERE: Final[Scope] = frozenset()


class ScopeError(ValueError):
    """The text is neither a tenant nor a namespace."""


def read_scope(word: str) -> str:
    """Return `tenant` or `tenant/namespace` in canonical form. Raises `ScopeError` for anything else."""
    parts = word.split("/")
    try:
        if 1 <= len(parts) <= 2 and all(parts) and len(word) <= MAX_NAME_BYTES:
            return "/".join(map(canonical, parts))
    except SpellingError:
        pass
    raise ScopeError("is neither a tenant nor tenant/namespace")


def covers_resource(scope: Scope, resource: str) -> bool:
    """Return whether the scope contains `resource`, a `tenant/namespace` or a whole `tenant`."""
    return not scope or resource in scope or resource.partition("/")[0] in scope


def touches_tenant(scope: Scope, tenant: str) -> bool:
    """Return whether the scope contains anything of a tenant."""
    return covers_resource(scope, tenant) or any(namespace.startswith(f"{tenant}/") for namespace in scope)


def describe_scope(scope: Iterable[str]) -> str:
    """Format a scope for people; empty for everywhere."""
    return ", ".join(sorted(scope))
