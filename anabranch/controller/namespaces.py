"""Namespaces with their override of the auto split/merge policy (PIP-483 "Policy resolution").

A namespace exists if it is named in the settings, was created, has a policy, or has topics: so a topic may be created
anywhere, as in Pulsar 5, and its namespace then exists. Calls about a missing namespace get 404. Namespaces have no
leader: any node changes them, by compare-and-set.
"""

from collections.abc import Callable, Collection

from anabranch.controller.errors import Conflict, NotFound
from anabranch.controller.layouts.store import LayoutStore
from anabranch.controller.outbox.announcements import policy_announcement
from anabranch.controller.policies import check_override
from decisions.autoscale.policy import ClusterPolicy
from schemas.metadata import AutoScalePolicyOverride


class Namespaces:
    """All namespaces, as `tenant/namespace`; thread-safe."""

    def __init__(
        self, store: LayoutStore, configured: Collection[str], policy: ClusterPolicy, now_ms: Callable[[], int]
    ) -> None:
        """`configured`: namespaces that always exist; `policy`: the cluster's."""
        self._store, self._configured, self._policy, self._now_ms = store, frozenset(configured), policy, now_ms

    def exists(self, namespace: str) -> bool:
        """Return whether a namespace exists, for any reason."""
        is_known = namespace in self._configured or self._store.has_namespace(namespace)
        return is_known or self._store.synced().has_namespace(namespace)

    def check(self, namespace: str) -> None:
        """Raise `NotFound` if a namespace does not exist."""
        if not self.exists(namespace):
            raise NotFound(f"Namespace does not exist: {namespace}; create it, or a topic in it")

    def of_tenant(self, tenant: str) -> list[str]:
        """Return the namespaces of a tenant, sorted."""
        stored = {f"{tenant}/{name}" for name in self._store.synced().namespace_names(tenant)}
        configured = {namespace for namespace in self._configured if namespace.startswith(f"{tenant}/")}
        return sorted(configured | {namespace for namespace in stored if self._store.has_namespace(namespace)})

    def create(self, namespace: str) -> None:
        """Create a namespace, so that it exists even without topics. Raises `Conflict` if it exists."""
        if self.exists(namespace):
            raise Conflict(f"Namespace already exists: {namespace}")
        with self._store.write_policy() as transaction:
            transaction.insert_namespace(namespace)

    def delete(self, namespace: str) -> None:
        """Delete a namespace with its policy. Raises `NotFound`, or `Conflict` with topics or if configured."""
        self.check(namespace)
        if namespace in self._configured:
            raise Conflict(f"Namespace {namespace} is named in the controller's settings: take it out of [controller]")
        if self._store.has_topics(namespace):
            raise Conflict(f"Cannot delete non empty namespace: {namespace} has topics")
        with self._store.write_policy() as transaction:
            transaction.delete_namespace(namespace)
            if transaction.remove_namespace_policy(namespace):
                transaction.announce(policy_announcement(namespace, None, self._now_ms()))

    def policy(self, namespace: str) -> AutoScalePolicyOverride | None:
        """Return the override of a namespace as it was set, None if there is none. Raises `NotFound`."""
        if (override := self._store.synced().namespace_policy(namespace)) is None:
            self.check(namespace)
        return override

    def set_policy(self, namespace: str, policy: AutoScalePolicyOverride | None) -> None:
        """Replace the override of a namespace; None removes it.

        Overrides of its topics are not checked again. Raises `NotFound`, and `PreconditionFailed` when the resolved
        policy contradicts itself.
        """
        self.check(namespace)
        if policy is not None:
            check_override(self._policy, policy, None)
        with self._store.write_policy() as transaction:
            if policy is not None:
                transaction.set_namespace_policy(namespace, policy)
            elif not transaction.remove_namespace_policy(namespace):
                return
            transaction.announce(policy_announcement(namespace, policy, self._now_ms()))
