"""Typed errors of the clients; each message says what to do."""

from __future__ import annotations


class AnabranchError(Exception):
    """Base of all errors of this package."""

    is_retriable = False
    """True if the same call may succeed later without any change."""


class ConfigurationError(AnabranchError):
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


class TopicDeleted(TopicNotFound):
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
    """A message, or the batch that holds it, exceeds a limit of the client or of the segment's Kafka topic."""


class DeliveryTimeout(DeliveryError):
    """A message was not acknowledged within `message.timeout.ms`; Kafka may have stored it."""


class MessageDiscarded(DeliveryError):
    """The producer was closed before Kafka acknowledged the message; Kafka may have stored it."""
