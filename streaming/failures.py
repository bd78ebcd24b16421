"""Failures of the job: what Spark's exceptions mean, what to do about them, and whether a restart helps.

Stage: the end of a query, under `streaming.job`.
"""

from __future__ import annotations

DELAYS_SECONDS = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
"""Before a query that Spark gave up on is started again in the same process, as long as no batch is written."""


class JobFailed(RuntimeError):
    """The query ended by itself; the message says why in one line."""


class TooSlow(JobFailed):
    """Spark gave up waiting for one of its own processes. On a loaded machine another start may be in time."""


class Patience:
    """Delays before the query is started again, longer each time; a batch that is written makes them short again."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin with the shortest delay again."""
        self._delays = iter(DELAYS_SECONDS)

    def next_delay(self) -> float | None:
        """Return the next delay, seconds; None: it was tried often enough, and the process shall end."""
        return next(self._delays, None)


class JvmLost(JobFailed):
    """The JVM of the driver has ended. A thread of this process may still be in the batch that it was writing."""


class PersonNeeded(JobFailed):
    """The query ended, and would end again at every start: a person has to do what the message says."""


_REMEDIES = {
    "failOnDataLoss": (
        "Kafka no longer has records that this checkpoint has not read; nothing was skipped. If they are gone for "
        "good, move the checkpoint folder away: `anabranch state rebuild` makes one from the lake, or `anabranch "
        "stream --new-checkpoint` reads what Kafka has and learns the state again"
    ),
    "STREAMING_CHECKPOINT_MISSING_METADATA_FILE": (
        "the checkpoint is damaged: put its newest copy in its place, or move it away: `anabranch state rebuild` makes "
        "one from the lake, and `anabranch stream --new-checkpoint` starts over"
    ),
    "LeaseLost": "another job has taken over this lake while this one was silent; this one has written nothing since",
    "ReplayDiffers": (
        "another release began this batch, and lake and state would differ: nothing more was written. Start and stop "
        "the former release once more (docs/operations.md, Upgrade). Or move the checkpoint away: `anabranch state "
        "rebuild` makes one from what the lake holds"
    ),
    "No space left on device": "the disk is full: make room; the next start goes on where this one stopped",
    "UnknownTopicOrPartition": "a Kafka topic is missing: those of schemas/kafka.py have to be there first",
    "StateError": "the stored state was written by another release: run that one, or a newer one",
    "STATEFUL_OPERATOR_NOT_MATCH": "the checkpoint was written by another release: run that one, or a newer one",
}
"""What is to be done, by a word of the error that Spark ends with."""
_PERSON_NEEDED = (
    "ReplayDiffers",
    "failOnDataLoss",
    "STREAMING_CHECKPOINT_MISSING_METADATA_FILE",
    "StateError",
    "STATEFUL_OPERATOR_NOT_MATCH",
)
"""The words after which no restart gets further."""
_TOO_SLOW = (
    "failed to connect back",
    "Timed out while waiting for the Python worker",
    "CANNOT_OPEN_SOCKET",
    "STREAMING_PYTHON_RUNNER_INITIALIZATION_TIMEOUT",
    "Accept timed out",
)
"""The words by which Spark says that a Python process or the driver did not connect in time."""


def failure_of(error: str) -> JobFailed:
    """Return the failure that the text of Spark's exception stands for.

    `PersonNeeded` when a restart would not help, `TooSlow` when another start of the query may be all that it takes.
    """
    kinds = ((PersonNeeded, _PERSON_NEEDED), (TooSlow, _TOO_SLOW))
    kind = next((kind for kind, words in kinds if any(word in error for word in words)), JobFailed)
    return kind(failure_in_one_line(error))


def failure_in_one_line(error: str) -> str:
    """Return why the query ended and what to do about it, from the text of Spark's exception."""
    text = " ".join(error.split("=== Streaming Query ===")[0].split("\nJVM stacktrace")[0].split())
    remedy = next((remedy for word, remedy in _REMEDIES.items() if word in error), None)
    if remedy is None:
        return text[:2000]
    reason = text.rpartition("Reason: ")[2] if "Reason: " in text else text
    # Of a Python traceback what matters stands last.
    said = reason if len(reason) <= 600 else f"{reason[:300]} … {reason[-300:]}"
    return f"{remedy}. Spark says: {said}"
