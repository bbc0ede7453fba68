"""The Lambda Runtime API of one execution environment, on 127.0.0.1.

Source: https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html
"""

from __future__ import annotations

import json
import queue
import re
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# What Lambda takes as the answer of one synchronous call: 6 MiB and a little.
ANSWER_BYTES_MAX = 6 * 1024 * 1024 + 100

_NEXT = "/2018-06-01/runtime/invocation/next"
_INIT_ERROR = "/2018-06-01/runtime/init/error"
_ANSWER = re.compile(r"^/2018-06-01/runtime/invocation/([^/]+)/(response|error)$")
# How often a waiting runtime is checked for having gone, and the server for its end.
_POLL_S = 0.2


@dataclass
class Invocation:
    """One event on its way through a function."""

    request_id: str
    arn: str
    payload: bytes
    deadline_ms: int
    trace_id: str
    answered: threading.Event = field(default_factory=threading.Event)
    answer: bytes = b""
    is_error: bool = False

    def succeed(self, answer: bytes) -> None:
        """Takes the function's answer; one that Lambda would refuse becomes an error."""
        if len(answer) > ANSWER_BYTES_MAX:
            self.fail(too_large(len(answer)))
            return
        self.answer = answer
        self.answered.set()

    def fail(self, error: bytes) -> None:
        """Takes an error document as the answer."""
        self.answer, self.is_error = error, True
        self.answered.set()


def error_document(error_type: str, message: str) -> bytes:
    """Returns the JSON that Lambda gives a caller for a failed call."""
    return json.dumps({"errorType": error_type, "errorMessage": message}).encode()


def too_large(length: int) -> bytes:
    """Returns the error for an answer over Lambda's limit."""
    return error_document(
        "Function.ResponseSizeTooLarge",
        f"Response payload size ({length} bytes) exceeded maximum allowed payload size ({ANSWER_BYTES_MAX} bytes).",
    )


class RuntimeApi:
    """Serves one execution environment; holds at most one event at a time."""

    def __init__(self) -> None:
        self._inbox: queue.Queue[Invocation | None] = queue.Queue()
        self._current: Invocation | None = None
        self._closed = False
        self.settled = threading.Event()
        """Set when the runtime asked for its first event or reported that its init failed."""
        self.init_error: bytes | None = None
        self._server = _Server(("127.0.0.1", 0), _handler_for(self))
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": _POLL_S},
            daemon=True,
            name="runtime-api",
        ).start()

    def submit(self, invocation: Invocation) -> None:
        """Gives the runtime an event."""
        self._inbox.put(invocation)

    def abandon(self) -> None:
        """Forgets the event in work: its process is gone or was too slow."""
        self._current = None

    def reset(self) -> None:
        """Makes ready for a new process."""
        self.settled.clear()
        self.init_error = None
        self._current = None
        self._inbox = queue.Queue()

    def close(self) -> None:
        """Stops serving; a runtime that waits for an event loses its connection."""
        self._closed = True
        self._inbox.put(None)
        self._server.shutdown()
        self._server.server_close()

    def _next(self, connection: socket.socket) -> Invocation | None:
        self.settled.set()
        inbox = self._inbox
        while not self._closed:
            try:
                invocation = inbox.get(timeout=_POLL_S)
            except queue.Empty:
                if _is_gone(connection):
                    return None
                continue
            self._current = invocation
            return invocation
        return None

    def _answer(self, request_id: str, kind: str, body: bytes) -> bool:
        invocation = self._current
        if invocation is None or invocation.request_id != request_id:
            return False
        self._current = None
        if kind == "error":
            invocation.fail(body)
        else:
            invocation.succeed(body)
        return True

    def _fail_init(self, body: bytes) -> None:
        self.init_error = body
        self.settled.set()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    address_family = socket.AF_INET


def _is_gone(connection: socket.socket) -> bool:
    """Tells whether the other end of an idle connection has closed it."""
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.setblocking(True)


def _handler_for(api: RuntimeApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Keeps requests out of LocalStack's log."""

        def do_GET(self) -> None:
            if self.path != _NEXT:
                self._reply(404, b"{}")
                return
            invocation = api._next(self.connection)
            if invocation is None:
                self.close_connection = True
                return
            self._reply(
                200,
                invocation.payload,
                {
                    "Lambda-Runtime-Aws-Request-Id": invocation.request_id,
                    "Lambda-Runtime-Deadline-Ms": str(invocation.deadline_ms),
                    "Lambda-Runtime-Invoked-Function-Arn": invocation.arn,
                    "Lambda-Runtime-Trace-Id": invocation.trace_id,
                },
            )

        def do_POST(self) -> None:
            body = self._body()
            if self.path == _INIT_ERROR:
                api._fail_init(body)
                self._reply(202)
                return
            answer = _ANSWER.match(self.path)
            if answer is None:
                self._reply(404, b"{}")
            elif not api._answer(answer.group(1), answer.group(2), body):
                self._reply(400, error_document("InvalidRequestID", "the event is not in work"))
            elif answer.group(2) == "response" and len(body) > ANSWER_BYTES_MAX:
                self._reply(413, too_large(len(body)))
            else:
                self._reply(202)

        def _body(self) -> bytes:
            if "chunked" in (self.headers.get("Transfer-Encoding") or "").lower():
                return self._chunked_body()
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def _chunked_body(self) -> bytes:
            chunks = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return b"".join(chunks)

        def _reply(
            self, status: int, body: bytes = b'{"status":"OK"}', headers: dict[str, str] | None = None
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    return Handler
