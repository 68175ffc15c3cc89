"""XXH3 with 64 bits and no seed, the hash in the metadata hash of Kafka's group records (xxHash 0.8)."""

from __future__ import annotations

from struct import unpack_from
from typing import Final

_MASK: Final = 2**64 - 1
_LOW: Final = 2**32 - 1
_P32_1, _P32_2, _P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_P64_1, _P64_2, _P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P64_4, _P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_MIX_1, _MIX_2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
_SECRET: Final = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_STRIPE: Final = 64
_STRIPES_IN_BLOCK: Final = 16
_BLOCK: Final = _STRIPE * _STRIPES_IN_BLOCK
_LANES: Final = range(8)


def xxh3_64(data: bytes) -> int:
    """The hash of data as an unsigned number."""
    size = len(data)
    if size <= 16:
        return _short(data, size)
    if size <= 128:
        return _medium(data, size)
    return _large(data, size) if size <= 240 else _long(data, size)


def _short(data: bytes, size: int) -> int:
    if size > 8:
        low = _u64(data, 0) ^ _secret(24) ^ _secret(32)
        high = _u64(data, size - 8) ^ _secret(40) ^ _secret(48)
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche(size + swapped + high + _fold(low, high))
    if size >= 4:
        first, last = _u32(data, 0), _u32(data, size - 4)
        return _strong(last + (first << 32) ^ _secret(8) ^ _secret(16), size)
    if not size:
        return _avalanche_64(_secret(56) ^ _secret(64))
    combined = data[0] << 16 | data[size >> 1] << 24 | data[-1] | size << 8
    return _avalanche_64(combined ^ _u32(_SECRET, 0) ^ _u32(_SECRET, 4))


def _medium(data: bytes, size: int) -> int:
    total = size * _P64_1
    for pair in range((size - 1) // 32 + 1):
        total += _mix(data, 16 * pair, 32 * pair) + _mix(data, size - 16 * (pair + 1), 32 * pair + 16)
    return _avalanche(total)


def _large(data: bytes, size: int) -> int:
    first = sum(_mix(data, 16 * i, 16 * i) for i in range(8))
    rest = sum(_mix(data, 16 * i, 16 * (i - 8) + 3) for i in range(8, size // 16))
    return _avalanche(_avalanche(size * _P64_1 + first) + rest + _mix(data, size - 16, 119))


def _long(data: bytes, size: int) -> int:
    lanes = [_P32_3, _P64_1, _P64_2, _P64_3, _P64_4, _P32_2, _P64_5, _P32_1]
    blocks = (size - 1) // _BLOCK
    for stripe in range((size - 1) // _STRIPE):
        in_block = stripe % _STRIPES_IN_BLOCK
        _accumulate(lanes, data, stripe * _STRIPE, 8 * in_block)
        if in_block == _STRIPES_IN_BLOCK - 1 and stripe // _STRIPES_IN_BLOCK < blocks:
            for i, key in enumerate(unpack_from("<8Q", _SECRET, 128)):
                lanes[i] = (lanes[i] ^ lanes[i] >> 47 ^ key) * _P32_1 & _MASK
    _accumulate(lanes, data, size - _STRIPE, 121)
    keys = unpack_from("<8Q", _SECRET, 11)
    merged = sum(_fold(lanes[i] ^ keys[i], lanes[i + 1] ^ keys[i + 1]) for i in (0, 2, 4, 6))
    return _avalanche(size * _P64_1 + merged)


def _accumulate(lanes: list[int], data: bytes, position: int, secret: int) -> None:
    values, keys = unpack_from("<8Q", data, position), unpack_from("<8Q", _SECRET, secret)
    for i in _LANES:
        keyed = values[i] ^ keys[i]
        lanes[i ^ 1] = lanes[i ^ 1] + values[i] & _MASK
        lanes[i] = lanes[i] + (keyed & _LOW) * (keyed >> 32) & _MASK


def _mix(data: bytes, position: int, secret: int) -> int:
    return _fold(_u64(data, position) ^ _secret(secret), _u64(data, position + 8) ^ _secret(secret + 8))


def _fold(left: int, right: int) -> int:
    product = left * right
    return product & _MASK ^ product >> 64


def _avalanche(value: int) -> int:
    value &= _MASK
    value = (value ^ value >> 37) * _MIX_1 & _MASK
    return value ^ value >> 32


def _avalanche_64(value: int) -> int:
    value = (value ^ value >> 33) * _P64_2 & _MASK
    value = (value ^ value >> 29) * _P64_3 & _MASK
    return value ^ value >> 32


def _strong(value: int, size: int) -> int:
    value ^= _rotated(value, 49) ^ _rotated(value, 24)
    value = value * _MIX_2 & _MASK
    value = (value ^ (value >> 35) + size) * _MIX_2 & _MASK
    return value ^ value >> 28


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def _secret(position: int) -> int:
    return _u64(_SECRET, position)


def _u64(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 8], "little")


def _u32(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 4], "little")
