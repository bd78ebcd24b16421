"""Hash of a message's key: Murmur3 (x86, 32 bits, seed 0), low 16 bits, as in Pulsar 5."""

from __future__ import annotations

HASH_SPACE = 0x10000
"""Number of hashes: `0x0000..0xFFFF`."""
_MASK = 0xFFFFFFFF


def key_hash(key: bytes) -> int:
    """Return the hash of a key, `0..HASH_SPACE - 1`."""
    size = len(key)
    aligned = size & ~3
    value = 0
    for offset in range(0, aligned, 4):
        block = int.from_bytes(key[offset : offset + 4], "little") * 0xCC9E2D51 & _MASK
        value ^= ((block << 15) | (block >> 17)) * 0x1B873593 & _MASK
        value = (((value << 13) | (value >> 19)) & _MASK) * 5 + 0xE6546B64 & _MASK
    if aligned < size:
        block = int.from_bytes(key[aligned:], "little") * 0xCC9E2D51 & _MASK
        value ^= ((block << 15) | (block >> 17)) * 0x1B873593 & _MASK
    value ^= size
    value = (value ^ (value >> 16)) * 0x85EBCA6B & _MASK
    value = (value ^ (value >> 13)) * 0xC2B2AE35 & _MASK
    return (value ^ (value >> 16)) & 0xFFFF
