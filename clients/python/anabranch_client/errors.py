"""Typed errors of the clients; each message says what to do."""

from confluent_kafka import KafkaError


class AnabranchError(Exception):
    """Base of all errors of this package."""

    is_retriable = False
    """True if the same call may succeed later without any change."""


class ClientSettingsError(AnabranchError):
    """A setting is missing, unknown or contradictory."""


class ControllerUnavailable(AnabranchError):
    """No controller answered."""

    is_retriable = True


class NotAuthorized(AnabranchError):
    """The controller refused the token, or its role or scope."""


class IncompatibleController(AnabranchError):
    """The controller sent something that this version of the client cannot read."""


class TopicNotFound(AnabranchError):
    """There is no scalable topic of that name."""

    def __init__(self, topic: str, reason: str = "create it at the controller, or correct the name") -> None:
        super().__init__(f"{topic} does not exist: {reason}")
        self.topic = topic


class TopicRemoved(TopicNotFound):
    """The topic was deleted while a client used it."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic, "it was deleted; create it again, or close this client")


class ClientClosed(AnabranchError):
    """The client was closed before."""


class QueueFull(AnabranchError, BufferError):
    """The producer's memory is full: call `poll` until messages are delivered, then produce again."""

    is_retriable = True


class DeliveryError(AnabranchError):
    """A message was not delivered."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        """Kafka's error code (`confluent_kafka.KafkaError`), if Kafka refused the message."""


class MessageTooLarge(DeliveryError):
    """A message, or its batch, exceeds a limit of the client or of the segment's Kafka topic."""


class DeliveryTimeout(DeliveryError):
    """A message was not acknowledged within `message.timeout.ms`; Kafka may have stored it."""


class MessageDiscarded(DeliveryError):
    """The producer ended before Kafka acknowledged the message; Kafka may have stored it."""


class TransactionAborted(AnabranchError):
    """Nothing of the transaction counts, for instance as a segment was sealed: begin it again."""

    is_retriable = True


class TransactionUnfinished(AnabranchError):
    """Kafka has not answered in time: call `commit_transaction` or `abort_transaction` again."""

    is_retriable = True


class ProducerFenced(AnabranchError):
    """Another producer has taken over the transactional id, or Kafka has ended this one: close it."""


def delivery_error(error: KafkaError) -> DeliveryError:
    """Return the typed form of an error with which Kafka or its client ended a message."""
    code, text = error.code(), error.str()
    if code == KafkaError.MSG_SIZE_TOO_LARGE:
        return MessageTooLarge(
            f"Kafka refuses the message or its batch ({text}): send less, or set message.max.bytes to the segment "
            "topics' max.message.bytes, larger or smaller",
            code,
        )
    if code == KafkaError._MSG_TIMED_OUT:
        return DeliveryTimeout(f"{text}: check Kafka, and produce again if a second copy does no harm", code)
    if code in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
        return discarded_error(code)
    if code == KafkaError._FATAL:
        return DeliveryError(f"{text}: Kafka's client has ended; close this producer and create another one", code)
    if code == KafkaError.INVALID_TIMESTAMP:
        return DeliveryError(f"{text}: give a time stamp at most an hour ahead of the broker's clock", code)
    return DeliveryError(f"Kafka does not store the message: {error.name()}: {text}", code)


def successor_timeout(topic: str, segment: int, reason: AnabranchError | None) -> DeliveryTimeout:
    """Return the error of a message that has waited for the successor of a segment; `reason`: of the controller."""
    return DeliveryTimeout(
        f"segment {segment} of {topic} takes no messages, and the controller has named no successor within "
        f"message.timeout.ms ({reason or 'it answers'}): check it and produce again"
    )


def discarded_error(code: int | None = None) -> MessageDiscarded:
    """Return the error of a message that a closed producer, or Kafka's client after a fatal error, has given up."""
    reason = "the producer was closed, or Kafka's client has ended, before Kafka acknowledged the message"
    return MessageDiscarded(f"{reason}: produce it again, with another producer", code)


class ConsumerReplaced(AnabranchError):
    """Another process registered under the consumer's name: give every consumer a name of its own."""


class SubscriptionConflict(AnabranchError):
    """The controller refused the subscription: another type, too many consumers, or an invalid name."""


class AssignmentLost(AnabranchError):
    """Segments were lost before an acknowledgement was stored: the next owner gets the messages again."""

    def __init__(self, segments: list[int]) -> None:
        super().__init__(
            f"segments {', '.join(map(str, segments))} are no longer this consumer's: drop what was received from them "
            "and not acknowledged, it is delivered again"
        )
        self.segments = segments


class SegmentUnreadable(AnabranchError):
    """Kafka refuses to let the consumer read a segment."""

    def __init__(self, kafka_topic: str, reason: str) -> None:
        super().__init__(f"{kafka_topic} cannot be read: {reason}; check Kafka, and the rights of this consumer's user")


class CheckpointUnreadable(AnabranchError):
    """The bytes are no checkpoint, damaged, or of a newer client."""


class CheckpointOfOtherTopic(AnabranchError):
    """The checkpoint belongs to another topic, or to an earlier one of the same name."""


class CheckpointExpired(AnabranchError):
    """Segments were pruned before they were read."""
