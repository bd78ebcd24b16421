"""Fast decoder of plain JSON `segment-stats` messages, from a batch's bytes to arrays.

Stage: first of the job, before `schemas.codecs.bulk`, which takes half as long again. It accepts a subset of that
decoder's messages, with equal values (property test over raw bytes), and leaves others to it: only messages formatted
as by our models, with fields in order and no spaces. There the colons locate everything: a known word precedes each
colon, and a single number stands between it and the next word. The bytes before the segments are looked up whole, since
apart from the topic's name a reporter's are the same in all messages of a round. An invalid number sends its whole
batch to the other decoder.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.codecs.bulk import decode_head, is_known
from schemas.kafka.messages import MAX_SEGMENTS_PER_SAMPLE, MAX_VALUE_BYTES

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_Bools = npt.NDArray[np.bool_]
_Bytes = npt.NDArray[np.uint8]

_BEGIN, _NEXT = b'{"v":1,"topic":"', b'","reporter":"'
_HEAD = re.compile(rb'[^"\\\x00-\x1f]+","sampledAt":(0|[1-9][0-9]*),"segments":')
"""Pattern of the bytes between `_NEXT` and the segments, without escapes."""
_MAX_HEADS, _MAX_HEAD_BYTES = 10_000, 4096 + 64
_WORDS = (b'"id":', b',"msgRateIn":', b',"bytesRateIn":', b',"msgRateOut":', b',"bytesRateOut":')
_PER_SAMPLE = len(_WORDS)
_WORD = 8
"""Bytes compared at a time."""
_FIRST, _FURTHER = b':[{"id":', b'},{"id":'
_COLON, _ZERO, _DOT = b":0."


@dataclass(frozen=True)
class BulkArrays:
    """Samples of n valid messages, m in total."""

    rows: Ints
    """Rows of the messages in the batch, in order."""
    reporters: list[str]
    """By message."""
    sampled_at: Ints
    """By message, milliseconds."""
    counts: Ints
    """Number of samples, by message."""
    ids: Ints
    """By sample, unique within its message."""
    rates: Floats
    """Rates, 4 x m, per second, in the order of `SegmentSample`."""


@dataclass(frozen=True)
class _Heads:
    """Messages with decoded heads, the bytes before their segments."""

    rows: Ints
    reporters: list[str]
    sampled_at: Ints
    begins: Ints
    """Start of the segments in the text, after the bracket."""
    ends: Ints
    """Required position of the closing bracket."""

    def chosen(self, those: _Bools) -> "_Heads":
        """Select messages."""
        if those.all():
            return self
        reporters = [entry for entry, is_chosen in zip(self.reporters, those.tolist(), strict=True) if is_chosen]
        arrays = {entry.name: getattr(self, entry.name)[those] for entry in fields(self) if entry.name != "reporters"}
        return _Heads(reporters=reporters, **arrays)


def decode_many(keys: Sequence[bytes | None], values: pa.BinaryArray, sizes: Ints, latest: Ints) -> BulkArrays | None:
    """Decode the plain messages of a batch whose topics were seen before; None if there are none.

    Total: never raises. `sizes` are the lengths of the whole values in bytes, as in `parse_message`; `latest` is the
    latest valid sampling time of each, milliseconds.
    """
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    text = values.buffers()[2].slice(offsets[0], offsets[-1] - offsets[0]).to_pybytes() if values.buffers()[2] else b""
    starts = offsets.astype(np.int64) - offsets[0]
    lengths = np.diff(starts)
    fit = np.flatnonzero((lengths == sizes) & (lengths <= MAX_VALUE_BYTES))
    heads = _read_heads(keys, text, fit.tolist(), starts)
    heads = heads.chosen(heads.sampled_at <= latest[heads.rows])
    if not len(heads.rows):
        return None
    chars = np.frombuffer(text, np.uint8)
    framed = _frame_messages(chars, heads)
    return None if framed is None else _numbers(chars, *framed)


_heads: dict[bytes, tuple[str, int]] = {}
"""Decoded plain heads."""


def _read_heads(keys: Sequence[bytes | None], text: bytes, rows: list[int], starts: Ints) -> _Heads:
    chosen, begins, origins = [], [], []
    borders: list[int] = starts.tolist()
    for row in rows:
        key = keys[row]
        if key is None or not is_known(key):
            continue
        head, begin, end = _BEGIN + key + _NEXT, borders[row], borders[row + 1]
        if not text.startswith(head, begin, end):
            continue
        begin += len(head)
        bracket = text.find(b"[", begin, end)
        if bracket < 0:
            continue
        head_text = text[begin:bracket]
        origin = _heads.get(head_text) or _learn_head(head_text)
        if origin is not None:
            chosen.append(row)
            begins.append(bracket + 1)
            origins.append(origin)
    of_rows = np.array(chosen, np.int64)
    sampled_at = np.array([instant for _, instant in origins], np.int64)
    reporters = [name for name, _ in origins]
    return _Heads(of_rows, reporters, sampled_at, np.array(begins, np.int64), starts[of_rows + 1] - 2)


def _learn_head(head_text: bytes) -> tuple[str, int] | None:
    """Decode a head and cache the result; None if it is not plain."""
    head = decode_head(head_text) if len(head_text) <= _MAX_HEAD_BYTES and _HEAD.fullmatch(head_text) else None
    if head is not None:
        if len(_heads) >= _MAX_HEADS:
            _heads.clear()
        _heads[head_text] = head
    return head


def _frame_messages(chars: _Bytes, heads: _Heads) -> tuple[_Heads, Ints, Ints] | None:
    """Return messages whose colons follow the right words, their samples, and colon positions (5 x s)."""
    colons = np.flatnonzero(chars == _COLON)
    first, last = np.searchsorted(colons, heads.begins), np.searchsorted(colons, heads.ends)
    counts, surplus = np.divmod(last - first, _PER_SAMPLE)
    is_framed = (surplus == 0) & (counts > 0) & (counts <= MAX_SEGMENTS_PER_SAMPLE)
    for index, char in enumerate(b"}]}", -1):
        is_framed &= chars[heads.ends + index] == char
    heads, first, counts = heads.chosen(is_framed), first[is_framed], counts[is_framed]
    if not len(counts):
        return None
    begins = np.cumsum(counts) - counts
    # Word by word, so that each step reads contiguous memory.
    colon_rows = np.ascontiguousarray(colons[_places_of(first, counts * _PER_SAMPLE)].reshape(-1, _PER_SAMPLE).T)
    # Compare eight bytes at a time, as integers; of a longer word, both its first and its last eight.
    words = np.ndarray((len(chars) - _WORD + 1,), "<u8", buffer=chars, strides=(1,))
    is_right = words[colon_rows[0] - (_WORD - 1)] == _as_word(_FURTHER)
    is_first = (words[colon_rows[0, begins] - (_WORD - 1)] == _as_word(_FIRST)) & (
        colon_rows[0, begins] == heads.begins + 5
    )
    is_right[begins] = is_first
    for column, word in zip(colon_rows[1:], _WORDS[1:], strict=True):
        is_right &= words[column - (_WORD - 1)] == _as_word(word[-_WORD:])
        is_right &= words[column - (len(word) - 1)] == _as_word(word[:_WORD])
    framed: tuple[_Heads, Ints, Ints] | None = _of_good(is_right, heads, counts, colon_rows)
    return framed


def _of_good(is_good: _Bools, heads: _Heads, counts: Ints, *columns: Any) -> Any:
    """Return the messages whose samples are all good, their counts, and columns by sample."""
    if is_good.all():
        return heads, counts, *columns
    those = np.logical_and.reduceat(is_good, np.cumsum(counts) - counts)
    if not those.any():
        return None
    samples = np.repeat(those, counts)
    return heads.chosen(those), counts[those], *(column[..., samples] for column in columns)


def _numbers(chars: _Bytes, heads: _Heads, counts: Ints, colon_rows: Ints) -> BulkArrays | None:
    """Parse the numbers after the colons of the samples (5 x s)."""
    begins = np.cumsum(counts) - counts
    starts, ends = colon_rows + 1, np.empty_like(colon_rows)
    for column, end, word in zip(colon_rows[1:], ends, _WORDS[1:], strict=False):
        np.subtract(column, len(word) - 1, out=end)
    ends[-1, :-1] = colon_rows[0, 1:] - (len(_FURTHER) - 1)
    ends[-1, begins + counts - 1] = heads.ends - 1
    try:
        ids = _cast_numbers(chars, starts[:1], ends[:1], pa.int64())[0]
        rates = _cast_numbers(chars, starts[1:], ends[1:], pa.float64())
    except pa.ArrowInvalid:
        # The error does not say which number, so leave all messages to the other decoder.
        return None
    good = _are_unsigned_json(chars, starts, ends) & np.isfinite(rates).all(axis=0)
    is_further = np.ones(len(ids), np.bool_)
    is_further[begins] = False
    good[1:] &= (ids[1:] > ids[:-1]) | ~is_further[1:]
    if (good_numbers := _of_good(good, heads, counts, ids, rates)) is None:
        return None
    heads, counts, ids, rates = good_numbers
    return BulkArrays(heads.rows, heads.reporters, heads.sampled_at, counts, ids, rates)


def _cast_numbers(chars: _Bytes, starts: Ints, ends: Ints, kind: pa.DataType) -> npt.NDArray[Any]:
    """Parse the numbers at some positions (c x s) of the text. Raises `pa.ArrowInvalid`."""
    # A string array has no gaps: the text between two numbers is an element too, marked null.
    offsets = np.empty(2 * starts.size + 1, np.int32)
    pairs = offsets[:-1].reshape(-1, len(starts), 2).T
    pairs[0], pairs[1], offsets[-1] = starts, ends, ends[-1, -1]
    every_second = pa.py_buffer(np.full(len(offsets) // 8 + 1, 0x55, np.uint8))
    texts = pa.Array.from_buffers(
        pa.string(), len(offsets) - 1, [every_second, pa.py_buffer(offsets), pa.py_buffer(chars)]
    )
    flat = np.frombuffer(texts.cast(kind).buffers()[1], kind.to_pandas_dtype(), len(offsets) - 1)
    numbers: npt.NDArray[Any] = flat.reshape(-1, len(starts), 2).T[0]
    return numbers


def _are_unsigned_json(chars: _Bytes, starts: Ints, ends: Ints) -> _Bools:
    """Return whether the numbers of samples (5 x s) are valid JSON, stricter than Arrow, and not negative."""
    first, second = chars[starts], chars[starts + 1]
    good = _is_digit(first) & _is_digit(chars[ends - 1])
    is_single = ends[0] - starts[0] == 1
    good &= (first != _ZERO) | ~_is_digit(second)
    good[0] &= (first[0] != _ZERO) | is_single
    whole: _Bools = np.logical_and.reduce(good)
    dots = np.flatnonzero(chars[:-1] == _DOT)
    dots = dots[~_is_digit(chars[dots + 1])]
    # Only dots within samples, not in names.
    sample = np.searchsorted(starts[0], dots, "right") - 1
    whole[sample[(sample >= 0) & (dots < ends[-1, sample])]] = False
    return whole


def _is_digit(chars: _Bytes) -> _Bools:
    return chars - _ZERO <= 9


def _places_of(starts: Ints, counts: Ints) -> Ints:
    """Return the positions of the entries of runs, run by run."""
    return np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())


def _as_word(text: bytes) -> int:
    return int.from_bytes(text, "little")
