"""Open the metadata store named by the settings.

Stage: called by `anabranch.controller.server` and by `store_copy`.
"""

import contextlib

from anabranch.controller.errors import StartError
from anabranch.controller.metadata import store_paths
from anabranch.controller.metadata.base import ABSENT, MetadataStore, StoreError, VersionConflict
from anabranch.controller.metadata.sqlite import SqliteStore
from anabranch.controller.metadata.upgrade import UPGRADES
from anabranch.controller.metadata.zookeeper import ZooKeeperStore
from schemas.settings.root import Settings


def open_metadata(settings: Settings) -> MetadataStore:
    """Open the metadata store of the settings. Raises `StartError` when it cannot be used."""
    chosen = settings.controller
    address, chroot, _ = chosen.zookeeper
    if not address:
        return SqliteStore(settings.path(chosen.database), UPGRADES)
    credentials = chosen.metadata_auth.get_secret_value() if chosen.metadata_auth else None
    nodes = ZooKeeperStore(
        address, chroot, session_s=chosen.session_seconds, credentials=credentials, tls=settings.metadata_context()
    )
    try:
        _check_format(nodes)
    except StoreError as error:
        nodes.close()
        raise StartError(f"the metadata in {chosen.metadata} cannot be used: {error}") from error
    except StartError:
        nodes.close()
        raise
    return nodes


def _check_format(nodes: MetadataStore) -> None:
    """Check the format, so that controllers of different releases do not misread each other's data."""
    with contextlib.suppress(VersionConflict):
        nodes.put(store_paths.FORMAT_PATH, store_paths.FORMAT, ABSENT)
    node = nodes.get(store_paths.FORMAT_PATH)
    if node is None or node.value != store_paths.FORMAT:
        value = node.value.decode(errors="replace")[:20] if node else "none"
        raise StartError(f"the metadata has format {value}, this controller reads {store_paths.FORMAT.decode()}")
