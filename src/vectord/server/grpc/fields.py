"""How many fields a message has, counted before any is made. Pure; called by methods.py.

Two bytes are a field: 4 MB hold two million empty texts. https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from vectord.errors import MalformedBody, TooManyInputs

OTHER_FIELDS = 64  # that a message may have beside those that repeat


def check_fields(content: bytes, max_inputs: int, field: str) -> None:
    """Raises TooManyInputs at the first field too many, so that the look costs no more than what is allowed, and
    MalformedBody for what is no message. field: the one that repeats."""
    at = count = 0
    while at < len(content):
        at = _next(content, at)
        count += 1
        if count > max_inputs + OTHER_FIELDS:
            raise TooManyInputs(f"`{field}` may hold at most {max_inputs} inputs.", field=field, limit=max_inputs)


def _next(content: bytes, at: int) -> int:
    """Where the field that begins at `at` ends."""
    tag, at = _varint(content, at)
    match tag & 7:
        case 0:
            return _varint(content, at)[1]
        case 1:
            return at + 8
        case 2:
            length, at = _varint(content, at)
            return at + length
        case 5:
            return at + 4
    raise MalformedBody("The message has a field of no known kind.")  # groups, which proto3 has not, among them


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends."""
    value = 0
    for place, byte in enumerate(content[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise MalformedBody("The message is cut off.")
