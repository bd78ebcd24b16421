"""`anabranch bundles check`: each kind of finding, healthy channels, garbage, and memory."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cli.bundles.channel_lines import MAX_LINE_BYTES, read_line
from anabranch.cli.main import cli
from decisions.bundles.channel.checking import Checker, FindingKind, meanings_table
from decisions.bundles.channel.records import BundleRecord, State
from tests.examples import examples

WHOLE, LEFT, RIGHT = "t/n/0x00000000_0x80000000", "t/n/0x00000000_0x40000000", "t/n/0x40000000_0x80000000"


def said(bundle, state, version, to=None, source=None, at=1_000, **more):
    value = {"state": state, "versionId": version, "dstBroker": to, "sourceBroker": source, "timestamp": at, **more}
    return json.dumps({"key": bundle, "value": value})


def removed(bundle):
    return json.dumps({"key": bundle, "value": None})


def check(*lines, options=()):
    text = b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines)
    result = CliRunner().invoke(cli, ["bundles", "check", "--output", "json", *options], input=text)
    assert result.exit_code in (0, 1), result.output
    *found, counts = (json.loads(line) for line in result.stdout.splitlines())
    assert counts["counts"]["findings"] == len(found)
    assert (bool(found) or counts["counts"]["messages"] == 0) == (result.exit_code == 1)
    return [(one["kind"], one["line"], one["bundle"]) for one in found], counts["counts"]


ASSIGNED = (said(WHOLE, "Assigning", 1, "a"), said(WHOLE, "Owned", 2, "a", at=2_000))
SPLIT = (
    *ASSIGNED,
    said(WHOLE, "Splitting", 3, None, "a", splitServiceUnitToDestBroker={LEFT: None, RIGHT: "b"}),
    said(LEFT, "Owned", 1, "a"),
    said(RIGHT, "Owned", 1, "a"),
    said(WHOLE, "Deleted", 4, None, "a"),
)


def test_bundle_lifecycle_passes_the_checker():
    transfer = (
        said(RIGHT, "Releasing", 2, "b", "a"),
        said(RIGHT, "Assigning", 3, "b", "a"),
        said(RIGHT, "Owned", 4, "b", "a"),
        said(RIGHT, "Owned", 4, "c", "a"),
        removed(WHOLE),
    )
    found, counts = check(*SPLIT, *transfer, options=["--brokers", "a,b"])
    assert found == []
    assert counts == {"messages": 11, "bundles": 2, "stale": 1, "forced": 0, "hidden": 0, "findings": 0}


@pytest.mark.parametrize(
    ("lines", "options", "expected"),
    [
        ([*ASSIGNED, said(WHOLE, "Owned", 3, "b")], (), ("illegal-transition", 3, WHOLE)),
        ([*ASSIGNED, removed(WHOLE)], (), ("illegal-transition", 3, WHOLE)),
        ([*ASSIGNED, said(WHOLE, "Releasing", 3, "b", "c")], (), ("brokers", 3, WHOLE)),
        ([*ASSIGNED, said(WHOLE, "Releasing", 4, "b", "a")], ("--store", "metadata"), ("version-gap", 3, WHOLE)),
        ([said(WHOLE, "Owned", 2, "a")], ("--store", "metadata"), ("not-first", 1, WHOLE)),
        ([*SPLIT[:4], said(RIGHT, "Owned", 1, "b")], (), ("two-owners", 5, RIGHT)),
        ([ASSIGNED[0], said(WHOLE, "Owned", 2, "a", at=31_001)], (), ("in-flight", 2, WHOLE)),
        ([ASSIGNED[0]], ("--at", "1970-01-01T00:00:31.001Z"), ("in-flight", None, WHOLE)),
        (ASSIGNED, ("--brokers", "b, c"), ("orphan", None, WHOLE)),
        ([*ASSIGNED, said(LEFT, "Owned", 1, "a")], (), ("overlap", None, LEFT)),
        ([*SPLIT[:4], SPLIT[5]], (), ("gap", None, WHOLE)),
        ([*ASSIGNED, "no message"], (), ("bad-line", 3, None)),
        ([*ASSIGNED, said("nothing", "Owned", 1, "a")], (), ("bad-line", 3, None)),
        ([*ASSIGNED, said("t/n/0x80000000_0x40000000", "Owned", 1, "a")], (), ("bad-line", 3, None)),
        ([*ASSIGNED, said(WHOLE, "Mine", 1, "a")], (), ("bad-line", 3, None)),
        ([*ASSIGNED, b"x" * (2 * MAX_LINE_BYTES + 5)], (), ("bad-line", 3, None)),
        ([*ASSIGNED, b"key:[\xff], properties:[], content:"], (), ("bad-line", 3, None)),
    ],
)
def test_each_fault_is_the_one_thing_that_is_found(lines, options, expected):
    assert check(*lines, options=options)[0] == [expected]


def test_just_within_the_limits_nothing_is_found():
    assert check(ASSIGNED[0], said(WHOLE, "Owned", 2, "a", at=31_000))[0] == []
    assert check(ASSIGNED[0], options=["--at", "1970-01-01T00:00:31Z"])[0] == []
    assert check(*ASSIGNED, said(WHOLE, "Releasing", 9, "b", "c"))[1]["hidden"] == 1


def test_consume_output_parsed_without_frames():
    value = json.dumps(json.loads(ASSIGNED[1])["value"])
    lines = [
        "----- got message -----",
        f"key:[{WHOLE}], properties:[], content:{value}",
        f"publishTime:[1], eventTime:[0], key:[{RIGHT}], properties:[a=b], content:{value}",
        f"key:[{LEFT}], properties:[], content:",
        "",
    ]
    found, counts = check(*lines)
    assert (found, counts["messages"], counts["bundles"]) == ([("overlap", None, RIGHT)], 3, 2)


def test_what_is_bad_does_not_stop_what_follows():
    found, counts = check("{", b"\xff\xfe", "[]", said(WHOLE, "Owned", "1", "a"), *ASSIGNED, said(WHOLE, "Free", 3))
    assert [line for _, line, _ in found] == [1, 2, 3, 4, 7]
    assert counts["messages"] == 3


@examples(15)
@given(st.lists(st.binary(max_size=60) | st.sampled_from([*(one.encode() for one in SPLIT), b"\n"]), max_size=12))
def test_no_line_stops_it(lines):
    check(*lines)


def test_input_without_messages_fails():
    result = CliRunner().invoke(cli, ["bundles", "check"], input=b"\n")
    assert (result.exit_code, result.stderr) == (1, "Error: there was no message to check\n")


def test_a_name_with_escape_sequences_is_spelt_out():
    bundle = "t/\x1b[2J/0x00000000_0x80000000"
    lines = "\n".join([said(bundle, "Free", 0), said(bundle, "Owned", 1)])
    shown = CliRunner().invoke(cli, ["bundles", "check"], input=lines)
    assert shown.exit_code == 1
    assert "\\x1b[2J" in shown.stdout
    assert "\x1b" not in shown.stdout


def test_memory_follows_bundles_and_not_messages():
    def kept(messages: int, bundles: int = 1) -> int:
        checker = Checker()
        for version in range(1, messages + 1):
            for number in range(bundles):
                bundle = f"t/n{number}/0x00000000_0xffffffff"
                record = BundleRecord(State.OWNED, version, "a", force=True, at=version)
                assert list(checker.read(bundle, record, version)) == []
        return len(pickle.dumps(checker))

    # The same but for the digits of a few numbers.
    assert kept(10_000) < kept(100) + 100
    assert kept(10, bundles=200) > kept(10) + 200


def test_the_page_has_the_table_of_findings():
    page = (Path(__file__).parents[3] / "docs" / "bundles.md").read_text()
    assert meanings_table() in page, (
        "run: python -m decisions.bundles.channel.checking, and put it into docs/bundles.md"
    )
    assert {one.value for one in FindingKind} > {"two-owners", "orphan"}


@pytest.mark.parametrize(
    "line", [b", key:[], properties:[" * 40_000 + b"{", b"key:[" * 200_000, b"x, " * 300_000 + b"key:[a], properties:["]
)
def test_hostile_line_costs_no_time(line):
    began = time.process_time()
    with pytest.raises(ValueError):
        read_line(line[:MAX_LINE_BYTES])
    assert time.process_time() - began < 1
