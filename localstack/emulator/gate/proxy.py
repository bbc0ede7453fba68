"""Serves the base URL of a deployment: checks a request, has the emulator answer it, checks the answer."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from dataclasses import dataclass, field

from . import limits, wire

_COUNTS_PATH = "/_gate/counts"
# After an early 413 a client may still be sending: it sees the answer only once it is done or gives up.
_DRAIN_S = 10
_DRAIN_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True)
class Upstream:
    """Where the emulator serves the API."""

    host: str
    port: int
    prefix: str
    """Before the stage, e.g. `/_aws/execute-api/abc123`."""
    stage: str


@dataclass
class Counts:
    """How many requests came, and what was answered."""

    requests: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    routes: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> bytes:
        return json.dumps(
            {"requests": self.requests, "statuses": dict(self.statuses), "routes": dict(self.routes)}
        ).encode()


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    status: int
    reason: str
    headers: wire.Headers
    body: bytes


class Gate:
    """The proxy."""

    def __init__(
        self, upstream: Upstream, answers: limits.Answers, bounds: limits.Limits = limits.Limits()
    ) -> None:
        self._upstream = upstream
        self._answers = answers
        self._bounds = bounds
        self.counts = Counts()

    async def serve(self, host: str, port: int) -> asyncio.Server:
        """Starts to listen; port 0 takes a free one."""
        return await asyncio.start_server(self._connection, host, port, limit=wire.HEAD_BYTES_MAX)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, wire.Malformed):
            pass
        finally:
            writer.close()
            try:
                await writer.wait_closed()
            except ConnectionError:
                pass

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answers one request; tells whether the connection goes on."""
        try:
            head = await wire.read_head(reader)
        except wire.Malformed as error:
            await _send(writer, _plain(400, str(error)), is_head=False, keep=False)
            return False
        if head is None:
            return False
        method, target, _ = head.first
        if target == _COUNTS_PATH:
            body = self.counts.to_json()
            await _send(writer, _json(200, body), is_head=False, keep=False)
            return False
        self.counts.requests += 1
        route = limits.route_of(method, target.partition("?")[0])
        self.counts.routes[route.value] += 1
        try:
            if _expects_continue(head) and (head.length() or 0) <= self._bounds.body_bytes(route):
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await wire.read_body(reader, head, limit=self._bounds.body_bytes(route))
        except wire.TooLong:
            await self._finish(writer, head, self._refuse(limits.REQUEST_TOO_LARGE), keep=False)
            await _drain(reader, writer)
            return False
        except wire.Malformed as error:
            await self._finish(writer, head, _plain(400, str(error)), keep=False)
            return False
        answer = await self._answer(head, body)
        keep = head.keeps_alive()
        await self._finish(writer, head, answer, keep=keep)
        return keep

    async def _answer(self, head: wire.Head, body: bytes) -> Answer:
        path = head.first[1]
        stage = f"/{self._upstream.stage}"
        if not (path == stage or path.startswith((f"{stage}/", f"{stage}?"))):
            return self._refuse(limits.NO_STAGE)
        try:
            async with asyncio.timeout(self._bounds.timeout_s):
                return await self._forward(head, body)
        except TimeoutError:
            return self._refuse(limits.TIMED_OUT)
        except wire.TooLong:
            return self._refuse(limits.ANSWER_TOO_LARGE)
        except (OSError, wire.Malformed):
            return self._refuse(limits.UNREACHABLE)

    async def _forward(self, head: wire.Head, body: bytes) -> Answer:
        method, target, _ = head.first
        upstream = self._upstream
        reader, writer = await asyncio.open_connection(
            upstream.host, upstream.port, limit=wire.HEAD_BYTES_MAX
        )
        try:
            headers = wire.passed_on(head.headers, dropping=("host",))
            headers += [("Host", f"{upstream.host}:{upstream.port}"), ("Connection", "close")]
            if body or method in ("POST", "PUT", "PATCH"):
                headers.append(("Content-Length", str(len(body))))
            writer.write(wire.encode_head(f"{method} {upstream.prefix}{target} HTTP/1.1", headers))
            writer.write(body)
            await writer.drain()
            answered = await wire.read_head(reader)
            if answered is None:
                raise wire.Malformed("no answer")
            status = int(answered.first[1])
            content = b""
            if method != "HEAD" and status not in (204, 304):
                content = await wire.read_body(reader, answered, limit=self._bounds.answer_bytes, to_end=True)
            return Answer(status, answered.first[2], wire.passed_on(answered.headers), content)
        except ValueError as error:
            raise wire.Malformed("the status is no number") from error
        finally:
            writer.close()

    def _refuse(self, refusal: limits.Refusal) -> Answer:
        status, headers, body = self._answers.render(refusal, str(uuid.uuid4()))
        return Answer(status, "", list(headers.items()), body)

    async def _finish(
        self, writer: asyncio.StreamWriter, head: wire.Head, answer: Answer, *, keep: bool
    ) -> None:
        self.counts.statuses[answer.status] += 1
        await _send(writer, answer, is_head=head.first[0] == "HEAD", keep=keep)


def _expects_continue(head: wire.Head) -> bool:
    return (head.get("expect") or "").lower() == "100-continue"


def _plain(status: int, message: str) -> Answer:
    return _json(status, json.dumps({"message": message}).encode())


def _json(status: int, body: bytes) -> Answer:
    return Answer(status, "", [("Content-Type", "application/json")], body)


async def _send(writer: asyncio.StreamWriter, answer: Answer, *, is_head: bool, keep: bool) -> None:
    headers = list(answer.headers)
    if answer.status not in (204, 304):
        headers.append(("Content-Length", str(len(answer.body))))
    headers.append(("Connection", "keep-alive" if keep else "close"))
    writer.write(wire.encode_head(f"HTTP/1.1 {answer.status} {answer.reason}", headers))
    if not is_head:
        writer.write(answer.body)
    await writer.drain()


async def _drain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    if writer.can_write_eof():
        writer.write_eof()
    read = 0
    try:
        async with asyncio.timeout(_DRAIN_S):
            while read < _DRAIN_BYTES_MAX and (part := await reader.read(64 * 1024)):
                read += len(part)
    except TimeoutError:
        pass
