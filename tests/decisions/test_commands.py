"""`anabranch decisions decide` and `anabranch policy`, as processes and in this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from random import Random

import pytest
from click.testing import CliRunner

from anabranch.cli.main import cli
from decisions.autoscale.answers import Hold, Merge, Split, answer_to_json
from decisions.autoscale.decide import decide
from decisions.autoscale.snapshot import snapshot_from_wire, snapshot_to_wire
from decisions.topic.layout import SegmentLayout
from lake.tables import create_lake
from schemas.metadata import AutoScalePolicyOverride
from schemas.snapshot import ANSWER, Snapshot
from tests.decisions.snapshots import COLD, TOPIC, bucket_snapshot, load, msg_rate, random_snapshot, snapshot, stream
from tests.local.lake import ORDERS, layout_event, layout_json, write


def line(one, **changes):
    """The snapshot as it stands in a file, without a policy of its own."""
    return json.dumps(json.loads(snapshot_to_wire(one).to_json()) | {"policy": {}} | changes)


HOT = line(snapshot(loads={0: msg_rate(1e6)}))
IDLE = line(snapshot(2, {0: load(COLD), 1: load(COLD)}, consumers=stream(2)))


def run(*arguments, text=""):
    return CliRunner().invoke(cli, list(arguments), input=text)


def answers(result):
    return [json.loads(one) for one in result.stdout.splitlines()]


def test_answers_come_in_the_order_of_the_lines():
    result = run("decide", text="\n".join([HOT, IDLE, HOT]) + "\n")
    assert result.exit_code == 0
    assert [answer["action"] for answer in answers(result)] == ["split", "hold", "split"]
    assert answers(result)[1]["gate"] == "merge-consumers"


def test_explanation_strips_escape_sequences():
    steering = [line(snapshot(), topic=f"{TOPIC}\x1b[2J\u202e"), json.dumps({"layout": {"\x1b[2J": 1}, "\u202e": 2})]
    shown = run("decide", "--explain", text="\n".join(steering) + "\n").stdout
    assert "\\x1b[2J\\u202e at " in shown
    assert shown.replace("\n", "").isprintable()


def test_the_profile_is_chosen_on_the_command_line():
    (answer,) = answers(run("decide", "--profile", "pip-483", text=IDLE))
    assert (answer["action"], answer["segments"], answer["reason"]) == ("merge", [0, 1], "cold")


def test_policy_file_overlays_each_snapshot(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text('splitMsgRateInThreshold = "2M"\n')
    own = line(snapshot(loads={0: msg_rate(1e6)}), policy={"splitMsgRateInThreshold": 5000.0, "maxSegments": 1})
    result = run("decide", "--policy", str(file), text=f"{HOT}\n{own}\n")
    assert [answer["gate"] for answer in answers(result)] == ["split-thresholds", "split-thresholds"]


def test_unreadable_policy_file_is_one_line(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text("maxSegment = 3\n")
    result = run("decide", "--policy", str(file), text=HOT)
    assert result.exit_code == 1
    assert "unknown key 'maxSegment'; did you mean maxSegments?" in result.stderr


BAD = {
    "no JSON": "{",
    "nothing": "",
    "a list": "[]",
    "no topic": line(snapshot(), topic="orders"),
    "a negative rate": line(snapshot(loads={0: load()})).replace('"msgRateIn": 5000.0', '"msgRateIn": -1.0'),
    "a layout with a gap": IDLE.replace('"end": 32767', '"end": 32766'),
    "deeply nested": "[" * 100_000,
    "not a number": HOT.replace("1000000.0", "NaN"),
    "not UTF-8": b'{"topic":"\xff"}'.decode("latin-1"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_answers_an_error_in_its_place(name):
    result = run("decide", text=f"{HOT}\n{BAD[name]}\n{HOT}\n")
    first, bad, last = answers(result)
    assert result.exit_code == 1
    assert (first["action"], last["action"]) == ("split", "split")
    assert list(bad) == ["error"]
    assert bad["error"]


def test_broken_policy_holds_naming_the_rule():
    (answer,) = answers(run("decide", text=line(snapshot(), policy={"minSegments": 0})))
    assert answer["gate"] == "invalid-policy"
    assert answer["gates"][0]["detail"] == "minSegments must be at least 1, got 0"


def test_unterminated_and_empty_files_accepted(tmp_path):
    file = tmp_path / "snapshots.jsonl"
    file.write_text(f"{HOT}\n{HOT}")
    assert len(answers(run("decide", str(file)))) == 2
    file.write_text("")
    result = run("decide", str(file))
    assert (result.stdout, result.exit_code) == ("", 0)


def test_explanation_marks_the_binding_gate():
    result = run("decide", "--explain", text=f"{IDLE}\n{{}}\n")
    assert f"{TOPIC} at 2025-11-20T17:33:20Z, by tick, 2 active segments" in result.stdout
    assert "hold, merge-consumers: After a merge some consumer would lack a segment" in result.stdout
    (binding,) = [row for row in result.stdout.splitlines() if row.startswith(" >> ")]
    assert binding.split() == [">>", "merge-consumers", "2", "2", "0"]
    assert "line 2: topic: Field required" in result.stdout
    assert result.exit_code == 1


def test_full_back_off_marked_on_held_merge():
    failed = {"failures": 1, "failedAt": snapshot().now, "failedAction": None}
    result = run("decide", "--explain", text=line(snapshot(2, {0: load(COLD), 1: load(COLD)}), **failed))
    assert "hold, retry-backoff" in result.stdout
    (binding,) = [row for row in result.stdout.splitlines() if row.startswith(" >> ")]
    assert binding.split()[1] == "retry-backoff"


def test_the_written_answer_is_the_wire_answer():
    rng = Random(3)
    for number in range(800):
        answer = decide((bucket_snapshot if number % 4 == 0 else random_snapshot)(rng, guards=True))
        text = answer_to_json(answer)
        wire = ANSWER.validate_json(text)
        assert text.decode() == wire.to_json()
        written = {
            name: getattr(wire, name) for name in type(wire).model_fields if name not in ("gates", "also", "hot_keys")
        }
        assert written == _fields_of(answer)
        for reading, shown in zip(answer.gates, wire.gates, strict=True):
            fields = {name: getattr(reading, name) for name in type(shown).model_fields}
            assert {name: getattr(shown, name) for name in fields} == fields | {"gate": reading.gate.value}
        also = [(more.action, more.segments, more.reason) for more in getattr(wire, "also", None) or ()]
        assert also == [(more.action, list(more.ids), more.reason) for more in getattr(answer, "also", ())]


def _fields_of(answer):
    if isinstance(answer, Hold):
        return {"action": "hold", "gate": answer.gate.value}
    if isinstance(answer, Split):
        return {"action": "split", "segment": answer.segment, "reason": answer.reason}
    if isinstance(answer, Merge):
        return {"action": "merge", "segments": answer.segments, "reason": answer.reason}
    counts = {"segments": list(answer.segments), "bucket_count": answer.bucket_count}
    return {"action": "rebucket", **counts, "reason": answer.reason}


@pytest.mark.process
def test_pipe_answers_line_by_line():
    process = subprocess.Popen(
        [sys.executable, "-m", "anabranch", "decide"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    try:
        for _ in range(3):
            process.stdin.write(HOT.encode() + b"\n")
            assert json.loads(process.stdout.readline())["action"] == "split"
        process.stdin.close()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.process
def test_decide_needs_no_spark_no_delta_and_no_numpy():
    code = (
        "import sys, anabranch.cli.commands.decide\n"
        "print([name for name in ('pyspark', 'py4j', 'deltalake', 'pyarrow', 'pandas', 'numpy', 'confluent_kafka')"
        " if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.process
def test_answers_are_the_same_bytes_in_every_process(tmp_path):
    rng = Random(11)
    wires = [snapshot_to_wire(random_snapshot(rng, guards=True)).to_json() for _ in range(200)]
    file = tmp_path / "snapshots.jsonl"
    file.write_text("\n".join(wires))
    found = {
        subprocess.run(
            [sys.executable, "-m", "anabranch", "decide", str(file)],
            check=False,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "77")
    }
    (text,) = found
    assert len(text.splitlines()) == 200


def test_key_order_in_snapshot_is_irrelevant():
    rng = Random(12)
    for _ in range(300):
        wire = snapshot_to_wire(random_snapshot(rng, guards=True)).to_json()
        turned = json.dumps(_turned(json.loads(wire)))
        one, other = (snapshot_from_wire(Snapshot.model_validate_json(text)) for text in (wire, turned))
        assert decide(one) == decide(other)


def _turned(value):
    return {key: _turned(value[key]) for key in reversed(value)} if isinstance(value, dict) else value


def test_policy_show_tells_who_set_each_value(tmp_path):
    namespace, metadata = tmp_path / "namespace.json", tmp_path / "layout.json"
    namespace.write_text('{"mergeWindowSeconds": 30, "maxSegments": 5}')
    layout = replace(SegmentLayout.create(1, 0), auto_scale_policy=AutoScalePolicyOverride(max_segments=7))
    metadata.write_text(layout.to_metadata().to_json())
    cluster = tmp_path / "cluster.toml"
    cluster.write_text('splitCooldownSeconds = "2m"\nmaxSegments = 6\n')
    result = run(
        "policy",
        "show",
        TOPIC,
        "--profile",
        "default",
        "--cluster",
        str(cluster),
        "--namespace",
        str(namespace),
        "--metadata",
        str(metadata),
        "--explain",
    )
    rows = {
        row.split(" = ")[0]: row.split(" = ")[1].split(None, 1) for row in result.stdout.splitlines() if " = " in row
    }
    assert result.exit_code == 0
    assert rows["maxSegments"] == ["7", f"# topic ({metadata})"]
    assert rows["mergeWindowSeconds"] == ["30", f"# namespace ({namespace})"]
    assert rows["splitCooldownSeconds"] == ["120", f"# cluster ({cluster})"]
    assert rows["enabled"] == ["true", "# profile default"]
    assert len(rows) == 38


def test_policy_show_reports_disabling_combination(tmp_path):
    cluster = tmp_path / "cluster.toml"
    cluster.write_text("minSegments = 99\n")
    result = run("policy", "show", TOPIC, "--cluster", str(cluster))
    assert "scaling is off for this topic: maxSegments (64) must not be less than minSegments (99)" in result.stdout


def test_policy_show_takes_unique_end_of_name_in_lake(tmp_path):
    settings = tmp_path / "own.toml"
    settings.write_text(f'[lake]\npath = "{tmp_path}/lake"\n')

    def show(name):
        return run("--config", str(settings), "policy", "show", name, "--offline")

    assert "orders is not a whole name, tenant/namespace/name, and no layout" in show("orders").stderr
    create_lake(str(tmp_path / "lake"))
    whole = layout_json((0, 0, 0xFFFF))
    topics = (ORDERS, "topic://acme/shop/carts", "topic://acme/store/carts")
    write(str(tmp_path / "lake"), *(layout_event(whole, 0, topic=topic) for topic in topics))
    assert show("orders").stdout.startswith(f"# {ORDERS}: ")
    assert "give more of the name" in show("carts").stderr
    assert "nearest names are topic://acme/shop/orders" in show("order").stderr
    assert {show(name).exit_code for name in ("", "carts", "order", "acme/shop")} == {2}


def test_policy_check_reports_rules_and_bad_files(tmp_path):
    good, broken, unwise, unread = (tmp_path / f"{name}.toml" for name in ("good", "broken", "unwise", "unread"))
    good.write_text("maxSegments = 8\n")
    broken.write_text('splitBytesRateInThreshold = "5MB"\n')
    unwise.write_text("mergeMsgRateInThreshold = 9000\n")
    unread.write_text("maxSegments = '8 MB'\n")
    assert run("policy", "check", str(good), str(unwise)).exit_code == 0
    result = run("policy", "check", str(good), str(broken), str(unwise), str(unread))
    assert result.exit_code == 1
    assert f"{good}: valid over profile default; 1 value set" in result.stdout
    assert f"{broken}: broken rule: splitBytesRateInThreshold (5e+06) must be greater" in result.stdout
    assert f"{unwise}: warning: mergeMsgRateInThreshold (9000) is more than half" in result.stdout
    assert f"{unread}: maxSegments" in result.stdout


def test_decide_prints_a_rebucket_with_its_buckets():
    layout = SegmentLayout.create(1, 0, bucket_budget=4).to_metadata()
    line = json.dumps(
        {
            "topic": "topic://a/b/c",
            "now": 1_763_660_000_000,
            "layout": json.loads(layout.to_json()),
            "consumers": {"s": {"type": "STREAM", "count": 9}},
        }
    )
    for profile in ("pulsar-5.0", "default"):
        (answer,) = answers(run("decide", "--profile", profile, text=line))
        assert (answer["action"], answer["segments"], answer["bucketCount"]) == ("rebucket", [0], 16)
    explained = run("decide", "--explain", "--profile", "pulsar-5.0", text=line).stdout
    assert "give segment 0 16 entry buckets each, because of below-split-rate-floor" in explained
