"""A fatal error in a real producer, by the function that librdkafka has for tests of its users."""

from __future__ import annotations

import ctypes
from pathlib import Path

import confluent_kafka
from confluent_kafka import KafkaError, Producer

_HANDLE = ctypes.sizeof(ctypes.c_void_p) * 2
"""Where a `Producer` keeps librdkafka's handle: behind the head of a Python object."""


def fail_for_good(producer: Producer) -> None:
    """The producer has a fatal error: what it has not sent is lost, and it takes no more."""
    library = next(Path(confluent_kafka.__file__).parent.parent.glob("confluent_kafka.libs/librdkafka*"))
    fail = ctypes.CDLL(str(library)).rd_kafka_test_fatal_error
    fail.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
    handle = ctypes.cast(id(producer) + _HANDLE, ctypes.POINTER(ctypes.c_void_p))[0]
    code = fail(handle, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, b"made by a test")
    assert code == 0, code
