"""Keys of older releases: those with another name today, and those that are no longer read.

A key that is no longer read (`FORMER`) must not stop a process: it is left out, and one warning names it. A renamed key
(`RENAMED`) does: its value counts, so `schemas.settings.root` raises `SettingsError` with the present name, and carries
nothing over.
"""

from collections.abc import Iterator
from typing import Any

RENAMED = {("stream", "profile"): ("policy", "profile"), ("stream", "policy"): ("policy", "cluster")}
"""Keys of older releases with their present names, each as section and key. Using one is an error."""
FORMER = frozenset(
    {
        "bookies.hands_heap",
        "bookies.max_tries",
        "bookies.path",
        "bookies.request_timeout_seconds",
        "collect.brokers_seconds",
        "collect.calls_in_flight",
        "collect.consumers_seconds",
        "collect.layouts_seconds",
        "collect.max_answer_mb",
        "collect.namespaces_seconds",
        "collect.request_timeout_seconds",
        "collect.topics_seconds",
        "controller.limits.body_seconds",
        "controller.limits.head_bytes",
        "controller.limits.head_seconds",
        "controller.max_body_bytes",
        "executor.retry_delay_seconds",
        "executor.retry_first_seconds",
        "executor.retry_max_delay_seconds",
        "executor.retry_most_seconds",
        "local.broker_heap",
        "local.restart_delay_seconds",
        "local.restart_first_seconds",
        "local.restart_max_delay_seconds",
        "local.restart_most_seconds",
        "stream.bulk_writer",
        "stream.watchdog_ticks",
        "traffic.fanout",
        "traffic.message_bytes",
        "web.limits",
        *(
            f"web.limits.{key}"
            for key in ("body_seconds", "connections", "connections_per_address", "head_bytes", "head_seconds")
        ),
    }
)
"""Keys of older releases that are no longer read. Remove each one release after it has come here."""


def remove_former(settings: dict[str, Any]) -> Iterator[str]:
    """Remove the keys that are no longer read, and yield their names."""
    for key in sorted(FORMER):
        *sections, name = key.split(".")
        table: Any = settings
        for section in sections:
            table = table.get(section, {}) if isinstance(table, dict) else {}
        if isinstance(table, dict) and name in table:
            del table[name]
            yield key
