"""Why a query ended is one line, and says what to do where that is known."""

from __future__ import annotations

import pytest

from streaming.job.failures import DELAYS_SECONDS, Patience, PersonNeeded, TooSlow, failure_in_one_line, failure_of

LOST = """[STREAM_FAILED] Query terminated with exception: Some data may have been lost because they are not available
in Kafka any more. If you don't want your streaming query to fail on such cases, set the source option failOnDataLoss to
false. Reason: Partition control-events-0 offset was changed from 26 to 3.
=== Streaming Query ===
Identifier: anabranch
JVM stacktrace: …"""


def test_lost_records_named_without_skip_advice():
    line = failure_in_one_line(LOST)
    assert "\n" not in line
    assert "control-events-0 offset was changed from 26 to 3" in line
    assert "move the checkpoint folder away" in line
    assert "failOnDataLoss" not in line


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("java.io.IOException: No space left on device", "make room"),
        ("[STREAMING_CHECKPOINT_MISSING_METADATA_FILE] x", "put its newest copy in its place"),
        ("engine.kernel.packed.StateError: state version 9", "another release"),
        ("[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA] x", "another release"),
    ],
)
def test_a_known_failure_says_what_to_do(error, said):
    assert said in failure_in_one_line(error)


def test_long_failure_shows_beginning_and_end():
    frames = "".join(f'  File "x.py", line {number}, in f\n    f()\n' for number in range(100))
    error = f"[FOREACH_BATCH_USER_FUNCTION_ERROR] Reason: Traceback\n{frames}OSError: No space left on device"
    said = failure_in_one_line(error)
    assert "Spark says: Traceback" in said
    assert said.endswith("OSError: No space left on device")
    assert len(said) < 800


def test_unknown_failure_shown_without_stack():
    assert failure_in_one_line("something\n  odd\nJVM stacktrace:\n at x.y") == "something odd"


@pytest.mark.parametrize(
    ("error", "needed"),
    [
        (LOST, True),
        ("[STREAMING_CHECKPOINT_MISSING_METADATA_FILE] x", True),
        ("engine.kernel.packed.StateError: state version 9", True),
        ("[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA] x", True),
        ("java.io.IOException: No space left on device", False),
        ("UnknownTopicOrPartitionException", False),
        ("something odd", False),
    ],
)
def test_person_needed_only_when_restart_fails(error, needed):
    assert isinstance(failure_of(error), PersonNeeded) is needed


@pytest.mark.parametrize(
    ("error", "slow"),
    [
        ("org.apache.spark.SparkException: Python worker failed to connect back.", True),
        ("[CANNOT_OPEN_SOCKET] tried to connect to /tmp/.x.sock, but an error occurred: [Errno 2]", True),
        ("java.net.SocketTimeoutException: Accept timed out", True),
        ("Python worker exited unexpectedly (crashed)", False),
        ("engine.kernel.packed.StateError: state version 9; Python worker failed to connect back", False),
    ],
)
def test_only_late_connections_restart_the_query(error, slow):
    assert isinstance(failure_of(error), TooSlow) is slow


def test_patience_ends_unless_a_batch_is_written():
    patience = Patience()
    assert [patience.next_delay() for _ in range(len(DELAYS_SECONDS) + 2)] == [*DELAYS_SECONDS, None, None]
    patience.renew()
    assert patience.next_delay() == DELAYS_SECONDS[0]
