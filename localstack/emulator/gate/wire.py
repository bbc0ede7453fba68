"""HTTP/1.1 messages over asyncio streams, with a bound on everything that is read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

HEAD_BYTES_MAX = 64 * 1024
_CHUNK_LINE_BYTES_MAX = 1024

# Headers of one connection, which a proxy never passes on. RFC 9110, section 7.6.1.
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "expect",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)

Headers = list[tuple[str, str]]


class Malformed(Exception):
    """The bytes are no HTTP message."""


class TooLong(Exception):
    """The body is longer than allowed."""


@dataclass(frozen=True)
class Head:
    """The first line, in three parts, and the headers."""

    first: tuple[str, str, str]
    headers: Headers

    def get(self, name: str) -> str | None:
        """Returns the last value of a header; `name` in lower case."""
        found = [value for header, value in self.headers if header.lower() == name]
        return found[-1] if found else None

    def keeps_alive(self) -> bool:
        """Tells whether the sender wants to go on using the connection."""
        connection = (self.get("connection") or "").lower()
        version = self.first[2] if self.first[2].startswith("HTTP/") else self.first[0]
        return "close" not in connection and (version == "HTTP/1.1" or "keep-alive" in connection)

    def is_chunked(self) -> bool:
        """Tells whether the length of the body is not known beforehand."""
        return "chunked" in (self.get("transfer-encoding") or "").lower()

    def length(self) -> int | None:
        """Returns the declared length of the body."""
        declared = self.get("content-length")
        if declared is None:
            return None
        if not declared.isascii() or not declared.isdigit():
            raise Malformed("content-length is no number")
        return int(declared)


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """Reads up to the empty line; None when the connection ends before a message."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if not error.partial.strip():
            return None
        raise Malformed("the message ends within its head") from error
    except asyncio.LimitOverrunError as error:
        raise Malformed("the head is too long") from error
    lines = raw.decode("latin-1").split("\r\n")
    first = lines[0].split(" ", 2)
    if len(first) == 2:
        first.append("")
    if len(first) != 3:
        raise Malformed("the first line has not three parts")
    headers: Headers = []
    for line in lines[1:-2]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise Malformed("a header has no name")
        headers.append((name, value.strip()))
    return Head((first[0], first[1], first[2]), headers)


async def read_body(reader: asyncio.StreamReader, head: Head, *, limit: int, to_end: bool = False) -> bytes:
    """Reads a body of at most `limit` bytes; `to_end` says that a body of no length ends with the connection."""
    if head.is_chunked():
        return await _read_chunks(reader, limit)
    length = head.length()
    if length is None:
        return await _read_to_end(reader, limit) if to_end else b""
    if length > limit:
        raise TooLong
    return await _exactly(reader, length)


def passed_on(headers: Headers, *, dropping: Iterable[str] = ()) -> Headers:
    """Returns the headers that go further, without those of the connection and `dropping`."""
    named = {
        token.strip().lower()
        for name, value in headers
        if name.lower() == "connection"
        for token in value.split(",")
    }
    dropped = _HOP_BY_HOP | named | set(dropping) | {"content-length"}
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def encode_head(first: str, headers: Headers) -> bytes:
    """Returns the bytes of a head."""
    lines = [first, *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1")


async def _exactly(reader: asyncio.StreamReader, length: int) -> bytes:
    try:
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError as error:
        raise Malformed("the message ends within its body") from error


async def _read_chunks(reader: asyncio.StreamReader, limit: int) -> bytes:
    body = bytearray()
    while True:
        line = await _line(reader)
        try:
            size = int(line.split(b";")[0].strip(), 16)
        except ValueError as error:
            raise Malformed("a chunk has no size") from error
        if size < 0:
            raise Malformed("a chunk has a negative size")
        if size == 0:
            while (await _line(reader)).strip():
                pass
            return bytes(body)
        if len(body) + size > limit:
            raise TooLong
        body += await _exactly(reader, size)
        if (await _line(reader)).strip():
            raise Malformed("a chunk is longer than it says")


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        line = await reader.readuntil(b"\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise Malformed("a chunked body ends early") from error
    if len(line) > _CHUNK_LINE_BYTES_MAX:
        raise Malformed("a line of a chunked body is too long")
    return line


async def _read_to_end(reader: asyncio.StreamReader, limit: int) -> bytes:
    body = bytearray()
    while part := await reader.read(64 * 1024):
        body += part
        if len(body) > limit:
            raise TooLong
    return bytes(body)
