"""Checkpoints over random histories of splits, merges and reading: nothing is skipped, nothing comes out of order."""

from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_client.checkpoints import Checkpoint, Frontier
from anabranch_client.errors import (
    CheckpointExpired,
    CheckpointOfOtherTopic,
    CheckpointUnreadable,
    ControllerUnavailable,
)
from anabranch_client.layout import Layout
from decisions.topic.layout import SegmentLayout
from tests.examples import examples

TOPIC = "topic://acme/checkpoints/t"


class World:
    """A topic whose hashes are written one after the other, and a reader that can restart at its last checkpoint."""

    def __init__(self, segments: int) -> None:
        self.controller = SegmentLayout.create(segments, 1_000)
        self.logs: dict[int, list[tuple[int, int]]] = {}
        """Hash and number of each message, by segment."""
        self.sent = dict.fromkeys(range(0, 0x10000, 0x1000), 0)
        self.received = dict.fromkeys(self.sent, 0)
        """Next expected number of each hash at the reader, saved with its checkpoint."""
        self.frontier = Frontier(self.layout())
        self.saved = self.frontier.checkpoint().to_bytes(), dict(self.received)

    def layout(self) -> Layout:
        return Layout.from_record(TOPIC, json.loads(self.controller.to_metadata().to_json()))

    def write(self) -> None:
        layout = self.layout()
        for hash in self.sent:
            self.logs.setdefault(layout.find(hash).id, []).append((hash, self.sent[hash]))
            self.sent[hash] += 1

    def change(self, number: int, merges: bool) -> None:
        active = sorted((s for s in self.controller.segments.values() if s.is_active), key=lambda s: s.start)
        index = number % len(active)
        if merges and index + 1 < len(active):
            pair = active[index].segment_id, active[index + 1].segment_id
            self.controller = self.controller.merge_segments(*pair, 1_000)
        elif active[index].width > 0x1000:
            self.controller = self.controller.split_segment(active[index].segment_id, 1_000)

    def read(self, number: int, count: int) -> None:
        """Read up to `count` messages of one readable segment."""
        self.frontier.follow(self.layout())
        readable = sorted(self.frontier.readable().items())
        id, offset = readable[number % len(readable)]
        log, position = self.logs.get(id, []), offset or 0
        self.frontier.advance(id, position)
        for hash, value in log[position : position + count]:
            assert value == self.received[hash]
            self.received[hash] += 1
            position += 1
            self.frontier.advance(id, position)
        if position == len(log) and not self.frontier.layout.segments[id].is_active:
            self.frontier.finish(id)

    def save(self) -> None:
        self.saved = self.frontier.checkpoint().to_bytes(), dict(self.received)

    def restart(self) -> None:
        data, received = self.saved
        self.frontier, self.received = Frontier(self.layout(), Checkpoint.from_bytes(data)), dict(received)

    def read_all(self) -> None:
        for _ in range(4 * len(self.controller.segments) + 4):
            for number in range(len(self.frontier.readable())):
                self.read(number, 1_000)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write")),
        st.tuples(st.just("change"), st.integers(0, 15), st.booleans()),
        st.tuples(st.just("read"), st.integers(0, 15), st.integers(0, 40)),
        st.tuples(st.just("save")),
        st.tuples(st.just("restart")),
    ),
    max_size=40,
)


@examples(10)
@given(st.integers(1, 4), STEPS)
def test_restart_anywhere_skips_and_reorders_nothing(segments: int, steps: list[tuple[str, ...]]) -> None:
    world = World(segments)
    for step, *arguments in steps:
        getattr(world, step)(*arguments)
    world.read_all()
    assert world.received == world.sent
    world.restart()
    world.read_all()
    assert world.received == world.sent


@given(st.dictionaries(st.integers(0, 2**31), st.integers(0, 2**62)), st.integers(0, 2**53) | st.none())
def test_checkpoint_reads_back(offsets: dict[int, int], life: int | None) -> None:
    checkpoint = Checkpoint(TOPIC, life, offsets, frozenset(list(offsets)[::2]))
    assert Checkpoint.from_bytes(checkpoint.to_bytes()) == checkpoint


@given(st.data())
def test_damaged_checkpoint_is_refused(data: st.DataObject) -> None:
    intact = Checkpoint(TOPIC, 1_000, {3: 17, 4: 0}, frozenset({3})).to_bytes()
    position = data.draw(st.integers(0, len(intact) - 1))
    flip = data.draw(st.integers(1, 255))
    damaged = intact[:position] + bytes([intact[position] ^ flip]) + intact[position + 1 :]
    with pytest.raises(CheckpointUnreadable):
        Checkpoint.from_bytes(damaged)
    with pytest.raises(CheckpointUnreadable):
        Checkpoint.from_bytes(intact[:position])


FORGED = {"topic": TOPIC, "createdAtMs": 1_000, "offsets": {"1": 5}, "finished": [1]}


@pytest.mark.parametrize(
    "change",
    [
        {"offsets": {"1": -1}},
        {"offsets": {"1": 2**63}},
        {"offsets": {"1": True}},
        {"offsets": {"1": "5"}},
        {"offsets": {"-1": 5}, "finished": []},
        {"offsets": {"one": 5}, "finished": []},
        {"offsets": [5]},
        {"finished": [2]},
        {"finished": 1},
        {"finished": [[]]},
        {"topic": None},
        {"createdAtMs": "1000"},
    ],
    ids=str,
)
def test_forged_checkpoint_is_refused(change: dict[str, object]) -> None:
    assert Checkpoint.from_bytes(forged(json.dumps(FORGED))).offsets == {1: 5}
    with pytest.raises(CheckpointUnreadable):
        Checkpoint.from_bytes(forged(json.dumps({**FORGED, **change})))


@pytest.mark.parametrize(
    "content", ["", "[]", "null", "[" * 100_000, '{"offsets":{"1":' + "9" * 5_000 + "}}", "{}" + " " * 16 * 1_048_576]
)
def test_forged_content_is_bounded(content: str) -> None:
    with pytest.raises(CheckpointUnreadable):
        Checkpoint.from_bytes(forged(content))


def forged(content: str) -> bytes:
    data = content.encode()
    return b"ABCK\x01" + data + zlib.crc32(data).to_bytes(4, "big")


def test_checkpoint_newer_than_the_layout_is_retriable() -> None:
    world = World(1)
    lagging = world.layout()
    world.change(0, False)
    world.read(0, 1_000)
    with pytest.raises(ControllerUnavailable, match="older than the checkpoint"):
        Frontier(lagging, world.frontier.checkpoint())


def test_checkpoint_of_another_topic_is_refused() -> None:
    layout = World(1).layout()
    for topic, life in (("topic://acme/checkpoints/other", layout.created_at_ms), (TOPIC, 999)):
        with pytest.raises(CheckpointOfOtherTopic):
            Frontier(layout, Checkpoint(topic, life, {0: 1}))


def test_checkpoint_expires_when_unread_segment_is_pruned() -> None:
    world = World(1)
    world.write()
    world.read(0, 3)
    unread = world.frontier.checkpoint()
    world.change(0, False)
    world.read(0, 1_000)
    read = world.frontier.checkpoint()
    world.controller = world.controller.prune_segment(0)
    with pytest.raises(CheckpointExpired):
        Frontier(world.layout(), unread)
    assert Frontier(world.layout(), read).readable() == {1: 0, 2: 0}
    world.change(0, True)
    world.controller = world.controller.prune_segment(1)
    with pytest.raises(CheckpointExpired):
        Frontier(world.layout(), read)


def test_first_version_of_checkpoints_stays_readable() -> None:
    content = b'{"topic":"topic://acme/checkpoints/t","createdAtMs":1000,"offsets":{"1":5,"2":0},"finished":[1]}'
    data = b"ABCK\x01" + content + bytes.fromhex("96bb640d")
    assert Checkpoint.from_bytes(data) == Checkpoint(TOPIC, 1_000, {1: 5, 2: 0}, frozenset({1}))
    with pytest.raises(CheckpointUnreadable, match="version 2"):
        Checkpoint.from_bytes(b"ABCK\x02" + data[5:])
