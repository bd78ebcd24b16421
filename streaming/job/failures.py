"""Failures of the job: the meaning of Spark's exceptions, remedies, and which a restart cures.

Stage: used by `job` and by `anabranch serve stream`, which exits with the remedy.
"""

DELAYS_SECONDS = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
"""Delays before a failed query restarts in the same process, as long as no batch is written."""


class JobFailed(RuntimeError):
    """The query ended by itself; the message says why in one line."""


class TooSlow(JobFailed):
    """Spark timed out on one of its own processes. On a loaded machine another start may succeed."""


class Patience:
    """Increasing delays before restarts of the query; a written batch resets them."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Start with the shortest delay again."""
        self._delays = iter(DELAYS_SECONDS)

    def next_delay(self) -> float | None:
        """Return the next delay, seconds; None after too many attempts, when the process should end."""
        return next(self._delays, None)


class JvmLost(JobFailed):
    """The driver's JVM has ended. A thread of this process may still be writing its batch."""


class PersonNeeded(JobFailed):
    """The query ended and would end again at every start until a person does what the message says."""


_REMEDIES = {
    "failOnDataLoss": (
        "Kafka no longer has records that this checkpoint has not read; nothing was skipped. If they are gone for "
        "good, move the checkpoint folder away: `anabranch lake state rebuild` makes one from the lake, or `anabranch "
        "stream --new-checkpoint` reads what Kafka has and learns the state again"
    ),
    "STREAMING_CHECKPOINT_MISSING_METADATA_FILE": (
        "the checkpoint is damaged: put its newest copy in its place, or move it away: `anabranch lake state "
        "rebuild` makes "
        "one from the lake, and `anabranch serve stream --new-checkpoint` starts over"
    ),
    "LeaseLost": "another job has taken over this lake while this one was silent; this one has written nothing since",
    "ReplayDiffers": (
        "another release began this batch, and lake and state would differ: nothing more was written. Start and stop "
        "the former release once more (docs/operations.md, Upgrade). Or move the checkpoint away: `anabranch lake "
        "state "
        "rebuild` makes one from what the lake holds"
    ),
    "No space left on device": "the disk is full: make room; the next start goes on where this one stopped",
    "UnknownTopicOrPartition": "a Kafka topic is missing: those of schemas/kafka/topics.py have to be there first",
    "StateError": "the stored state was written by another release: run that one, or a newer one",
    "STATEFUL_OPERATOR_NOT_MATCH": "the checkpoint was written by another release: run that one, or a newer one",
}
"""Remedies by a word of Spark's error."""
_PERSON_NEEDED = (
    "ReplayDiffers",
    "failOnDataLoss",
    "STREAMING_CHECKPOINT_MISSING_METADATA_FILE",
    "StateError",
    "STATEFUL_OPERATOR_NOT_MATCH",
)
"""Words of errors that no restart cures."""
_TOO_SLOW = (
    "failed to connect back",
    "Timed out while waiting for the Python worker",
    "CANNOT_OPEN_SOCKET",
    "STREAMING_PYTHON_RUNNER_INITIALIZATION_TIMEOUT",
    "Accept timed out",
)
"""Words by which Spark reports that a Python process or the driver did not connect in time."""


def failure_of(error: str) -> JobFailed:
    """Return the failure for the text of Spark's exception.

    `PersonNeeded` if a restart would not help, `TooSlow` if another start of the query may be enough.
    """
    kinds = ((PersonNeeded, _PERSON_NEEDED), (TooSlow, _TOO_SLOW))
    kind = next((kind for kind, words in kinds if any(word in error for word in words)), JobFailed)
    return kind(failure_in_one_line(error))


def failure_in_one_line(error: str) -> str:
    """Return cause and remedy in one line, from the text of Spark's exception."""
    text = " ".join(error.split("=== Streaming Query ===")[0].split("\nJVM stacktrace")[0].split())
    if (remedy := next((remedy for word, remedy in _REMEDIES.items() if word in error), None)) is None:
        return text[:2000]
    reason = text.rpartition("Reason: ")[2] if "Reason: " in text else text
    # The end of a Python traceback matters most.
    excerpt = reason if len(reason) <= 600 else f"{reason[:300]} … {reason[-300:]}"
    return f"{remedy}. Spark says: {excerpt}"
