"""A node in its own process that stands for election: `candidate.py ADDRESS ROOT PATH VALUE`; a line a state."""

from __future__ import annotations

import sys

from anabranch.controller.leadership.election import Election, Leadership
from anabranch.controller.metadata.zookeeper import ZooKeeperStore


def main(address: str, root: str, path: str, value: str) -> None:
    """Stand for election until standard input ends."""

    def say(leadership: Leadership) -> None:
        print(leadership.state.value, flush=True)

    with_store = ZooKeeperStore(address, root, session_s=4)
    Election(with_store, path, value.encode(), say).start()
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
