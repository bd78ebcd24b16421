"""The faults of a chaos run: one at a time, at a controller, at a ZooKeeper, or between the two.

Stage: under `tests.harness.chaos.run`. A fault lasts shorter or longer than a session, and at most `LONGEST_S`; a
majority of the ensemble is always there, but its leader is hit like the others.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

from runtime.java_home import SetupError
from tests.harness.chaos.nodes import ControllerNode
from tests.harness.ensemble import EnsembleMember, ZooKeeperEnsemble

FAULTS = (
    "kill",
    "freeze",
    "cut",
    "kill a ZooKeeper",
    "freeze a ZooKeeper",
    "kill the ZooKeepers' leader",
    "freeze the ZooKeepers' leader",
)


class Faults:
    """Breaks something at random, and mends it again."""

    def __init__(
        self,
        nodes: Sequence[ControllerNode],
        ensemble: ZooKeeperEnsemble,
        session_s: float,
        longest_s: float,
        choices: random.Random,
    ) -> None:
        """`session_s`: of a node in ZooKeeper; `longest_s`: of a fault."""
        self.counts: Counter[str] = Counter()
        self._nodes, self._ensemble, self._random = nodes, ensemble, choices
        self._seconds = [session_s * 0.4, session_s * 1.5, longest_s]

    async def one(self) -> None:
        """One fault for a while, after a pause."""
        await asyncio.sleep(self._random.uniform(0.2, 2.0))
        fault, seconds = self._random.choice(FAULTS), self._random.choice(self._seconds)
        self.counts[fault] += 1
        if "ZooKeeper" in fault:
            member = await self._member("leader" in fault)
            await self._hit_zookeeper(member, fault, seconds)
        else:
            await self._hit_node(self._random.choice(self._nodes), fault, seconds)

    async def _member(self, leader: bool) -> EnsembleMember:
        chosen = self._random.choice(self._ensemble.members)
        return (leader and await asyncio.to_thread(self._ensemble.leader)) or chosen

    async def _hit_zookeeper(self, member: EnsembleMember, fault: str, seconds: float) -> None:
        if fault.startswith("kill"):
            await asyncio.to_thread(member.kill)
            await asyncio.sleep(seconds)
            # In this thread, with which it ends.
            member.launch()
        else:
            member.freeze()
            await asyncio.sleep(seconds)
            member.thaw()
        # The next fault may take another member: two of three must be there.
        try:
            await asyncio.to_thread(member.wait_until_serving)
        except SetupError:
            self.counts["lost data of a ZooKeeper"] += 1
            member.forget()
            member.launch()
            await asyncio.to_thread(member.wait_until_serving)

    async def _hit_node(self, node: ControllerNode, fault: str, seconds: float) -> None:
        if fault == "kill":
            await asyncio.to_thread(node.kill)
            await asyncio.sleep(self._random.uniform(0, 1))
            node.start()
            await asyncio.to_thread(node.wait_until_ready)
        elif fault == "freeze":
            node.freeze()
            await asyncio.sleep(seconds)
            node.thaw()
        else:
            node.link.cut()
            await asyncio.sleep(seconds)
            node.link.mend()
