"""Damages the bytes of a file in one of many ways, a pure function of the generator's state."""

import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

from crc32c import crc32c

Mutation = Callable[[bytes, Random], bytes]

# Values that a number, a word or a node of JSON is replaced by: wrong types, huge, not finite.
_NUMBERS = (
    *("-1", "0", "1e999", "-1e999", "nan", "NaN", "inf", "99999999999999999999", "1e-320"),
    *("2147483648", "-9223372036854775809", "0x10", "1_000", "1,5", "", " ", "abc", "true", "null"),
    *("[]", "{}", '""', "'", "\x00", "\u0661", "9" * 5000),
)
_NODES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 1e308, float("nan"), float("inf"), 10**30, -(2**63) - 1),
    *("", "abc", "\x00", "\ud800", "../../x", "/dev/zero", "猫", [], {}, [[]], [None], {"": None}),
    *([1, 2, 3, 4, 5], "9" * 5000, "1", " 1 "),
)
_HUGE_BLOCK = 1 << 20  # bytes that are inserted at once, or lines repeated


def _flip_bits(data: bytes, rng: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 30)) if data else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(data: bytes, rng: Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _cut_start(data: bytes, rng: Random) -> bytes:
    return data[rng.randrange(len(data) + 1) :]


def _remove_block(data: bytes, rng: Random) -> bytes:
    start, end = _two_places(data, rng)
    return data[:start] + data[end:]


def _swap_blocks(data: bytes, rng: Random) -> bytes:
    first, last = _two_places(data, rng)
    middle = rng.randint(first, last)
    return data[:first] + data[middle:last] + data[first:middle] + data[last:]


def _repeat_block(data: bytes, rng: Random) -> bytes:
    start, end = _two_places(data, rng)
    times = rng.choice((2, 10, 1 + _HUGE_BLOCK // max(end - start, 1)))
    return data[:start] + data[start:end] * times + data[end:]


def _overwrite_integer(data: bytes, rng: Random) -> bytes:
    """Sizes, offsets and counts of binary formats become extreme."""
    size = rng.choice((1, 2, 4, 8))
    value = rng.choice((0, 1, (1 << 8 * size) - 1, (1 << 8 * size - 1) - 1, 1 << 8 * size - 1))
    start = rng.randrange(max(len(data) - size, 1))
    start = rng.choice((start, start % 64))
    return data[:start] + value.to_bytes(size, rng.choice(("little", "big"))) + data[start + size :]


def _fill(data: bytes, rng: Random) -> bytes:
    start, end = _two_places(data, rng)
    return data[:start] + rng.choice((b"\x00", b"\xff", b" ")) * (end - start) + data[end:]


def _append_junk(data: bytes, rng: Random) -> bytes:
    return data + rng.choice((b"\x00", rng.randbytes(100), b"\xff" * _HUGE_BLOCK, b"\n\n"))


def _replace_whole(data: bytes, rng: Random) -> bytes:
    return rng.choice(
        (b"", b"\x00" * 100, b"\n", rng.randbytes(1000), b"PK\x03\x04", b"{", b"null")
    )


BINARY: tuple[Mutation, ...] = (
    *(_flip_bits, _cut, _cut_start, _remove_block, _swap_blocks, _repeat_block),
    *(_overwrite_integer, _overwrite_integer, _fill, _append_junk, _replace_whole),
)


def _replace_number(data: bytes, rng: Random) -> bytes:
    places = [i for i, byte in enumerate(data) if chr(byte).isdigit()] or [0]
    start = end = rng.choice(places)
    while end < len(data) and chr(data[end]) in "0123456789.eE-":
        end += 1
    return data[:start] + rng.choice(_NUMBERS).encode() + data[end:]


def _replace_word(data: bytes, rng: Random) -> bytes:
    start, end = _word(data, rng)
    return data[:start] + rng.choice(_NUMBERS).encode() + data[end:]


def _lengthen_word(data: bytes, rng: Random) -> bytes:
    start, end = _word(data, rng)
    return data[:start] + (data[start:end] or b"x") * rng.choice((100, 100_000)) + data[end:]


def _change_lines(data: bytes, rng: Random) -> bytes:
    lines = data.split(b"\n")
    place, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(5)
    if kind == 0:
        del lines[place]
    elif kind == 1:
        lines.insert(other, lines[place])
    elif kind == 2:
        lines[place], lines[other] = lines[other], lines[place]
    elif kind == 3:
        lines[place] = b"".join(rng.sample([bytes([x]) for x in lines[place]], len(lines[place])))
    else:
        lines.insert(place, b"")
    return b"\n".join(lines)


def _change_delimiter(data: bytes, rng: Random) -> bytes:
    places = [i for i, byte in enumerate(data) if byte in b",;:\"'{}[]<> \t\n/=-#&"] or [0]
    place = rng.choice(places)
    new = rng.choice((b"", b",", b'"', b"\t", b"\r", b"\x00", b"{", b"]", b"<", b"&", b"#", b": "))
    return data[:place] + new + data[place + 1 :]


def _change_encoding(data: bytes, rng: Random) -> bytes:
    text = data.decode("utf-8", "replace")
    kind = rng.randrange(7)
    if kind < 3:
        return text.encode(("utf-16", "utf-32", "utf-8-sig")[kind], "replace")
    place = rng.randrange(len(data) + 1)
    piece = (b"\xe9\xff", b"\xed\xa0\x80", b"\x1a", b"\xc0\xaf")[kind - 3]
    return data[:place] + piece + data[place:]


def _change_newlines(data: bytes, rng: Random) -> bytes:
    return data.replace(b"\n", rng.choice((b"\r", b"\r\n", b"\n\r", b"\x0b", b"")))


def _nest(data: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(data) + 1)
    opening = rng.choice((b"[", b"{", b'{"a":', b"<a>", b"- ", b"("))
    return data[:place] + opening * rng.choice((50, 100_000)) + data[place:]


TEXT: tuple[Mutation, ...] = (
    *(_replace_number, _replace_number, _replace_word, _replace_word, _lengthen_word, _nest),
    *(_change_lines, _change_lines, _change_delimiter, _change_delimiter, _change_encoding),
    *(_change_encoding, _change_newlines, *BINARY),
)


def _replace_node(data: bytes, rng: Random) -> bytes:
    """Another value, a missing key or a doubled item somewhere in a JSON document."""
    document = json.loads(data)
    places = list(_nodes(document))
    if not places:
        return data
    # Nodes near the root are few and matter most.
    depth = rng.randint(0, max(depth for _, _, depth in places))
    parent, key, _ = rng.choice([place for place in places if place[2] <= depth])
    kind = rng.randrange(5)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, list):
        parent.insert(key, parent[key])
    elif kind == 2 and isinstance(parent, dict):
        parent[f"{key} "] = parent.pop(key)
    else:
        parent[key] = rng.choice(_NODES)
    return json.dumps(document).encode("utf-8", "surrogatepass")


JSON: tuple[Mutation, ...] = (*(_replace_node,) * 2 * len(TEXT), *TEXT)


def _change_payload(data: bytes, rng: Random) -> bytes:
    """A record of a TFRecord file is damaged and its check sums are made anew."""
    records, position = [], 0
    while position < len(data):
        (length,) = struct.unpack_from("<Q", data, position)
        records.append(data[position + 12 : position + 12 + length])
        position += 16 + length
    place = rng.randrange(len(records))
    kind = rng.randrange(8)
    if kind == 0:
        del records[place]
    elif kind == 1:
        records.insert(place, rng.choice(records))
    else:
        records[place] = rng.choice(BINARY)(records[place], rng)
    return b"".join(_frame(record) for record in records)


def _frame(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    return length + _masked_crc(length) + record + _masked_crc(record)


def _masked_crc(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


RECORDS: tuple[Mutation, ...] = (*(_change_payload,) * len(BINARY), *BINARY)


def _nodes(node: Any, depth: int = 0) -> Any:
    """Yields (parent, key, depth) of everything in a JSON document."""
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, child in items:
        yield node, key, depth
        if isinstance(child, dict | list):
            yield from _nodes(child, depth + 1)


def _two_places(data: bytes, rng: Random) -> tuple[int, int]:
    """Both anywhere, or near each other, which leaves the rest of a format intact."""
    start = rng.randrange(len(data) + 1)
    reach = rng.choice((4, 64, len(data)))
    return start, min(start + rng.randrange(reach + 1), len(data))


def _word(data: bytes, rng: Random) -> tuple[int, int]:
    start = end = rng.randrange(len(data) + 1)
    while start > 0 and data[start - 1 : start].isalnum():
        start -= 1
    while end < len(data) and data[end : end + 1].isalnum():
        end += 1
    return start, end
