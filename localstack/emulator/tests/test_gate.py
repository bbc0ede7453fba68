"""The gate between a raw client and a small HTTP server of the test's own."""

from __future__ import annotations

import asyncio
import json
import unittest
from collections.abc import Awaitable, Callable

from emulator.gate import wire
from emulator.gate.limits import Answers, Limits, Route, route_of
from emulator.gate.proxy import Gate, Upstream

SMALL = Limits(request_bytes=4000, event_bytes=8 * 1024 + 1200, answer_bytes=2000, timeout_s=5)
FUNCTION_BYTES = 900
PLAIN = Answers({})

Respond = Callable[[wire.Head, bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Servers = tuple[asyncio.Server, asyncio.Server]


async def echo(
    head: wire.Head, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    content = json.dumps({"first": head.first, "headers": head.headers, "length": len(body)}).encode()
    writer.write(
        b"HTTP/1.1 201 Created\r\nx-own: 1\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n"
        % len(content)
    )
    writer.write(content)


async def silent(
    head: wire.Head, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    await reader.read()


async def chunked(
    head: wire.Head, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n"
    )


async def without_length(
    head: wire.Head, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")


async def long(
    head: wire.Head, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2001\r\n\r\n" + b"x" * 2001)


async def garbage(
    head: wire.Head, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    writer.write(b"nonsense\r\n\r\n")


class GateTest(unittest.IsolatedAsyncioTestCase):
    async def open(self, respond: Respond = echo, bounds: Limits = SMALL, answers: Answers = PLAIN) -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await wire.read_head(reader)
            if head is not None:
                await respond(head, await wire.read_body(reader, head, limit=1 << 20), reader, writer)
                await writer.drain()
            writer.close()

        backend = await asyncio.start_server(handle, "127.0.0.1", 0)
        port = backend.sockets[0].getsockname()[1]
        self.gate = Gate(Upstream("127.0.0.1", port, "/_aws/execute-api/abc", "v1"), answers, bounds)
        server = await self.gate.serve("127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self.addAsyncCleanup(self.close, (server, backend))

    async def close(self, servers: Servers) -> None:
        for server in servers:
            server.close()
        # Connections end a step after their servers.
        if connections := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(connections, timeout=5)

    async def send(self, *messages: bytes) -> list[tuple[int, wire.Head, bytes]]:
        """Sends each message on one connection, and reads its answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        answers = []
        for message in messages:
            writer.write(message)
            await writer.drain()
            head = await wire.read_head(reader)
            assert head is not None
            body = await wire.read_body(reader, head, limit=1 << 20, to_end=True)
            answers.append((int(head.first[1]), head, body))
        writer.close()
        await writer.wait_closed()
        return answers

    async def one(self, message: bytes) -> tuple[int, wire.Head, bytes]:
        return (await self.send(message))[0]

    async def test_a_request_goes_to_the_stage_behind_the_emulators_path(self) -> None:
        await self.open()
        status, head, body = await self.one(
            b"POST /v1/batches?limit=2 HTTP/1.1\r\nHost: gate\r\nAuthorization: Bearer k\r\n"
            b"Content-Type: application/json\r\nConnection: x-secret\r\nX-Secret: 1\r\nContent-Length: 2\r\n\r\n{}"
        )
        seen = json.loads(body)
        self.assertEqual(status, 201)
        self.assertEqual(head.get("x-own"), "1")
        self.assertEqual(seen["first"][:2], ["POST", "/_aws/execute-api/abc/v1/batches?limit=2"])
        names = {name.lower(): value for name, value in seen["headers"]}
        self.assertEqual(names["authorization"], "Bearer k")
        self.assertEqual(names["content-type"], "application/json")
        self.assertEqual(names["content-length"], "2")
        self.assertNotIn("x-secret", names)
        self.assertNotEqual(names["host"], "gate")

    async def test_a_connection_serves_requests_until_it_is_closed(self) -> None:
        await self.open()
        get = b"GET /v1/files HTTP/1.1\r\nHost: x\r\n\r\n"
        answers = await self.send(get, get, get)
        self.assertEqual([status for status, _, _ in answers], [201, 201, 201])

    async def test_a_chunked_request_arrives_with_its_length(self) -> None:
        await self.open()
        status, _, body = await self.one(
            b"POST /v1/files HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
        )
        seen = json.loads(body)
        self.assertEqual((status, seen["length"]), (201, 7))
        self.assertNotIn("transfer-encoding", [name.lower() for name, _ in seen["headers"]])

    async def test_a_function_gets_a_body_up_to_what_fits_its_event(self) -> None:
        await self.open()
        for length, expected in ((FUNCTION_BYTES, 201), (FUNCTION_BYTES + 1, 413)):
            head = b"POST /v1/files HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % length
            status, _, body = await self.one(head + b"x" * length)
            self.assertEqual(status, expected)
        self.assertEqual(body, b'{"message":"Request Too Long"}')

    async def test_the_parts_route_takes_what_api_gateway_takes(self) -> None:
        await self.open()
        for length, expected in ((4000, 201), (4001, 413)):
            head = b"POST /v1/uploads/upload_1/parts HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % length
            status, _, _ = await self.one(head + b"x" * length)
            self.assertEqual(status, expected)

    async def test_a_chunked_request_over_the_limit_is_refused(self) -> None:
        await self.open()
        status, head, _ = await self.one(
            b"POST /v1/files HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n385\r\n"
            + b"x" * 901
            + b"\r\n0\r\n\r\n"
        )
        self.assertEqual(status, 413)
        self.assertEqual(head.get("x-amzn-errortype"), "RequestTooLargeException")

    async def test_413_cannot_be_customised(self) -> None:
        await self.open(answers=Answers({"DEFAULT_4XX": template("{}"), "REQUEST_TOO_LARGE": template("{}")}))
        status, _, body = await self.one(b"POST /v1/files HTTP/1.1\r\nContent-Length: 99999\r\n\r\n")
        self.assertEqual((status, body), (413, b'{"message":"Request Too Long"}'))

    async def test_an_expected_body_is_asked_for_only_when_it_may_come(self) -> None:
        await self.open()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"POST /v1/files HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        self.assertEqual(await reader.readuntil(b"\r\n\r\n"), b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        status, _, _ = await self.one(
            b"POST /v1/files HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 30000\r\n\r\n"
        )
        self.assertEqual(status, 413)

    async def test_a_late_answer_is_a_504_in_the_words_of_the_api(self) -> None:
        late = {"INTEGRATION_TIMEOUT": template('{"late":$context.error.messageString}', "504")}
        await self.open(silent, Limits(timeout_s=0.05), Answers(late))
        status, head, body = await self.one(b"GET /v1/files HTTP/1.1\r\n\r\n")
        self.assertEqual((status, body), (504, b'{"late":"Endpoint request timed out"}'))
        self.assertEqual(head.get("retry-after"), "1")

    async def test_an_answer_over_the_limit_is_a_502(self) -> None:
        await self.open(long, answers=Answers({"DEFAULT_5XX": template('{"own":1}')}))
        status, _, body = await self.one(b"GET /v1/files HTTP/1.1\r\n\r\n")
        self.assertEqual((status, body), (502, b'{"own":1}'))

    async def test_answers_of_every_framing_arrive_whole(self) -> None:
        for respond, expected in ((chunked, b"hello world"), (without_length, b"until the end")):
            await self.open(respond)
            status, head, body = await self.one(b"GET /v1/files HTTP/1.1\r\n\r\n")
            self.assertEqual((status, body), (200, expected))
            self.assertEqual(head.get("content-length"), str(len(expected)))

    async def test_nonsense_from_the_emulator_is_a_502(self) -> None:
        await self.open(garbage)
        status, _, _ = await self.one(b"GET /v1/files HTTP/1.1\r\n\r\n")
        self.assertEqual(status, 502)

    async def test_nonsense_from_a_client_is_a_400(self) -> None:
        await self.open()
        for message in (
            b"nonsense\r\n\r\n",
            b"POST /v1/files HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            b"POST /v1/files HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"GET /v1/files HTTP/1.1\r\n: nameless\r\n\r\n",
        ):
            status, _, _ = await self.one(message)
            self.assertEqual(status, 400, message)

    async def test_other_stages_are_forbidden(self) -> None:
        await self.open()
        for path in (b"/v2/files", b"/", b"/v11"):
            status, _, body = await self.one(b"GET " + path + b" HTTP/1.1\r\n\r\n")
            self.assertEqual((status, body), (403, b'{"message":"Forbidden"}'))

    async def test_requests_are_counted(self) -> None:
        await self.open()
        await self.one(b"GET /v1/files HTTP/1.1\r\n\r\n")
        await self.one(b"POST /v1/uploads/upload_1/parts HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        await self.one(b"GET /v2 HTTP/1.1\r\n\r\n")
        _, _, body = await self.one(b"GET /_gate/counts HTTP/1.1\r\n\r\n")
        self.assertEqual(
            json.loads(body),
            {"requests": 3, "statuses": {"201": 2, "403": 1}, "routes": {"function": 2, "storage": 1}},
        )


def template(body: str, status: str | None = None) -> dict[str, object]:
    return {
        "responseTemplates": {"application/json": body},
        "responseParameters": {"gatewayresponse.header.retry-after": "'1'"},
        "statusCode": status,
    }


class LimitsTest(unittest.TestCase):
    def test_the_limits_are_those_of_aws(self) -> None:
        limits = Limits()
        self.assertEqual(limits.body_bytes(Route.STORAGE), 10_485_760)
        # 4.49 MiB: six in base64, less the rest of the event.
        self.assertEqual(limits.body_bytes(Route.FUNCTION), 4_712_448)

    def test_only_a_post_of_a_part_goes_to_storage(self) -> None:
        self.assertEqual(route_of("POST", "/v1/uploads/upload_1/parts"), Route.STORAGE)
        for method, path in (
            ("GET", "/v1/uploads/upload_1/parts"),
            ("POST", "/v1/uploads/upload_1/complete"),
            ("POST", "/v1/uploads/a/b/parts"),
            ("POST", "/v1/files"),
        ):
            self.assertEqual(route_of(method, path), Route.FUNCTION)

    def test_default_responses_are_not_customised_ones(self) -> None:
        items = [
            {"responseType": "DEFAULT_4XX", "defaultResponse": True},
            {"responseType": "DEFAULT_5XX", "defaultResponse": False},
        ]
        self.assertEqual(list(Answers.of_items(items).customised), ["DEFAULT_5XX"])


if __name__ == "__main__":
    unittest.main()
