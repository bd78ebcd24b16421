"""From a message's key to its place in the hash space: Murmur3, low 16 bits.

The hash that PIP-468 "SegmentLayout" finds an active segment by. A real Pulsar 5.0.0-M1 takes the *low* 16 bits of the
raw 32-bit hash of the key's bytes.
"""

_MASK = 0xFFFFFFFF


def murmur3_32(data: bytes, seed: int = 0) -> int:
    """MurmurHash3 x86 32-bit of `data`, as an unsigned integer."""
    value = seed & _MASK
    whole = len(data) // 4 * 4
    for offset in range(0, whole, 4):
        value ^= _scramble_block(int.from_bytes(data[offset : offset + 4], "little"))
        value = (((value << 13) | (value >> 19)) * 5 + 0xE6546B64) & _MASK
    if whole < len(data):
        value ^= _scramble_block(int.from_bytes(data[whole:], "little"))
    value ^= len(data)
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & _MASK
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & _MASK
    return value ^ (value >> 16)


def key_hash(key: bytes) -> int:
    """The place of a key in the hash space `0x0000..0xFFFF`."""
    return murmur3_32(key) & 0xFFFF


def _scramble_block(block: int) -> int:
    block = (block * 0xCC9E2D51) & _MASK
    block = ((block << 15) | (block >> 17)) & _MASK
    return (block * 0x1B873593) & _MASK
